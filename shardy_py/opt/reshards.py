"""The reshards that Shardy makes explicit for the shardings of a plan, with reasons in the words of JAX."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.dialect.axis import Axes, num_shards, sort_and_merge
from shardy_py.dialect.collectives import AXES_OF, moved_axes
from shardy_py.dialect.format import format_axis
from shardy_py.ir import Op, Program, Value
from shardy_py.ir.types import local_bytes, local_shape
from shardy_py.opt.canonicalize import COLLECTIVES, RESHARDS, Canonicalize
from shardy_py.opt.insert_explicit_reshards import InsertExplicitReshards
from shardy_py.opt.reshard_to_collectives import RESHARD, ReshardToCollectives
from shardy_py.passes.clone import clone_program
from shardy_py.passes.collection import no_collection
from shardy_py.passes.dataflow import COMPUTATIONS, WHILE, get_sharding
from shardy_py.plan.collectives import KINDS, Collective
from shardy_py.plan.reshards import Explicit, Reshard, primitive_of, reason_of
from shardy_py.plan.trips import with_trips
from shardy_py.plan.values import in_backward_pass, location_of, module_of, name_of
from shardy_py.rules.traits import TERMINATORS

MOVING_OPS = frozenset((*AXES_OF, "sdy.collective_permute", "sdy.reshard"))
"""Ops that `collective_of` describes."""


def collective_of(op: Op, meshes: Mapping[str, Mesh]) -> Collective:
    """Describes a collective of the SDY dialect, without its origin."""
    value, source, target = op.operands[0], get_sharding(op.operands[0]), op.result.sharding
    mesh, kind, axes, group = None if target is None else target.mesh_in(meshes), op.name.removeprefix("sdy."), (), 1
    if mesh is not None:
        axes = _axes_of(op, mesh)
        group = num_shards(axes, mesh) if axes else mesh.size
    size = local_bytes(*(op.result.type, target) if kind == "reshard" else (value.type, source), meshes)
    shape = local_shape(value.type, source, meshes)
    return Collective(kind, tuple(map(format_axis, axes)), group, size, dtype=value.type.dtype, shape=shape)


def _axes_of(op: Op, mesh: Mesh) -> Axes:
    return sort_and_merge(moved_axes(op.attributes[AXES_OF[op.name]]), mesh) if op.name in AXES_OF else ()


@dataclass(eq=False, slots=True)
class _Origin:
    """The cause of a movement. It replaces the op's location, which passes copy to the collectives that they create."""

    value: str
    reason: str
    location: str
    primitive: str
    cause: Op


@dataclass(eq=False, slots=True)
class _Movement:
    """The ops of a movement."""

    ops: list[Op]
    depth: int
    trips: int | None


@no_collection()
def explicit_program(program: Program, names: Mapping[Value, str], results: tuple[str, ...]) -> Explicit:
    """A copy of a program with final shardings, with its data movements.

    Shardy's explicit collectives: `sdy-insert-explicit-reshards` in its full version, then reshards become collectives, and a reduction
    whose result is only sliced becomes a reduce-scatter. Collectives that the user wrote in a `shard_map` are not listed.
    """
    copy, mapping = clone_program(program)
    originals = dict(zip(copy.walk(), program.walk(), strict=True))
    copied_names = {mapping[value]: name for value, name in names.items() if value in mapping}
    inserted: list[tuple[Op, str, Op]] = []
    user_reshards = [op for op in copy.walk() if op.name == RESHARD]
    InsertExplicitReshards(enable_full_version=True).run(copy, record=lambda *entry: inserted.append(entry))
    inserted_ops = {op for op, _, _ in inserted}
    origins: list[tuple[Op, _Origin]] = []
    for op in user_reshards:
        if op.block is not None:
            primitive = op.primitive or "sharding_constraint"
            value = name_of(op.operands[0], copied_names, inserted_ops)
            origins.append((op, _Origin(value, "sharding constraint", location_of(copy, op), primitive, op)))
    for op, why, cause in inserted:
        reason = _reason(op, why, cause, results)
        value = op.operands[0]
        by = value.defining_op if cause.name in TERMINATORS else cause
        while by is not None and by in inserted_ops:
            by = by.operands[0].defining_op
        location = location_of(copy, by) if by is not None else location_of(copy, cause)
        origins.append((op, _Origin(name_of(value, copied_names, inserted_ops), reason, location, primitive_of(cause), cause)))
    for op, origin in origins:
        op.location = origin
    Canonicalize(enable_patterns=(RESHARDS,)).run(copy)
    ReshardToCollectives().run(copy)
    Canonicalize(enable_patterns=(COLLECTIVES,)).run(copy)
    moves: dict[_Origin, _Movement] = {}
    causes: dict[Op, Op] = {}
    for op, trips, depth in with_trips(copy.main.body):
        origin = op.location
        if isinstance(origin, _Origin):
            if op.name in MOVING_OPS:
                moves.setdefault(origin, _Movement([], depth, trips)).ops.append(op)
                causes[op] = originals.get(origin.cause, origin.cause)
            op.location = origin.cause.location
    reshards = tuple(_entry(origin, entry, copy) for origin, entry in moves.items())
    ops = (op for entry in moves.values() for op in entry.ops)
    pairs = zip((c for reshard in reshards for c in reshard.collectives), ops, strict=True)
    collectives = tuple((c, op) for c, op in pairs if c.kind in KINDS and c.operand_bytes)
    return Explicit(copy, {new: old for old, new in mapping.items()}, causes, reshards, collectives)


def _entry(origin: _Origin, group: _Movement, program: Program) -> Reshard:
    first, last = group.ops[0], group.ops[-1]
    scope = {"module": module_of(program, origin.cause), "backward": in_backward_pass(program, origin.cause)}
    names = {"value": origin.value, "primitive": origin.primitive, "location": origin.location, "trips": group.trips}
    collectives = tuple(replace(collective_of(op, program.meshes), **names, **scope) for op in group.ops)
    source, reason = get_sharding(first.operands[0]), origin.reason
    if collectives[0].kind in ("all_reduce", "reduce_scatter"):
        reason = f"{reason} over {','.join(collectives[0].axes)}"
        if source is not None and not source.unreduced:
            axes = _axes_of(first, source.mesh_in(program.meshes))
            source = TensorSharding(source.mesh, source.dims, source.replicated, axes)
    return Reshard(first.result.type, source, last.result.sharding, collectives, reason, group.depth)


def _reason(op: Op, why: str, cause: Op, results: tuple[str, ...]) -> str:
    """The reason that an op was inserted for, in the words of JAX."""
    name = primitive_of(cause)
    if cause.name != "func.return" and op.name == "sdy.all_reduce":
        return f"reduction in {name}"
    if why.endswith("makes it otherwise") and cause.name not in TERMINATORS and cause.name != WHILE and cause.name not in COMPUTATIONS:
        return f"result of {name}"
    index = next((i for user, i in _final_uses(op) if user is cause), None)
    return reason_of(cause, results[index] if index is not None and index < len(results) else "")


def _final_uses(op: Op) -> Collection[tuple[Op, int]]:
    """Uses of an inserted op's result, behind further ops inserted for the same use."""
    uses = op.results[0].uses
    while len(uses) == 1 and (user := next(iter(uses))[0]).name in MOVING_OPS:
        uses = user.results[0].uses
    return uses
