"""Layouts: shardings of values inside a region.

A layout is a `TensorSharding` over the region's mesh, all dimensions closed, all axes whole. Values are partial sums over its unreduced
axes. A dimension of n elements in k shards lies in blocks of ceil(n / k); the last blocks are padded, with arbitrary contents.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from shardy_py.dialect import AxisRef, DimensionSharding, Mesh, TensorSharding
from shardy_py.dialect.axis import Axes

Layout = TensorSharding

MESH = "region"
"""The name of the region's mesh in layouts."""


def replicated(rank: int) -> Layout:
    """The layout with the whole value on every device."""
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


def num_shards(axes: Iterable[AxisRef], mesh: Mesh) -> int:
    """Number of blocks of a dimension that is sharded over axes."""
    count = 1
    for axis in axes:
        count *= mesh.shape[axis.name]
    return count


def block(size: int, count: int) -> int:
    """Elements in each of `count` blocks of a dimension."""
    return -(-size // count)


def local_shape(shape: Sequence[int], of: Layout, mesh: Mesh) -> tuple[int, ...]:
    """The shape of a device's part."""
    return tuple(block(n, num_shards(dim.axes, mesh)) for n, dim in zip(shape, of.dims, strict=True))


def nests(size: int, outer: int, inner: int) -> bool:
    """Whether each of `outer` blocks of a dimension consists of `inner` whole blocks of `outer * inner`."""
    return outer == 1 or block(size, outer) == inner * block(size, outer * inner)


def names(axes: Iterable[AxisRef]) -> tuple[str, ...]:
    """Names of axes."""
    return tuple([axis.name for axis in axes])
