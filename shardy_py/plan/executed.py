"""The program that a device executes under a plan; lists, costs, drawings and memory are read from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.dialect.format import format_axis
from shardy_py.ir import Block, Op, Program, TensorType, Value
from shardy_py.ir.jax_collectives import COLLECTIVE_KINDS
from shardy_py.passes.dataflow import MANUAL_COMPUTATION
from shardy_py.plan.collectives import KINDS, Collective, Movement, axis_refs_of
from shardy_py.plan.explicit import RESULTS, Explicit, Origin, Transfer
from shardy_py.plan.jit_program import jit_program_of
from shardy_py.plan.partitioner import partition
from shardy_py.plan.prediction.loops import as_xla_inlines, as_xla_propagates
from shardy_py.plan.record import Analysis, PlanRecord
from shardy_py.plan.reshards import Reshard, primitive_of, reason_of
from shardy_py.plan.values import PlannedValue, intermediates, name_of, named_value
from shardy_py.rules.traits import CONSTRAINTS


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


@Analysis
def reshards_of(plan: PlanRecord) -> tuple[Reshard, ...]:
    """The reshards that a call runs; together they are `plan.collectives`."""
    if plan.active_partitioner is not None:
        return tuple(_of_shard(plan, _region_reason(c), [c]) for c in collectives_of(plan))
    return tuple(_reshard(plan, origin, collectives) for origin, collectives in _movements(plan).items())


@Analysis
def origins_of(plan: PlanRecord) -> tuple[Origin | None, ...]:
    """The origin of each of `reshards_of`; None under `lowering="shard_map"`, where a movement is of arrays of the region."""
    return tuple(_movements(plan)) if plan.active_partitioner is None else (None,) * len(reshards_of(plan))


def moving_value(plan: PlanRecord, name: str, origin: Origin | None) -> Value | None:
    """The value of the plan's program that a movement is of; None where the plan does not list it, such as what a loop carries."""
    if origin is not None:
        return named_value(origin.value, plan.names)
    value, _ = plan.by_path.get(name, (None, None))
    return value if isinstance(value, Value) else None


def _movements(plan: PlanRecord) -> dict[Origin, list[Collective]]:
    movements: dict[Origin, list[Collective]] = {}
    for transfer in explicit_of(plan).transfers:
        assert transfer.origin is not None  # the partitioner gives each its own
        movements.setdefault(transfer.origin, []).append(transfer.collective)
    return movements


def _of_shard(plan: PlanRecord, reason: str, collectives: list[Collective]) -> Reshard:
    """A movement of the arrays of one device."""
    first = collectives[0]
    return _measured(plan, collectives, Reshard(first.value, TensorType(first.shape, first.dtype), None, None, (), 0, reason))


def _region_reason(collective: Collective) -> str:
    """The reason of a collective of a region.

    That of a sum does not say of which op: ops that are linear pass its parts on, and an edit may add one.
    """
    name = collective.primitive
    if name in COLLECTIVE_KINDS:
        return f"{name} in the shard_map"
    if collective.kind in ("all_reduce", "reduce_scatter"):
        return f"reduction over {','.join(collective.axes)}"
    return f"operand of {name}" if name else "function result"


def _reshard(plan: PlanRecord, origin: Origin, collectives: list[Collective]) -> Reshard:
    """A movement that XLA's partitioner inserts."""
    op, source, target, first = origin.op, origin.source, origin.target, collectives[0]
    name = primitive_of(op)
    if source is None and target is None:
        return replace(_of_shard(plan, f"{name} in the shard_map", collectives), depth=origin.depth)
    if origin.operand != RESULTS:
        returned = plan.outputs[origin.operand].path if op.name == "func.return" else ""
        reason = "sharding constraint" if op.name in CONSTRAINTS else reason_of(op, returned)
    elif first.kind == "all_reduce":
        axes = axis_refs_of(first, plan.mesh.shape)
        reason = f"reduction in {name} over {','.join(map(format_axis, axes))}"
        if source is not None:
            source = TensorSharding(source.mesh, source.dims, source.replicated, axes)
    else:
        reason = f"result of {name}"
    return _measured(plan, collectives, Reshard("", origin.value.type, source, target, (), 0, reason, depth=origin.depth))


def _measured(plan: PlanRecord, collectives: list[Collective], reshard: Reshard) -> Reshard:
    """A reshard with the figures of its collectives."""
    first = collectives[0]
    steps = tuple(Movement(c.kind, axis_refs_of(c, plan.mesh.shape), c.group_size, c.received_bytes) for c in collectives)
    size, place = sum(step.bytes_per_device for step in steps), first.location
    return replace(
        reshard, value=first.value, collectives=steps, bytes_per_device=size, location=place, primitive=first.primitive, trips=first.trips
    )
