"""The program of one device; lists, costs, drawings and memory are read from it.

It is the region that our own partitioner makes of a plan. Under `lowering="jit"` XLA partitions, and the region stands for what XLA makes.
A plan without one, as of MLIR text, has its own program, with the reshards that Shardy makes explicit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardy_py.dialect import Mesh
from shardy_py.ir import Block, Op, Program, TensorType, Value
from shardy_py.ir.jax_collectives import COLLECTIVE_KINDS
from shardy_py.ir.types import local_bytes, local_shape
from shardy_py.passes.dataflow import MANUAL_COMPUTATION
from shardy_py.plan.collectives import KINDS, Collective, format_bytes, received_by
from shardy_py.plan.record import Analysis, PlanRecord
from shardy_py.plan.reshards import Explicit, Reshard
from shardy_py.plan.trips import with_trips
from shardy_py.plan.values import PlannedValue, in_backward_pass, intermediates, location_of, module_of, name_of

Transfer = tuple[Collective, Op | None]
"""One collective, and the op of the program that it is; None where XLA merges some, so that the op of each is unknown."""


@dataclass(frozen=True, eq=False)
class Executed:
    """The program of one device.

    Attributes:
        block: Its ops: of a region those on the arrays of one device, else those of the plan's program with Shardy's collectives, whose
            shardings say which piece a device has.
    """

    block: Block
    meshes: Mapping[str, Mesh]
    values: Mapping[Value, PlannedValue]
    transfers: tuple[Transfer, ...]


def remark_on(plan: PlanRecord) -> str:
    """What the figures of a plan are that XLA partitions; empty of one that runs as a region."""
    if plan.lowering == "shard_map":
        return ""
    ours = plan.active_partitioner is not None
    by = "our own partitioner would move" if ours else "Shardy's reshards move: our own partitioner has no region of it"
    return f"XLA partitions: at least {format_bytes(received_by(collectives_of(plan)))} a device, as {by}; plan.compile_for() asks XLA"


@Analysis
def collectives_of(plan: PlanRecord) -> tuple[Collective, ...]:
    """The collectives that a call runs; see `Plan.collectives`."""
    if plan.active_partitioner is None:
        return tuple(collective for collective, _ in executed(plan).transfers)
    return plan.active_partitioner.collectives(plan)


@Analysis
def executed(plan: PlanRecord) -> Executed:
    """The program of one device under a plan; the region is made if it has not been."""
    if plan.active_partitioner is None:
        explicit, planned = explicit_of(plan), dict(plan.intermediates)
        values = {copy: planned[value] for copy, value in explicit.values.items() if value in planned}
        program, names = explicit.program, {copy: plan.names[value] for copy, value in explicit.values.items() if value in plan.names}
        transfers = (*explicit.collectives, *user_collectives(program, names))
        return Executed(program.main.body, program.meshes, values, transfers)
    local = plan.active_partitioner.local_program(plan)
    values = dict(intermediates(local, "region %"))
    block = _region(local)
    steps = [op for op in block.walk() if _kind(op) in KINDS]
    collectives = collectives_of(plan)
    are_alike = [_kind(op) for op in steps] == [c.kind for c in collectives]
    transfers = tuple(zip(collectives, steps if are_alike else [None] * len(collectives)))
    return Executed(block, local.meshes, values, transfers)


def _region(local: Program) -> Block:
    """The body that runs on every device; beside it a local program has constants only."""
    body = local.main.body  # on one device it is the region itself
    return next((op.regions[0] for op in body.ops if op.name == MANUAL_COMPUTATION), body)


def _kind(op: Op) -> str:
    return op.name.partition(".")[2]


@Analysis
def explicit_of(plan: PlanRecord) -> Explicit:
    """The program of a plan without a region: with the movements that Shardy makes explicit."""
    from shardy_py.opt.reshards import explicit_program

    return explicit_program(plan.program, plan.names, tuple(output.path for output in plan.outputs))


def user_collectives(program: Program, names: Mapping[Value, str]) -> Iterator[Transfer]:
    """The collectives in the `shard_map`s of a plan's program."""
    mesh = next(iter(program.meshes.values()), None)
    for op, trips, _ in with_trips(program.main.body):
        if mesh is None or op.name not in USER_COLLECTIVES:
            continue
        around = [each.attributes["manual_axes"] for each in op.outward() if each.name == MANUAL_COMPUTATION]
        manual = set(itertools.chain.from_iterable(around))
        axes = _axes_of(op, [axis for axis in mesh.shape if axis in manual], mesh.shape)
        group, value = math.prod(mesh.shape[axis] for axis in axes), op.operands[0]
        size = local_bytes(value.type, value.sharding, program.meshes)
        if group > 1 and size:
            shape = local_shape(value.type, value.sharding, program.meshes)
            kind = USER_COLLECTIVES[op.name]
            collective = Collective(
                kind,
                axes,
                group,
                size,
                trips,
                value.type.dtype,
                shape,
                name_of(value, names),
                op.primitive or op.name.rpartition(".")[2],
                location_of(program, op),
                module_of(program, op),
                in_backward_pass(program, op),
            )
            yield collective, op


USER_COLLECTIVES = {
    "stablehlo.all_gather": "all_gather",
    "stablehlo.all_reduce": "all_reduce",
    "stablehlo.all_to_all": "all_to_all",
    "stablehlo.collective_broadcast": "collective_permute",
    "stablehlo.collective_permute": "collective_permute",
    "stablehlo.reduce_scatter": "reduce_scatter",
}
"""Op -> kind of collective."""


def _axes_of(op: Op, manual: Sequence[str], sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The axes that a collective is over.

    A gather and a scatter tell the size of their groups; the fewest axes of this size, the last ones, are taken. Others are taken to be
    over all manual axes.
    """
    axes = [axis for axis in manual if sizes.get(axis, 1) > 1]
    before, after = op.operands[0].type.size, op.results[0].type.size
    group = max(before, after) // max(1, min(before, after))
    if USER_COLLECTIVES[op.name] in ("all_gather", "reduce_scatter"):
        for count in range(1, len(axes) + 1):
            for subset in itertools.combinations(reversed(axes), count):
                if math.prod(sizes[axis] for axis in subset) == group:
                    return tuple(reversed(subset))
    return tuple(axes)


@Analysis
def reshards_of(plan: PlanRecord) -> tuple[Reshard, ...]:
    """The reshards that a call runs, one for each of `plan.collectives`; without a region those of Shardy."""
    if plan.active_partitioner is None:
        return explicit_of(plan).reshards
    return tuple(Reshard(TensorType(c.shape, c.dtype), None, None, (c,), _reason(c)) for c in collectives_of(plan))


def _reason(collective: Collective) -> str:
    """The reason of a collective of a region.

    That of a sum does not say of which op: ops that are linear pass its parts on, and an edit may add one.
    """
    name = collective.primitive
    if name in COLLECTIVE_KINDS:
        return f"{name} in the shard_map"
    if collective.kind in ("all_reduce", "reduce_scatter"):
        return f"reduction over {','.join(collective.axes)}"
    return f"operand of {name}" if name else "function result"
