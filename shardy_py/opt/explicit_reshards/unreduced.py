"""Ways between shardings with different unreduced axes, as lists of collectives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardy_py.dialect import AxisRef, AxisRefList, ListOfAxisRefLists, Mesh, TensorSharding
from shardy_py.dialect.axis import (
    REDUCTIONS,
    Axes,
    is_strict_prefix,
    reduced_like,
    reduction_of,
    set_difference,
    sort_and_merge,
    suffix_without_overlap,
)
from shardy_py.errors import ShardyError

RESHARD = "sdy.reshard"
ALL_REDUCE = "sdy.all_reduce"
KINDS: Mapping[str, str] = {"stablehlo.add": "sum", "stablehlo.maximum": "max", "stablehlo.minimum": "min"}
"""The op in a reduction's body -> how parts of it are combined."""


@dataclass(frozen=True)
class Insertion:
    """An op to insert: its name, its attributes and the sharding of its result."""

    name: str
    sharding: TensorSharding
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])


def unreduced_of(sharding: TensorSharding | None) -> Axes:
    """The unreduced axes of a sharding, none where it is missing."""
    return () if sharding is None else sharding.unreduced


def all_reduce(axes: Axes, sharding: TensorSharding, reduction: str = REDUCTIONS[0]) -> Insertion:
    """The all-reduce along some axes that ends in a sharding."""
    kind = REDUCTIONS.index(reduction)
    return Insertion(ALL_REDUCE, sharding, {"reduction_axes": AxisRefList(axes)} | ({"reduction_op": kind} if kind else {}))


def reduce_to(source: TensorSharding | None, target: TensorSharding | None, meshes: Mapping[str, Mesh]) -> list[Insertion]:
    """The all-reduce of the unreduced axes that `target` lacks; empty if it has all. Raises ShardyError if the meshes differ."""
    if source is None or not source.unreduced:
        return []
    mesh = _mesh_of_both(source, target, meshes)
    axes = set_difference(source.unreduced, () if target is None else target.unreduced, mesh)
    if not axes:
        return []
    remaining = sort_and_merge(set_difference(source.unreduced, axes, mesh), mesh)
    rest = with_unreduced(source, reduced_like(remaining, source.unreduced))
    return [all_reduce(sort_and_merge(axes, mesh), rest, reduction_of(source.unreduced))]


def more_unreduced(source: TensorSharding | None, target: TensorSharding | None, meshes: Mapping[str, Mesh]) -> list[Insertion]:
    """The way to a sharding with unreduced axes that the source lacks; empty where it has them all.

    Where a dimension gives up its last axes and they become unreduced, nothing moves (`sdy.sharded_to_unreduced`). The
    other dimensions are resharded before. Unreduced axes that cut no dimension were replicated
    (`sdy.replicated_to_unreduced`). Raises ShardyError if they are over different meshes.

    Example:
        `[{"y"}, {"z"}]` to `[{}, {}], unreduced={"x", "y"}` is a reshard to `[{"y"}, {}]`, then `"x"` from replicated to
        unreduced, then `"y"` from sharded to unreduced.
    """
    if source is None or target is None or not target.unreduced:
        return []
    mesh = _mesh_of_both(source, target, meshes)
    added = set_difference(target.unreduced, source.unreduced, mesh)
    if not added:
        return []
    lost = [_lost_axes(old.axes, new.axes, added, mesh) for old, new in zip(source.dims, target.dims, strict=True)]
    from_dims = tuple(axis for axes in lost for axis in axes)
    replicated = sort_and_merge(set_difference(added, from_dims, mesh), mesh)
    dims = tuple(old if axes else new for old, new, axes in zip(source.dims, target.dims, lost, strict=True))
    steps: list[Insertion] = []
    before = source.with_dims(dims)
    if not before.are_dim_axes_equal(source):
        steps.append(Insertion(RESHARD, before))
    if replicated:
        unreduced = sort_and_merge((*source.unreduced, *replicated), mesh)
        before = TensorSharding(source.mesh, dims, target.replicated, reduced_like(unreduced, target.unreduced))
        steps.append(Insertion("sdy.replicated_to_unreduced", before, {"axes": AxisRefList(replicated)}))
    if from_dims:
        steps.append(Insertion("sdy.sharded_to_unreduced", target, {"axes": ListOfAxisRefLists(lost)}))
    return steps


def with_unreduced(sharding: TensorSharding, axes: Axes) -> TensorSharding:
    """The sharding with other unreduced axes."""
    return TensorSharding(sharding.mesh, sharding.dims, sharding.replicated, axes)


def _mesh_of_both(source: TensorSharding, target: TensorSharding | None, meshes: Mapping[str, Mesh]) -> Mesh:
    mesh = source.mesh_in(meshes)
    if target is not None and target.mesh_in(meshes) is not mesh:
        raise ShardyError(
            "source and user shardings must have the same mesh",
            where=f"{source} and {target}",
            why="unreduced axes of one mesh say nothing about another",
            fix="reduce the value before it moves to another mesh",
        )
    return mesh


def _lost_axes(old: Axes, new: Axes, added: Axes, mesh: Mesh) -> Axes:
    """The last axes of a dimension, if all that it loses becomes unreduced; else none."""
    if not is_strict_prefix(new, old):
        return ()
    lost: list[AxisRef] = list(old[len(new) :])
    if new and new[-1] is not old[len(new) - 1]:
        part = suffix_without_overlap(old[len(new) - 1], new[-1], mesh)
        assert part is not None
        lost.insert(0, part)
    return () if set_difference(lost, added, mesh) else tuple(lost)
