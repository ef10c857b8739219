"""Dimension shardings as factor shardings and back, for one op and its rule.

Follows `ShardingProjection` of the reference: the axes of a dimension are dealt out to its factors from the major to
the minor one; axes that no factor can take are its overflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from shardy_py.dialect.axis import Axes, AxisRef, add_axis_or_merge, merged, num_shards
from shardy_py.dialect.mesh import Mesh
from shardy_py.dialect.sharding import DimensionSharding, TensorSharding


@dataclass(slots=True, eq=False)
class FactorSharding:
    """The sharding of one factor in one tensor.

    Attributes:
        minor_most: Whether the factor is the last of its dimension, so that it may be sharded unevenly.
        overflow: Axes of the dimension that could not be dealt out.
    """

    axes: Axes
    closed: bool
    minor_most: bool
    overflow: Axes = ()


@dataclass(slots=True, eq=False)
class TensorFactors:
    """The factor shardings of one tensor, and the axes that may not be used in it."""

    factors: dict[int, FactorSharding]
    blocked_axes: Axes


def project(
    mapping: Sequence[Sequence[int]], sharding: TensorSharding | None, sizes: Sequence[int], mesh: Mesh, closed_if_missing: bool = False
) -> TensorFactors:
    """Deals the axes of every dimension out to its factors."""
    factors: dict[int, FactorSharding] = {}
    if sharding is None:
        for dim in mapping:
            last = dim[-1]
            for f in dim:
                factors[f] = FactorSharding((), closed_if_missing, f == last)
        return TensorFactors(factors, ())
    for dim, dim_sharding in zip(mapping, sharding.dims, strict=True):
        if len(dim) == 1:
            axes = dim_sharding.axes
            factors[dim[0]] = FactorSharding(axes if len(axes) < 2 else merged(axes, mesh), dim_sharding.is_closed, True)
        else:
            _project_dimension(dim, dim_sharding, sizes, mesh, factors)
    blocked = sharding.replicated + sharding.unreduced if sharding.unreduced else sharding.replicated
    return TensorFactors(factors, blocked)


def _project_dimension(
    dim: Sequence[int], sharding: DimensionSharding, sizes: Sequence[int], mesh: Mesh, factors: dict[int, FactorSharding]
) -> None:
    rest = list(sharding.axes)
    overflowed = False
    last = dim[-1]
    for f in dim:
        state = factors[f] = FactorSharding((), sharding.is_closed, f == last)
        if overflowed:
            state.closed = True
            return
        if f == last:
            state.axes = merged(rest, mesh)
            return
        remaining = sizes[f]
        taken: list[AxisRef] = []
        while rest:
            head = rest[0]
            size = head.size_in(mesh)
            common = gcd(remaining, size)
            if size > 1 and common <= 1:
                break
            remaining //= common
            if size > common:
                pre = head.pre_size or 1
                taken.append(AxisRef(head.name, pre, common))
                rest[0] = AxisRef(head.name, pre * common, size // common)
            else:
                taken.append(head)
                rest.pop(0)
        state.axes = tuple(taken)
        if remaining > 1 and rest:
            overflowed = True
            state.overflow = tuple(rest)


def unproject(
    mapping: Sequence[Sequence[int]],
    tensor: TensorFactors,
    old: TensorSharding | None,
    sizes: Sequence[int],
    mesh: Mesh,
    mesh_name: str | Mesh,
) -> TensorSharding:
    """Puts the factor shardings of a tensor together to dimension shardings; priorities are dropped, as the reference does."""
    dims: list[DimensionSharding] = []
    factors = tensor.factors
    for dim in mapping:
        if len(dim) == 1:
            only = factors[dim[0]]
            dims.append(DimensionSharding(only.axes, only.closed))
            continue
        closed = False
        axes: list[AxisRef] = []
        for f in dim:
            state = factors.get(f)
            if state is None:
                break
            closed = closed or state.closed
            for i, axis in enumerate(state.axes):
                if i == 0:
                    add_axis_or_merge(axes, axis, mesh)
                else:
                    axes.append(axis)
            if state.overflow:
                add_axis_or_merge(axes, state.overflow[0], mesh)
                axes.extend(state.overflow[1:])
                break
            if num_shards(state.axes, mesh) < sizes[f]:
                break
        dims.append(DimensionSharding(tuple(axes), closed))
    if old is None:
        return TensorSharding(mesh_name, tuple(dims))
    return TensorSharding(mesh_name, tuple(dims), old.replicated, old.unreduced)
