"""Layouts: per dimension the axes it is cut by, in parts that are not cut further, so that any two layouts can be compared."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence

from shardy_py.dialect import AxisRef, Mesh, TensorSharding
from shardy_py.dialect.axis import Axes, num_shards

Layout = tuple[Axes, ...]
"""Axes of each dimension, major to minor, in parts of prime size."""


@functools.cache
def parts(axis: AxisRef, mesh: Mesh) -> Axes:
    """An axis as parts of prime size, the smaller primes first.

    Example:
        >>> parts(AxisRef("x"), Mesh([("x", 4)]))
        ("x":(1)2, "x":(2)2)
    """
    size = axis.size_in(mesh)
    whole = mesh.shape[axis.name]
    primes: list[AxisRef] = []
    before = axis.pre_size or 1
    while size > 1:
        prime = next(p for p in range(2, size + 1) if size % p == 0)
        primes.append(AxisRef(axis.name) if prime == whole else AxisRef(axis.name, before, prime))
        before *= prime
        size //= prime
    return tuple(primes)


def mesh_of(shardings: Iterable[TensorSharding | None], meshes: Mapping[str, Mesh]) -> Mesh | None:
    """The mesh of some shardings; a single-device mesh, as callbacks have, only if there is no other."""
    mesh = None
    for sharding in shardings:
        if sharding is not None:
            mesh = sharding.mesh_in(meshes)
            if not mesh.is_maximal:
                return mesh
    return mesh


def layout_of(sharding: TensorSharding | None, rank: int, mesh: Mesh) -> Layout:
    """The layout of a sharding; None is replicated."""
    if sharding is None:
        return ((),) * rank
    cut = (tuple(p for axis in dim.axes for p in parts(axis, mesh)) for dim in sharding.dims[:rank])
    return (*cut, *((),) * (rank - sharding.rank))


def all_axes(layout: Layout) -> Axes:
    """The parts of axes that a layout uses."""
    return tuple(axis for dim in layout for axis in dim)


def local_shape(shape: Sequence[int], layout: Sequence[Axes], mesh: Mesh) -> tuple[int, ...]:
    """The shape of the largest piece."""
    return tuple(-(-n // num_shards(dim, mesh)) for n, dim in zip(shape, layout))


def to_factors(mapping: Sequence[Sequence[int]], layout: Layout, sizes: Sequence[int], mesh: Mesh) -> dict[int, Axes]:
    """Deals the axes of each dimension out to its factors, major to minor; an axis that does not fit ends the dealing."""
    dealt: dict[int, Axes] = {}
    for factors, axes in zip(mapping, layout):
        if len(factors) == 1:
            dealt[factors[0]] = axes
            continue
        left = list(axes)
        for factor in factors:
            axes_of_factor: list[AxisRef] = []
            room = sizes[factor]
            while left and room % (n := left[0].size_in(mesh)) == 0:
                axes_of_factor.append(left.pop(0))
                room //= n
            dealt[factor] = tuple(axes_of_factor)
            if room > 1:
                left = []
    return dealt


def from_factors(mapping: Sequence[Sequence[int]], axes: Sequence[Axes], sizes: Sequence[int], mesh: Mesh) -> Layout:
    """The layout of a tensor from the axes of its factors; a factor minor to one that is not cut to pieces of 1 cannot have any."""
    return tuple(
        axes[factors[0]] if len(factors) == 1 else joined([axes[f] for f in factors], [sizes[f] for f in factors], mesh)
        for factors in mapping
    )


def joined(axes: Sequence[Axes], sizes: Sequence[int], mesh: Mesh) -> Axes:
    """The axes of one dimension from the axes and sizes of its factors, major to minor."""
    dim: Axes = ()
    for cut, size in zip(axes, sizes):
        dim += cut
        if num_shards(cut, mesh) < size:
            break
    return dim
