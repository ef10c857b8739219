"""Rewrites axes of a mesh as parts of the axes of another mesh over the same devices in the same order."""

from __future__ import annotations

import math
from collections.abc import Iterable

from shardy_py.dialect.axis import AxisRef, num_shards, reduced_like
from shardy_py.dialect.mesh import Mesh
from shardy_py.dialect.sharding import DimensionSharding, TensorSharding


def regrouped_axes(axes: Iterable[AxisRef], mesh: Mesh, onto: Mesh) -> tuple[AxisRef, ...] | None:
    """The parts of a mesh's axes that cut devices as axes of another mesh do; None where no parts do.

    Example:
        >>> turned, mesh = Mesh((("x", 4), ("y", 2))), Mesh((("x", 2), ("y", 4)))
        >>> [str(axis) for axis in regrouped_axes([AxisRef("x")], turned, mesh)]
        ['"x"', '"y":(1)2']
    """
    if mesh.size != onto.size:
        return None
    regrouped: list[AxisRef] = []
    for axis in axes:
        low, high = _strides(axis, mesh)
        parts = [part for name in onto.axis_names if (part := _overlap(name, onto, low, high)) is not None]
        if num_shards(parts, onto) * low != high:
            return None
        regrouped += parts
    return tuple(regrouped)


def regrouped(sharding: TensorSharding, mesh: Mesh, onto: Mesh, name: str) -> TensorSharding | None:
    """A sharding over another mesh that puts the same elements on every device; None where there is none."""
    dims: list[DimensionSharding] = []
    for dim in sharding.dims:
        axes = regrouped_axes(dim.axes, mesh, onto)
        if axes is None:
            return None
        dims.append(dim.with_axes(axes))
    replicated, unreduced = (regrouped_axes(part, mesh, onto) for part in (sharding.replicated, sharding.unreduced))
    if replicated is None or unreduced is None:
        return None
    return TensorSharding(name, tuple(dims), replicated, reduced_like(unreduced, sharding.unreduced))


def _strides(axis: AxisRef, mesh: Mesh) -> tuple[int, int]:
    """The numbers of devices between neighbours along an axis, and from one round of it to the next."""
    minor = math.prod(mesh.axis_size(name) for name in mesh.axis_names[mesh.axis_index(axis.name) + 1 :])
    if axis.pre_size is None or axis.size is None:
        return minor, minor * mesh.axis_size(axis.name)
    high = minor * mesh.axis_size(axis.name) // axis.pre_size
    return high // axis.size, high


def _overlap(name: str, mesh: Mesh, low: int, high: int) -> AxisRef | None:
    """The part of an axis between two strides; None where there is none, or the strides do not divide it."""
    inner, outer = _strides(AxisRef(name), mesh)
    start, end = max(low, inner), min(high, outer)
    if start >= end or outer % end or end % start or start % inner:
        return None
    return AxisRef(name) if (start, end) == (inner, outer) else AxisRef(name, outer // end, end // start)
