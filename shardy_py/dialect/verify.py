"""Checks of values of the dialect against meshes and shapes, in Shardy's order and words.

A `Mesh` checks itself when it is made. A sharding or a rule is checked here, because only here is it known which mesh
its names mean and which tensors it describes. `what` of an error is what Shardy says; the rest is added.

Source: verifiers.cc in Shardy's dialect directory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from shardy_py.dialect.axis import AxisRef, can_merge, overlaps
from shardy_py.dialect.mesh import Mesh
from shardy_py.dialect.rule import OpShardingRule, TensorMapping, factor_symbol
from shardy_py.dialect.sharding import DimensionSharding, TensorSharding, TensorShardingPerValue
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
    over = _mesh_of(sharding, mesh)
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


def verify_shardings(
    shardings: TensorShardingPerValue | Sequence[TensorSharding],
    shapes: Sequence[Shape | None],
    mesh: Mesh | Mapping[str, Mesh],
    manual_axes: Iterable[str] = (),
    what: str = "result",
) -> None:
    """Checks one sharding per value; an op without results may carry a single one without axes.

    Raises DialectError if the numbers differ, or one of the shardings does not suit its value.
    """
    items = shardings.shardings if isinstance(shardings, TensorShardingPerValue) else tuple(shardings)
    manual_axes = tuple(manual_axes)
    if not shapes and len(items) == 1 and items[0].is_fully_replicated:
        try:
            _verify_has_no_dims(items[0])
        except ShardyError as error:
            error.what = f"{what} 0 - {error.what}"
            raise
        return
    if len(items) != len(shapes):
        raise DialectError(
            f"{what} shardings don't match number of values: {len(items)} shardings vs {len(shapes)} values",
            fix=f"give {len(shapes)} shardings",
        )
    for i, (sharding, shape) in enumerate(zip(items, shapes, strict=True)):
        try:
            verify_sharding(sharding, shape, mesh, manual_axes)
        except ShardyError as error:
            error.what = f"{_numbered(what, i, len(shapes))} - {error.what}"
            raise


def verify_rule(rule: OpShardingRule, operand_shapes: Sequence[Shape], result_shapes: Sequence[Shape]) -> None:
    """Checks that a sharding rule suits an op. Products of factor sizes are not compared with dimension sizes.

    Raises DialectError if a number or a rank differs; a dimension has no factor, a factor twice, an unknown factor, or a factor of size 1
    beside others; a factor is not used; or a list of special factors is malformed.
    """
    try:
        used: set[int] = set()
        for what, mappings, shapes in (("operand", rule.operand_mappings, operand_shapes), ("result", rule.result_mappings, result_shapes)):
            if len(mappings) != len(shapes):
                raise DialectError(
                    f"number of {what}s and mappings must match: {len(shapes)} != {len(mappings)}",
                    fix=f"give one mapping for each of the {len(shapes)} {what}s",
                )
            for i, (mapping, shape) in enumerate(zip(mappings, shapes, strict=True)):
                used |= _verify_mapping(_numbered(what, i, len(shapes)), mapping, shape, rule.factor_sizes)
        for factor, size in enumerate(rule.factor_sizes):
            if factor not in used:
                raise DialectError(
                    f"has factor {factor_symbol(factor)}={size} that isn't used in operand and result mappings",
                    fix="leave the factor out, or give it to a dimension",
                )
        _verify_special_factors(rule)
    except ShardyError as error:
        error.at(f"sharding rule {rule.text(short=True)}")
        raise


def verify_manual_axes(
    shardings: TensorShardingPerValue | Sequence[TensorSharding],
    global_shapes: Sequence[Shape | None],
    local_shapes: Sequence[Shape | None],
    manual_axes: Sequence[str],
    mesh: Mesh | Mapping[str, Mesh],
    what: str = "operand",
) -> None:
    """Checks the operands, or the results, of a manual computation; the shardings themselves must be valid.

    Raises DialectError if the numbers differ; a manual axis is unknown or comes after a free one in a dimension; a dimension does not
    divide; or a local shape is not the global one divided by the manual axes.
    """
    items = shardings.shardings if isinstance(shardings, TensorShardingPerValue) else tuple(shardings)
    if len(global_shapes) != len(local_shapes):
        raise DialectError(
            f"number of op {what}s and region {what}s must match. "
            f"Op has {len(global_shapes)} op {what}s and {len(local_shapes)} region {what}s"
        )
    for i, (sharding, outer, inner) in enumerate(zip(items, global_shapes, local_shapes, strict=True)):
        over = _mesh_of(sharding, mesh)
        if outer is None or inner is None or over.is_maximal:
            continue
        expected: list[int] = []
        for d, (dim, size) in enumerate(zip(sharding.dims, outer, strict=True)):
            shards = _manual_shards(dim, manual_axes, over, f"{what} sharding at index {i}", d)
            if size > 0 and size % shards:
                raise DialectError(
                    f"{what} dimension size {size} is not divisible by the manual axes size {shards}",
                    where=f"dimension {d} of shape {tuple(outer)} under {sharding.text(short=True)}",
                    fix="pad the dimension, or take manual axes off it",
                )
            expected.append(size // shards if size > 0 else size)
        if tuple(inner) != tuple(expected):
            raise DialectError(
                f"{what} shape, corresponding sharding, and region {what} shape at index {i} must match. "
                f"Expected local shape {tuple(expected)}, actual local shape {tuple(inner)}"
            )
        for name in manual_axes:
            if not over.is_empty and not over.has_axis(name):
                raise DialectError(f'unknown manual axis: "{name}"', why=f"the mesh is {over.text(short=True)}")


def _mesh_of(sharding: TensorSharding, mesh: Mesh | Mapping[str, Mesh]) -> Mesh:
    if isinstance(mesh, Mapping):
        return sharding.mesh_in(mesh)
    return mesh if isinstance(sharding.mesh, str) else sharding.mesh


def _numbered(what: str, i: int, n: int) -> str:
    return what if n == 1 else f"{what} {i}"


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
    for before, axis in pairwise(axes):
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


def _verify_mapping(what: str, mapping: TensorMapping, shape: Shape, sizes: tuple[int, ...]) -> set[int]:
    if len(mapping) != len(shape):
        raise DialectError(f"{what} - mapping rank must match: {len(mapping)} != {len(shape)}", fix="give one entry per dimension")
    seen: set[int] = set()
    for dim in mapping:
        if not dim:
            raise DialectError(f"{what} - dim mapping must have at least one factor", fix="give the dimension a factor of its own")
        for factor in dim:
            if not 0 <= factor < len(sizes):
                raise DialectError(
                    f"{what} - expecting factor indices to be within 0<=...<num_factors; received: {factor}, num_factors: {len(sizes)}",
                    fix="give every factor a size",
                )
            if factor in seen:
                raise DialectError(f"{what} - cannot reuse factors for the same tensor value", fix="give each dimension its own factors")
            seen.add(factor)
            if sizes[factor] == 1 and len(dim) > 1:
                raise DialectError(
                    f"{what} - dim mapping can't have a factor of size 1 if there are multiple factors",
                    fix=f"leave out {factor_symbol(factor)}",
                )
    return seen


def _verify_special_factors(rule: OpShardingRule) -> None:
    for name in ("reduction", "need_replication", "permutation"):
        _verify_factor_list(name, getattr(rule, name), rule.num_factors)
    special = (*rule.reduction, *rule.need_replication, *rule.permutation)
    if len(set(special)) != len(special):
        raise DialectError("a factor can only be in one of the reduction, need replication, or permutation factor sets")
    _verify_factor_list("blocked_propagation", rule.blocked_propagation, rule.num_factors)
    in_results = {factor for mapping in rule.result_mappings for dim in mapping for factor in dim}
    if not in_results.isdisjoint(rule.reduction):
        raise DialectError("reduction factor cannot be in result mappings", why="a factor that is reduced over is gone from the results")


def _verify_factor_list(name: str, factors: tuple[int, ...], num_factors: int) -> None:
    if list(factors) != sorted(factors):
        raise DialectError("indices of special factors must be sorted", where=name)
    if len(set(factors)) != len(factors):
        raise DialectError("indices of special factors must be unique", where=name)
    for factor in (factors[-1:], factors[:1]):
        if factor and not 0 <= factor[0] < num_factors:
            raise DialectError(f"index must be less than {num_factors}, got: {factor[0]}", where=name)


def _manual_shards(dim: DimensionSharding, manual_axes: Sequence[str], mesh: Mesh, what: str, d: int) -> int:
    shards = 1
    free: AxisRef | None = None
    for axis in dim.axes:
        if axis.name not in manual_axes:
            free = free or axis
        elif free is not None:
            raise DialectError(
                f"{what} must have all manual axes come before free axes in its dimension sharding at index {d}. "
                f'Saw manual axis "{axis.name}" after free axis "{free.name}"'
            )
        else:
            shards *= axis.size_in(mesh)
    return shards
