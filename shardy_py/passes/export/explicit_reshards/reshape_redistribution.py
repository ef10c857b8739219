"""Reshapes with axes that cut a dimension where no factor ends: the axes are dealt out anew over the factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd

from shardy_py.dialect import AxisRef, Mesh, OpShardingRule, TensorSharding
from shardy_py.dialect.axis import Axes, common_prefix_of_lists, merged, num_shards
from shardy_py.dialect.projection import FactorSharding, TensorFactors, project, unproject
from shardy_py.passes.export.explicit_reshards.factor_axes import AxesPerFactor


def redistribute(rule: OpShardingRule, tensors: Sequence[TensorFactors], mesh_name: str | Mesh, mesh: Mesh) -> AxesPerFactor:
    """The axes of each factor that operand and result of a reshape can both have.

    All axes of the side that is cut into more parts, the operand on ties, are dealt out over the factors of each side.
    Each side may then have less of them than before; each factor gets what both have at its beginning.
    """
    operand, result = tensors
    axes = max(_all_axes(rule, operand, 0), _all_axes(rule, result, 1), key=lambda axes: num_shards(axes, mesh))
    dealt: list[Mapping[int, FactorSharding]] = []
    for mapping, tensor in zip(rule.mappings, tensors, strict=True):
        sharding = _deal(mapping, tensor, axes, rule, mesh_name, mesh)
        dealt.append(project(mapping, sharding, rule.factor_sizes, mesh, True).factors)
    common: AxesPerFactor = [()] * rule.num_factors
    for factor in range(rule.num_factors):
        axes_of_sides = [side[factor].axes for side in dealt if factor in side]
        if axes_of_sides:
            common[factor] = common_prefix_of_lists(axes_of_sides[0], axes_of_sides[-1])
    return common


def _all_axes(rule: OpShardingRule, tensor: TensorFactors, i: int) -> Axes:
    axes: list[AxisRef] = []
    for dim in rule.mappings[i]:
        for factor in dim:
            sharding = tensor.factors.get(factor)
            if sharding is not None:
                axes.extend((*sharding.axes, *sharding.overflow))
    return tuple(axes)


def _deal(
    mapping: Sequence[Sequence[int]], tensor: TensorFactors, axes: Axes, rule: OpShardingRule, mesh_name: str | Mesh, mesh: Mesh
) -> TensorSharding:
    """The sharding of a tensor whose factors take the axes in turn, each axis as far as it divides what is left of a factor.

    Factors that an overflow hid take none. From the first axis that finds no factor on, the rest overflows the last one.
    """
    order = [factor for dim in mapping for factor in dim if factor in tensor.factors]
    left = {factor: rule.factor_sizes[factor] for factor in order}
    factors = {factor: FactorSharding((), True, factor == dim[-1]) for dim in mapping for factor in dim if factor in left}
    pending = list(axes)
    while pending:
        axis = pending[0]
        size = axis.size_in(mesh)
        taker = next((factor for factor in order if gcd(left[factor], size) > 1), None)
        if taker is None:
            break
        part = gcd(left[taker], size)
        left[taker] //= part
        portion = axis
        if part == size:
            pending.pop(0)
        else:
            pre = axis.pre_size or 1
            portion = AxisRef(axis.name, pre, part)
            pending[0] = AxisRef(axis.name, pre * part, size // part)
        factors[taker].axes = merged((*factors[taker].axes, portion), mesh)
    if order:
        last = factors[order[-1]]
        if last.minor_most:
            last.axes = merged((*last.axes, *pending), mesh)
        else:
            last.overflow = tuple(pending)
    return unproject(mapping, TensorFactors(factors, ()), None, rule.factor_sizes, mesh, mesh_name)
