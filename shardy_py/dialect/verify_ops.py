"""Checks of the ops of the SDY dialect that need only shardings, shapes and meshes, in Shardy's order and words.

An op is given as its parts, so that nothing here knows of programs; `shardy_py.ir.verifier` walks one and calls these.

Source: verifiers.cc in Shardy's dialect directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from shardy_py.dialect.axis import (
    Axes,
    AxisRef,
    add_axis_or_merge,
    is_suffix_of,
    overlaps,
    prefix_without_overlap,
    sort_and_merge,
)
from shardy_py.dialect.collectives import AllToAllParamList, AxisRefList, ListOfAxisRefLists
from shardy_py.dialect.direction import PropagationDirection
from shardy_py.dialect.mesh import Mesh
from shardy_py.dialect.sharding import TensorSharding
from shardy_py.dialect.verify import Shape, verify_axis_lists, verify_manual_axes, verify_sharding, verify_shardings
from shardy_py.errors import DialectError


def verify_collective(
    name: str,
    axes: Any,
    operand: TensorSharding | None,
    result: TensorSharding,
    shape: Shape | None,
    meshes: Mapping[str, Mesh],
    manual_axes: Iterable[str] = (),
) -> None:
    """Checks that the axes of a collective turn the sharding of its operand into that of its result.

    Raises DialectError if the operand has no sharding and must have one; the result's is not valid; meshes or ranks differ; or the axes are
    malformed or do not lead from one sharding to the other.

    Example:
        >>> x, none = (TensorSharding("m", [axes]) for axes in (["x"], []))
        >>> verify_collective("sdy.all_gather", ListOfAxisRefLists([["x"]]), x, none, (8,), {"m": Mesh([("x", 2)])})
    """
    collective = COLLECTIVES[name]
    if operand is None and not collective.may_lack_sharding:
        raise DialectError(
            "collective on operand without sharding",
            why="the op moves data from one sharding to another, so that both must be known",
            fix="give the operand a sharding",
        )
    verify_sharding(result, shape, meshes, manual_axes)
    over = result.mesh_in(meshes)
    if operand is None:
        operand = TensorSharding.closed(result.mesh, result.rank)
    from_mesh = operand.mesh_in(meshes)
    if collective.check is not None and from_mesh is not over:
        raise DialectError("result mesh does not match operand mesh", notes=(f"operand mesh: {from_mesh}",))
    if operand.rank != result.rank:
        raise DialectError(f"result sharding has rank {result.rank} but operand sharding has rank {operand.rank}")
    if collective.check is None:
        _verify_permute(operand, result, from_mesh, over)
    else:
        collective.check(axes, operand, result, over)


def verify_manual_computation(
    in_shardings: Sequence[TensorSharding],
    out_shardings: Sequence[TensorSharding],
    outside: tuple[Sequence[Shape | None], Sequence[Shape | None]],
    inside: tuple[Sequence[Shape | None], Sequence[Shape | None]],
    axes: Sequence[str],
    meshes: Mapping[str, Mesh],
    bound: Iterable[str] = (),
    texts: tuple[Sequence[Callable[[Shape], str]], Sequence[Callable[[Shape], str]]] | None = None,
) -> None:
    """Checks the shardings and manual axes of an `sdy.manual_computation` against its shapes; `bound` are those of outer ones."""
    bound = tuple(bound)
    verify_shardings(in_shardings, outside[0], meshes, bound, "operand")
    verify_shardings(out_shardings, outside[1], meshes, bound, "result")
    if axes:
        common: Mesh | None = None
        for sharding in (*in_shardings, *out_shardings):
            over = sharding.mesh_in(meshes)
            if common is None or common.is_empty:
                common = over
            elif over is not common and not over.is_empty:
                raise DialectError(
                    "all in and out shardings must be bound to the same mesh or an empty mesh.",
                    notes=(f"one mesh: {common}", f"another mesh: {over}"),
                )
        for name in axes:
            if common is not None and not common.has_axis(name):
                raise DialectError(f'unknown manual axis: "{name}"', why=f"the mesh is {common.text(short=True)}")
    for i, (what, shardings) in enumerate((("operand", in_shardings), ("result", out_shardings))):
        verify_manual_axes(shardings, outside[i], inside[i], axes, meshes, what, None if texts is None else texts[i])
    for name in axes:
        if name in bound:
            raise DialectError(
                f'operates on axis "{name}" which is already bound by a parent sdy.manual_computation op',
                why="each device sees its own part along that axis already",
                fix="leave the axis out of the inner manual axes",
            )


def verify_direction(direction: PropagationDirection) -> None:
    """Raises DialectError if an `sdy.propagation_barrier` allows both directions."""
    if direction is PropagationDirection.BOTH:
        raise DialectError(
            "cannot specify `BOTH` as the direction. Not blocking propagation direction makes the op redundant.",
            fix="allow FORWARD, BACKWARD or NONE, or leave the barrier out",
        )


def axes_after_gather(axes: Axes, gathered: Sequence[AxisRef], mesh: Mesh) -> Axes | AxisRef:
    """The axes of a dimension once some are taken from its end; the axis that is not at the end where one is not.

    Example:
        >>> axes_after_gather((AxisRef("x"), AxisRef("y")), (AxisRef("y", 2, 2),), Mesh([("x", 2), ("y", 4)]))
        ("x", "y":(1)2)
    """
    left = list(axes)
    for axis in reversed(gathered):
        if not left or not is_suffix_of(axis, left[-1], mesh):
            return axis
        last = left.pop()
        if last is not axis:
            prefix = prefix_without_overlap(last, axis)
            assert prefix is not None
            left.append(prefix)
    return tuple(left)


def axes_after_slice(axes: Axes, sliced: Sequence[AxisRef], mesh: Mesh) -> Axes:
    """The axes of a dimension once more are put at its end."""
    result = list(axes)
    for axis in sliced:
        add_axis_or_merge(result, axis, mesh)
    return tuple(result)


def _gathered(axes: Axes, gathered: Sequence[AxisRef], mesh: Mesh, what: str, dim: int) -> Axes:
    left = axes_after_gather(axes, gathered, mesh)
    if isinstance(left, AxisRef):
        raise DialectError(f"can't apply {what} axis {left} to operand sharding on dimension {dim}", why=f"it is cut by {_text(axes)}")
    return left


def _text(axes: Sequence[AxisRef]) -> str:
    return f"[{', '.join(map(str, axes))}]"


def _verify_dim(expected: Axes, result: TensorSharding, dim: int) -> None:
    if result.dims[dim].axes != expected:
        raise DialectError(
            f"result sharding doesn't match expected sharding {_text(expected)} on dimension {dim}", why=f"it is {result.text(short=True)}"
        )


def _verify_lists(axes: ListOfAxisRefLists, result: TensorSharding, mesh: Mesh) -> list[Axes]:
    lists = [item.axes for item in axes.lists]
    if len(lists) != result.rank:
        raise DialectError(f"result sharding has rank {result.rank} but collective axes has rank {len(lists)}")
    verify_axis_lists(lists, mesh)
    return lists


def _verify_gathering(axes: ListOfAxisRefLists, operand: TensorSharding, result: TensorSharding, mesh: Mesh, what: str) -> None:
    for dim, gathered in enumerate(_verify_lists(axes, result, mesh)):
        _verify_dim(_gathered(operand.dims[dim].axes, gathered, mesh, what, dim), result, dim)


def _verify_gather(axes: ListOfAxisRefLists, operand: TensorSharding, result: TensorSharding, mesh: Mesh) -> None:
    _verify_gathering(axes, operand, result, mesh, "gathering")


def _verify_slice(axes: ListOfAxisRefLists, operand: TensorSharding, result: TensorSharding, mesh: Mesh) -> None:
    for dim, sliced in enumerate(_verify_lists(axes, result, mesh)):
        _verify_dim(axes_after_slice(operand.dims[dim].axes, sliced, mesh), result, dim)


def _verify_all_to_all(params: AllToAllParamList, operand: TensorSharding, result: TensorSharding, mesh: Mesh) -> None:
    if not params.params:
        raise DialectError("parameter list is empty", fix="leave the op out")
    verify_axis_lists([param.axes for param in params.params], mesh)
    seen: set[int] = set()
    for param in params.params:
        for what, dim in (("source", param.source), ("target", param.target)):
            if not 0 <= dim < result.rank:
                raise DialectError(f"{what} dimension {dim} is out of range [0, {result.rank})")
        for dim in (param.source, param.target):
            if dim in seen:
                raise DialectError(f"overlapping source/target dimensions in all-to-all params: {dim}", fix="use several all-to-alls")
            seen.add(dim)
    sources = [param.source for param in params.params]
    for before, source in pairwise(sources):
        if source < before:
            raise DialectError(f"source dimensions are not sorted in ascending order: {source} appears after {before}")
    for param in params.params:
        source, target = param.source, param.target
        _verify_dim(_gathered(operand.dims[source].axes, param.axes, mesh, "all-to-all", source), result, source)
        _verify_dim(axes_after_slice(operand.dims[target].axes, param.axes, mesh), result, target)
    for dim, unchanged in enumerate(operand.dims):
        if dim not in seen:
            _verify_dim(unchanged.axes, result, dim)


def _verify_permute(operand: TensorSharding, result: TensorSharding, from_mesh: Mesh, mesh: Mesh) -> None:
    if not mesh.same_axes(from_mesh):
        raise DialectError("result mesh has different axes than operand mesh", notes=(f"operand mesh: {from_mesh}",))
    if operand.mesh != result.mesh and from_mesh.device_ids == mesh.device_ids:
        raise DialectError("result mesh name is different but same device ids as operand", notes=(f"operand mesh: {from_mesh}",))
    for dim, (old, new) in enumerate(zip(operand.dims, result.dims, strict=True)):
        before, after = old.shards(from_mesh), new.shards(mesh)
        if before != after:
            raise DialectError(f"sharded size of result doesn't match operand on dimension {dim}: {after} != {before}")


def _verify_free_of(axes: Axes, others: Iterable[AxisRef], message: str) -> None:
    others = tuple(others)
    for axis in axes:
        if any(overlaps(axis, other) for other in others):
            raise DialectError(message.format(axis))


def _verify_all_reduce(axes: AxisRefList, operand: TensorSharding, result: TensorSharding, mesh: Mesh) -> None:
    if not operand.is_equivalent(result):
        raise DialectError(
            "operand and result shardings are not equivalent",
            why=f"the operand has {operand.text(short=True)}, the result {result.text(short=True)}",
        )
    verify_axis_lists([axes.axes], mesh, ordered="reduction axes")
    within = "reduction axis {} overlaps with operand dimension sharding or replicated axes"
    _verify_free_of(axes.axes, (*operand.dim_axes(), *operand.replicated), within)
    _verify_free_of(axes.axes, result.unreduced, "reduction axis {} overlaps with result unreduced axes")


def _verify_sharded_to_unreduced(axes: ListOfAxisRefLists, operand: TensorSharding, result: TensorSharding, mesh: Mesh) -> None:
    _verify_gathering(axes, operand, result, mesh, "shard-to-unreduce")
    moved = [axis for item in axes.lists for axis in item.axes]
    _verify_unreduced(moved, operand, result, mesh, "sharded_to_unreduced_axes")


def _verify_replicated_to_unreduced(axes: AxisRefList, operand: TensorSharding, result: TensorSharding, mesh: Mesh) -> None:
    if operand.dims != result.dims:
        raise DialectError("input and output must share the same dimension shardings")
    if not axes.axes:
        raise DialectError("r2u axes must not be empty", fix="leave the op out")
    verify_axis_lists([axes.axes], mesh, ordered="r2u axes")
    _verify_free_of(axes.axes, operand.dim_axes(), "r2u axis {} overlaps with operand dimension sharding")
    _verify_free_of(axes.axes, operand.unreduced, "r2u axis {} overlaps with operand unreduced axes")
    _verify_unreduced(axes.axes, operand, result, mesh, "r2u_axes")


def _verify_unreduced(moved: Sequence[AxisRef], operand: TensorSharding, result: TensorSharding, mesh: Mesh, what: str) -> None:
    expected = sort_and_merge((*operand.unreduced, *moved), mesh)
    if result.unreduced != expected:
        raise DialectError(
            f"out_unreduced_axes should be in_unreduced_axes + {what}",
            why=f"these are {_text(expected)}, and the result has {_text(result.unreduced)}",
        )


Check = Callable[[Any, TensorSharding, TensorSharding, Mesh], None]


class CollectiveRule(NamedTuple):
    """The check of a collective."""

    check: Check | None
    """Checks `(axes, operand sharding, result sharding, mesh)`; None for the one op that may change the mesh."""
    may_lack_sharding: bool = False
    """Whether an operand without a sharding counts as replicated."""


COLLECTIVES: Mapping[str, CollectiveRule] = {
    "sdy.all_gather": CollectiveRule(_verify_gather),
    "sdy.all_reduce": CollectiveRule(_verify_all_reduce, may_lack_sharding=True),
    "sdy.all_slice": CollectiveRule(_verify_slice, may_lack_sharding=True),
    "sdy.all_to_all": CollectiveRule(_verify_all_to_all),
    "sdy.collective_permute": CollectiveRule(None),
    "sdy.reduce_scatter": CollectiveRule(_verify_slice, may_lack_sharding=True),
    "sdy.replicated_to_unreduced": CollectiveRule(_verify_replicated_to_unreduced),
    "sdy.sharded_to_unreduced": CollectiveRule(_verify_sharded_to_unreduced),
}
"""Name of a collective -> its check."""
