"""The program that a device executes under a plan, whose ops are priced and drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shardy_py.dialect import Mesh
from shardy_py.ir import Block, Op, Program, Value
from shardy_py.passes.dataflow import MANUAL_COMPUTATION
from shardy_py.plan.analysis import Analysis
from shardy_py.plan.as_run import predicted_of
from shardy_py.plan.collectives import KINDS, Collective
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.values import PlannedValue, intermediates


@dataclass(frozen=True, eq=False)
class Executed:
    """What a device executes.

    Attributes:
        block: The ops: of a region those on the arrays of one device, else those of the planned program, whose shardings say what a
            device has.
        meshes: Where named meshes are looked up.
        values: What the ops make. Those of a region are named `region %3`: they are no values of the plan.
        collectives: The ops of a region that are `plan.collectives`, in that order; none where XLA merges some that stand in the
            region, and none of a plan that is left to XLA's partitioner, which makes them.
    """

    block: Block
    meshes: Mapping[str, Mesh]
    values: Mapping[Value, PlannedValue]
    collectives: tuple[Op, ...] = ()


@Analysis
def collectives_of(plan: PlanRecord) -> tuple[Collective, ...]:
    """The collectives that a call runs; see `Plan.collectives`.

    Args:
        plan: The plan.
    """
    return tuple(p.collective for p in predicted_of(plan)) if plan.source is None else plan.source.collectives(plan)


def executed(plan: PlanRecord) -> Executed:
    """The program that a device executes under a plan; the region is made if it has not been.

    Args:
        plan: The plan.
    """
    if plan.source is None:
        return Executed(plan.program.main.body, plan.program.meshes, dict(plan.intermediates))
    local = plan.source.local_program(plan)
    values = {value: replace(planned, path=f"region {planned.path}") for value, planned in intermediates(local)}
    block = _region(local)
    ops = tuple(op for op in block.walk() if _kind(op) in KINDS)
    alike = [_kind(op) for op in ops] == [c.kind for c in collectives_of(plan)]
    return Executed(block, local.meshes, values, ops if alike else ())


def _region(local: Program) -> Block:
    """The body of what runs on every device; beside it a local program has constants only."""
    body = local.main.body  # on one device it is the region itself
    return next((op.regions[0] for op in body.ops if op.name == MANUAL_COMPUTATION), body)


def _kind(op: Op) -> str:
    return op.name.partition(".")[2]
