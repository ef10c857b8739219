"""Layouts: how a value lies on the devices inside a region.

A layout is a `TensorSharding` over the region's mesh, all dimensions closed, all axes whole. Its unreduced axes are those over
which partial sums wait to be added up. A dimension of n elements that is cut into w ways lies in blocks of ceil(n / w); what is behind
its end in the last blocks is arbitrary.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from shardy_py.dialect import AxisRef, DimensionSharding, Mesh, TensorSharding

Layout = TensorSharding
Axes = tuple[AxisRef, ...]

MESH = "region"
"""What layouts call the region's mesh."""


def replicated(rank: int) -> Layout:
    """All of the value on every device."""
    return TensorSharding.closed(MESH, rank)


def layout(dims: Iterable[Sequence[AxisRef]], partial: Iterable[AxisRef] = ()) -> Layout:
    """A layout from the axes of its dimensions."""
    return _layout(tuple(map(tuple, dims)), tuple(sorted(partial)) if partial else ())


@functools.lru_cache(maxsize=1 << 16)
def _layout(dims: tuple[Axes, ...], partial: Axes) -> Layout:
    return TensorSharding(MESH, tuple(map(DimensionSharding, dims)), (), partial)


def partial(base: Layout, axes: Iterable[AxisRef]) -> Layout:
    """The same dimensions, with the given axes unreduced."""
    return TensorSharding(MESH, base.dims, (), tuple(sorted(axes)))


def dim_axes(of: Layout) -> tuple[Axes, ...]:
    """The axes of each dimension."""
    return tuple(dim.axes for dim in of.dims)


def ways(axes: Iterable[AxisRef], mesh: Mesh) -> int:
    """Into how many blocks axes cut a dimension."""
    count = 1
    for axis in axes:
        count *= mesh.shape[axis.name]
    return count


def block(size: int, count: int) -> int:
    """Elements in a block of a dimension that is cut into `count`."""
    return -(-size // count)


def local_shape(shape: Sequence[int], of: Layout, mesh: Mesh) -> tuple[int, ...]:
    """The shape of a device's part."""
    return tuple(block(n, ways(dim.axes, mesh)) for n, dim in zip(shape, of.dims, strict=True))


def nests(size: int, outer: int, inner: int) -> bool:
    """Whether blocks of a dimension cut into `outer` are made up of whole blocks of it cut into `outer * inner`."""
    return outer == 1 or block(size, outer) == inner * block(size, outer * inner)


def names(axes: Iterable[AxisRef]) -> tuple[str, ...]:
    """Names of axes."""
    return tuple([axis.name for axis in axes])
