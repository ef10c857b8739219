"""The reshards of the explicit program of a plan: its collectives, grouped by movement."""

from __future__ import annotations

from dataclasses import replace

from shardy_py.dialect import TensorSharding
from shardy_py.dialect.format import format_axis
from shardy_py.ir import TensorType, Value
from shardy_py.ir.jax_collectives import COLLECTIVE_KINDS
from shardy_py.plan.analysis import Analysis
from shardy_py.plan.collective_axes import axis_refs_of
from shardy_py.plan.collectives import Collective
from shardy_py.plan.executed import collectives_of, explicit_of
from shardy_py.plan.explicit import RESULTS, Origin
from shardy_py.plan.movements import Movement
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.reshards import Reshard, primitive_of, reason_of
from shardy_py.plan.values import named_value
from shardy_py.rules.traits import CONSTRAINTS


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
