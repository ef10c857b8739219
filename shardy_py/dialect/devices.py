"""Devices of a mesh along its axes: the part of a dimension that each has, and the groups that differ along some axes alone."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence

from shardy_py.dialect.axis import Axes, AxisRef, bounds, set_difference
from shardy_py.dialect.mesh import Mesh


def device_ids(mesh: Mesh) -> tuple[int, ...]:
    """Device of each position in a mesh."""
    return mesh.device_ids or tuple(range(mesh.size))


def shard_index(position: int, axes: Sequence[AxisRef], mesh: Mesh, *, from_minor: bool = False) -> int:
    """The part of a dimension, cut by axes from major to minor, at a position in a mesh.

    Args:
        position: Counted over all axes of the mesh.
        from_minor: Whether parts of an axis count from its minor end, so that `"x":(1)2` alternates from one device along x to the
            next. Shardy's partitioner numbers what devices have in this way, though for its replica groups `"x":(1)2` is the major
            half: programs that mix both compute something else. Later versions of Shardy have this right.
    """
    index = 0
    for axis in axes:
        begin, end = bounds(axis, mesh)
        size = mesh.shape[axis.name]
        number = mesh.axis_index(axis.name)
        along = position // math.prod(other.size for other in mesh.axes[number + 1 :]) % size
        index = index * (end // begin) + along // (begin if from_minor else size // end) % (end // begin)
    return index


def remaining_axes(axes: Iterable[AxisRef], mesh: Mesh) -> Axes:
    """The axes of a mesh, or the parts of them, that are not among some axes, in the order of the mesh."""
    return set_difference(map(AxisRef, mesh.axis_names), axes, mesh)


@functools.lru_cache(maxsize=4096)
def device_groups(axes: Axes, mesh: Mesh) -> tuple[tuple[int, ...], ...]:
    """The devices that differ along some axes alone, group by group.

    Example:
        >>> device_groups((AxisRef("x"),), Mesh([("x", 2), ("y", 2)]))
        ((0, 2), (1, 3))
    """
    others = remaining_axes(axes, mesh)
    groups: dict[int, dict[int, int]] = {}
    for position, device in enumerate(device_ids(mesh)):
        groups.setdefault(shard_index(position, others, mesh), {})[shard_index(position, axes, mesh)] = device
    return tuple(tuple(group[i] for i in sorted(group)) for _, group in sorted(groups.items()))
