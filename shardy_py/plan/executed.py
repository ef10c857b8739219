"""The program that a device executes under a plan; lists, costs, drawings and memory are read from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardy_py.dialect import Mesh
from shardy_py.ir import Block, Op, Program, Value
from shardy_py.passes.dataflow import MANUAL_COMPUTATION
from shardy_py.plan.analysis import Analysis
from shardy_py.plan.collectives import KINDS, Collective
from shardy_py.plan.explicit import Explicit, Transfer
from shardy_py.plan.jit_program import jit_program_of
from shardy_py.plan.partitioner import partition
from shardy_py.plan.prediction.loops import as_xla_inlines, as_xla_propagates
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.values import PlannedValue, intermediates, name_of


@dataclass(frozen=True, eq=False)
class Executed:
    """The program that a device executes.

    Attributes:
        block: Its ops: of a region those on the arrays of one device, else those of the program that XLA's partitioner is predicted to
            make, whose shardings say which piece a device has.
    """

    block: Block
    meshes: Mapping[str, Mesh]
    values: Mapping[Value, PlannedValue]
    transfers: tuple[Transfer, ...]


@Analysis
def explicit_of(plan: PlanRecord) -> Explicit:
    """The explicit program that XLA's partitioner is predicted to make of a plan under `lowering="jit"`."""
    run = jit_program_of(plan)
    if plan.is_assigned:
        program, lineage, _ = as_xla_inlines(run.program)
    else:
        program, lineage = as_xla_propagates(run.program) if run.follows_plan else (run.program, run.lineage)
    return partition(program, lambda value: name_of(value, plan.names), lineage)


@Analysis
def collectives_of(plan: PlanRecord) -> tuple[Collective, ...]:
    """The collectives that a call runs; see `Plan.collectives`."""
    if plan.active_partitioner is None:
        return tuple(transfer.collective for transfer in explicit_of(plan).transfers)
    return plan.active_partitioner.collectives(plan)


@Analysis
def executed(plan: PlanRecord) -> Executed:
    """The program that a device executes under a plan; the region is made if it has not been."""
    if plan.active_partitioner is None:
        explicit = explicit_of(plan)
        planned = dict(plan.intermediates)
        values = {value: planned[source] for value, source in explicit.values.items() if source in planned}
        return Executed(explicit.program.main.body, explicit.program.meshes, values, explicit.transfers)
    local = plan.active_partitioner.local_program(plan)
    values = dict(intermediates(local, "region %"))
    block = _region(local)
    steps = [op for op in block.walk() if _kind(op) in KINDS]
    collectives = collectives_of(plan)
    are_alike = [_kind(op) for op in steps] == [c.kind for c in collectives]
    transfers = tuple(Transfer(c, step) for c, step in zip(collectives, steps if are_alike else [None] * len(collectives)))
    return Executed(block, local.meshes, values, transfers)


def _region(local: Program) -> Block:
    """The body that runs on every device; beside it a local program has constants only."""
    body = local.main.body  # on one device it is the region itself
    return next((op.regions[0] for op in body.ops if op.name == MANUAL_COMPUTATION), body)


def _kind(op: Op) -> str:
    return op.name.partition(".")[2]
