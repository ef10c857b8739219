"""How XLA's partitioner brings a value from one layout to another: `PartitionedHlo::Reshard` of xla/service/spmd/spmd_partitioner.cc."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from shardy_py.dialect import AxisRef, Mesh
from shardy_py.partition.layouts import Axes, Layout, all_axes, local_shape, size_of
from shardy_py.partition.xla_moves import replicates


@dataclass(frozen=True, slots=True)
class Move:
    """One collective.

    Attributes:
        kind: `all_gather`, `all_reduce`, `all_to_all` or `collective_permute`.
        axes: The axes it is over; none of a `collective_permute`, which is over all.
        shape: Shape of the operand on one device.
        scatters: Of an all_reduce whether each device keeps a piece of its own afterwards, so that a reduce-scatter would do.
    """

    kind: str
    axes: Axes
    shape: tuple[int, ...]
    scatters: bool = False

    @property
    def elements(self) -> int:
        """Elements of the operand on one device."""
        return math.prod(self.shape)


def moves(shape: tuple[int, ...], source: Layout, target: Layout, mesh: Mesh) -> tuple[Move, ...]:
    """The collectives from one layout of a value to another; slicing sends nothing.

    Where every dimension is cut into at least as many pieces before as afterwards, pieces are brought into order and gathered; where into
    at most as many, cut and brought into order; where axes move from one dimension to another, an all-to-all does it. Anything else gathers
    the whole value and cuts it again, which XLA calls an involuntary full rematerialization.

    Args:
        shape: The global shape.
        source: The layout before.
        target: The layout afterwards.
        mesh: The mesh.

    Example:
        >>> mesh = Mesh([("x", 2), ("y", 4)])
        >>> x, y = AxisRef("x"), AxisRef("y")
        >>> [move.kind for move in moves((8, 8), ((x,), ()), ((), (x,)), mesh)]
        ['all_to_all']
    """
    if source == target:
        return ()

    def local(layout: Layout) -> tuple[int, ...]:
        return local_shape(shape, layout, mesh)

    before, after = [size_of(dim, mesh) for dim in source], [size_of(dim, mesh) for dim in target]
    if before == after:
        return (Move("collective_permute", (), local(source)),)
    if all(s % d == 0 for s, d in zip(before, after)):
        gone = tuple(axis for dim, kept in zip(source, target) for axis in _behind(dim, size_of(kept, mesh), mesh))
        gather = Move("all_gather", gone, local(source))
        if all(dim[: len(kept)] == kept for dim, kept in zip(source, target)):
            return (gather,)
        return (Move("collective_permute", (), local(source)), gather)
    if all(d % s == 0 for s, d in zip(before, after)):
        if all(kept[: len(dim)] == dim for dim, kept in zip(source, target)):
            return ()
        return (Move("collective_permute", (), local(target)),)
    across = () if replicates(tuple(before), tuple(after), mesh.size) else _across(source, target, mesh, local)
    return across or (Move("all_gather", all_axes(source), local(source)),)


def _behind(dim: Axes, kept: int, mesh: Mesh) -> Axes:
    """The axes of a dimension that are behind so many pieces."""
    size, i = 1, 0
    while i < len(dim) and size < kept:
        size *= dim[i].size_in(mesh)
        i += 1
    return dim[i:]


def _across(source: Layout, target: Layout, mesh: Mesh, local: Callable[[Layout], tuple[int, ...]]) -> tuple[Move, ...]:
    """With axes that change dimensions; nothing where there is no way but through the whole value."""
    here = {axis: d for d, dim in enumerate(source) for axis in dim}
    there = {axis: d for d, dim in enumerate(target) for axis in dim}
    moved = [axis for axis in here if axis in there and there[axis] != here[axis]]
    gone = [axis for axis in here if axis not in there]
    if not moved:
        changed = [d for d, (s, t) in enumerate(zip(source, target)) if s != t]
        if len(changed) > 1:
            return ()
        d = changed[0]
        if size_of(source[d], mesh) < size_of(target[d], mesh):
            return (Move("collective_permute", (), local(target)),)
        return (Move("collective_permute", (), local(source)), Move("all_gather", tuple(gone), local(source)))
    if {here[axis] for axis in gone} & {here[axis] for axis in moved}:
        return ()
    current: list[list[AxisRef]] = [list(dim) for dim in source]
    found: list[Move] = []
    for axis in reversed(gone):
        if current[here[axis]][-1] != axis:
            return ()
        found.append(Move("all_gather", (axis,), local(tuple(map(tuple, current)))))
        current[here[axis]].pop()
    for axis, d in there.items():
        if axis not in here:
            current[d].append(axis)
    pairs: dict[tuple[int, int], list[AxisRef]] = {}
    for axis in moved:
        pairs.setdefault((here[axis], there[axis]), []).append(axis)
    for (d, e), axes in pairs.items():
        found.append(Move("all_to_all", tuple(axes), local(tuple(map(tuple, current)))))
        current[d] = [axis for axis in current[d] if axis not in axes]
        current[e] += axes
    if tuple(map(tuple, current)) != target:
        found.append(Move("collective_permute", (), local(tuple(map(tuple, current)))))
    return tuple(found)
