"""Checks of values of the dialect against meshes and shapes, in Shardy's order and words.

A `Mesh` checks itself when it is made. A sharding or a rule is checked here, because only here is it known which mesh
its names mean and which tensors it describes. `what` of an error is what Shardy says; the rest is added.

Source: verifiers.cc in Shardy's dialect directory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from shardy_py.dialect.axis import AxisRef, can_merge, overlaps
from shardy_py.dialect.mesh import Mesh
from shardy_py.dialect.rule import OpShardingRule
from shardy_py.dialect.sharding import DimensionSharding, TensorSharding
from shardy_py.errors import DialectError, ShardyError

Shape = Sequence[int]


def verify_sharding(
    sharding: TensorSharding,
    shape: Shape | None,
    mesh: Mesh | Mapping[str, Mesh],
    manual_axes: Iterable[str] = (),
) -> None:
    """Checks that a sharding suits a tensor and a mesh. A dimension's size need not divide.

    Raises DialectError if the mesh is unknown; the rank differs; a priority stands on a dimension that is empty and closed; an axis is
    unknown, used twice, or bound by a manual computation; neighbouring sub-axes should be one; replicated or unreduced axes are not in mesh
    order; or sub-axes are malformed or overlap.
    """
    if isinstance(mesh, Mapping):
        over = sharding.mesh_in(mesh)
    else:
        over = mesh if isinstance(sharding.mesh, str) else sharding.mesh
    try:
        if over.is_maximal:
            _verify_has_no_dims(sharding)
            return
        _verify_rank(sharding, shape)
        _verify_axes(sharding, over)
    except ShardyError as error:
        error.at(f"sharding {sharding.text(short=True)}")
        raise
    _verify_free(sharding, manual_axes)


def verify_rule(rule: OpShardingRule, operand_shapes: Sequence[Shape], result_shapes: Sequence[Shape]) -> None:
    """Raises DialectError if a sharding rule does not suit an op. Products of factor sizes are not compared with dimension sizes."""
    for fault in _faults(rule, operand_shapes, result_shapes):
        raise DialectError("the sharding rule does not suit the op", where=f"sharding rule {rule.text(short=True)}", why=fault)


def _faults(rule: OpShardingRule, operand_shapes: Sequence[Shape], result_shapes: Sequence[Shape]) -> Iterator[str]:
    """What is wrong with a rule; each check takes for granted that those before it found nothing."""
    factors = set(range(rule.num_factors))
    for mappings, shapes in ((rule.operand_mappings, operand_shapes), (rule.result_mappings, result_shapes)):
        if [*map(len, mappings)] != [*map(len, shapes)]:
            yield "it needs one mapping for each operand and each result, with one entry for each dimension"
    tensors = [[factor for dim in mapping for factor in dim] for mapping in rule.mappings]
    if not all(dim for mapping in rule.mappings for dim in mapping):
        yield "each dimension needs a factor"
    if factors != set(itertools.chain(*tensors)):
        yield "each factor needs a size, and a dimension that has it"
    if any(len(set(tensor)) < len(tensor) for tensor in tensors):
        yield "a tensor can have each factor only once"
    if any(len(dim) > 1 and any(rule.factor_sizes[factor] == 1 for factor in dim) for mapping in rule.mappings for dim in mapping):
        yield "a factor of size 1 must be alone in its dimension"
    kinds = (rule.reduction, rule.need_replication, rule.permutation)
    if any(list(listed) != sorted(factors.intersection(listed)) for listed in (*kinds, rule.blocked_propagation)):
        yield "lists of factors must be sorted, without repetitions, and of factors that have a size"
    if sum(map(len, kinds)) != len(set(itertools.chain(*kinds))):
        yield "a factor can be only one of reduction, need_replication and permutation"
    if not set(rule.reduction).isdisjoint(itertools.chain(*tensors[len(operand_shapes) :])):
        yield "a factor that is reduced over cannot be in results"


def _verify_has_no_dims(sharding: TensorSharding) -> None:
    if sharding.rank or sharding.replicated or sharding.unreduced:
        raise DialectError(
            "a maximal sharding can only have a sharding with rank 0 and no replicated or unreduced axes.",
            fix=f"write <{sharding.mesh_text()}, []>",
        )


def _verify_rank(sharding: TensorSharding, shape: Shape | None) -> None:
    if shape is None:
        if sharding.rank or sharding.replicated or sharding.unreduced:
            raise DialectError(
                "non-shaped tensors can only have a sharding with rank 0 and no replicated or unreduced axes",
                fix=f"write <{sharding.mesh_text()}, []>",
            )
    elif sharding.rank != len(shape):
        raise DialectError(
            f"sharding doesn't match tensor rank: {sharding.rank} != {len(shape)}",
            why=f"the tensor has the shape {tuple(shape)}",
            fix="give one dimension sharding per dimension",
        )


def _verify_priority(i: int, dim: DimensionSharding) -> None:
    if dim.priority is None:
        return
    if dim.priority < 0:
        raise DialectError(f"dim {i} has a negative priority", fix="use 0 for the first round of propagation")
    if dim.is_empty and dim.is_closed:
        raise DialectError(
            f"dim {i} is empty and closed but has a priority",
            why="a closed dimension without axes has nothing to propagate",
            fix="open the dimension with '?', give it an axis, or take the priority off",
        )


def _verify_axes(sharding: TensorSharding, mesh: Mesh) -> None:
    seen: set[AxisRef] = set()
    for i, dim in enumerate(sharding.dims):
        _verify_priority(i, dim)
        _verify_axis_list(dim.axes, mesh, seen)
    for label, axes in (("replicated", sharding.replicated), ("unreduced", sharding.unreduced)):
        if not _are_ordered(axes, mesh):
            raise DialectError(f"{label} axes are not ordered w.r.t. mesh", why=f"the mesh is {mesh.text(short=True)}")
        _verify_axis_list(axes, mesh, seen)
    _verify_sub_axes(sharding.all_axes(), mesh)


def _are_ordered(axes: tuple[AxisRef, ...], mesh: Mesh) -> bool:
    """Whether each axis may follow the one before it; unknown axes come last, and two of them never in order."""
    for before, axis in itertools.pairwise(axes):
        if before.name == axis.name:
            if axis < before:
                return False
        elif mesh.has_axis(axis.name):
            if not mesh.has_axis(before.name) or mesh.axis_index(axis.name) < mesh.axis_index(before.name):
                return False
        elif not mesh.has_axis(before.name):
            return False
    return True


def _verify_axis_list(axes: tuple[AxisRef, ...], mesh: Mesh, seen: set[AxisRef]) -> None:
    before: AxisRef | None = None
    for axis in axes:
        if not mesh.has_axis(axis.name):
            raise DialectError(f'unknown axis name: "{axis.name}"', why=f"the mesh is {mesh.text(short=True)}")
        if axis in seen:
            raise DialectError(f"duplicate axis ref: {axis}", why="an axis can cut one dimension only, or be replicated, or unreduced")
        seen.add(axis)
        if before is not None and can_merge(before, axis):
            raise DialectError(f"two consecutive sub-axes can be merged: {before}, {axis}", fix="write them as one")
        before = axis


def _verify_sub_axes(axes: tuple[AxisRef, ...], mesh: Mesh) -> None:
    full = {axis.name for axis in axes if axis.is_full}
    first = {axis.name: i for i, axis in reversed(list(enumerate(axes))) if not axis.is_full}
    before: AxisRef | None = None
    for axis in sorted((axis for axis in axes if not axis.is_full), key=lambda axis: (first[axis.name], axis)):
        if axis.name in full:
            raise DialectError(f'both sub-axis and full-axis are used for axis name: "{axis.name}"', fix="use the sub-axes that are left")
        _verify_sub_axis(axis, mesh.axis_size(axis.name))
        if before is not None and overlaps(before, axis):
            raise DialectError(f"overlapping sub-axes: {before}, {axis}", fix="use each part of an axis once")
        before = axis


def verify_parts(axes: Iterable[AxisRef], mesh: Mesh) -> None:
    """Raises DialectError if a part of an axis is empty or does not come from splitting it; Shardy allows it in collectives."""
    for axis in axes:
        if not axis.is_full and mesh.has_axis(axis.name):
            _verify_part(axis, mesh.axis_size(axis.name))


def _verify_sub_axis(axis: AxisRef, full_size: int) -> None:
    _verify_part(axis, full_size)
    if axis.size == full_size:
        raise DialectError(f"sub-axis size is equal to the full axis size: {axis}", fix="write the full axis")


def _verify_part(axis: AxisRef, full_size: int) -> None:
    assert axis.pre_size is not None
    assert axis.size is not None
    if axis.pre_size < 1:
        raise DialectError(f"sub-axis pre-size must be at least 1: {axis}")
    if axis.size <= 1:
        raise DialectError(f"sub-axis sizes must be greater than 1: {axis}", fix="leave the sub-axis out")
    if full_size % (axis.pre_size * axis.size):
        raise DialectError(
            f"sub-axis next pre-size {axis.next_pre_size} doesn't divide the size of the full axis {full_size}: {axis}",
            why="sub-axes come from splitting an axis into factors of its size",
        )


def _verify_free(sharding: TensorSharding, manual_axes: Iterable[str]) -> None:
    bound = frozenset(manual_axes)
    for axis in sharding.all_axes():
        if axis.name in bound:
            raise DialectError(
                f'operates on axis "{axis.name}" which is already bound by a parent sdy.manual_computation op',
                where=f"sharding {sharding.text(short=True)}",
                why="inside the computation each device sees its own part along that axis already",
                fix="leave the axis out",
            )
