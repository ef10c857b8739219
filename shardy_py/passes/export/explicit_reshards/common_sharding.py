"""The axes of every factor of an op whose tensors disagree."""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.dialect import FactorType, Mesh, OpShardingRule
from shardy_py.dialect.axis import Axes, add_axis_or_merge, num_shards, truncate_by_removing_overlaps
from shardy_py.passes.export.explicit_reshards.candidates import vote
from shardy_py.passes.export.explicit_reshards.factor_axes import AxesPerFactor, FactorAxes, any_overlap


def find_common_axes(rule: OpShardingRule, tensors: Sequence[FactorAxes], tensor_sizes: Sequence[int], mesh: Mesh) -> AxesPerFactor:
    """The axes under which an op runs: the common ones where its tensors agree, else the cheapest.

    Cost is estimated by the sizes of the tensors that need not move. Of two tensors the preferred one wins; of more,
    the factors are settled by `vote`. Axes that factors with need of replication would have had go to the batching factors.

    Source: `findCommonAxes` of Shardy's explicit_reshards_util.cc.
    """
    agreed = compatible_axes(rule, tensors)
    if agreed is not None:
        return agreed
    if len(rule.non_scalar_tensors) == 2 and not rule.need_replication and not rule.has_compound_dims:
        return _axes_of_preferred(rule, tensors, tensor_sizes, mesh)
    chosen = vote(rule, tensors, tensor_sizes, mesh)
    for factor in rule.need_replication:
        if rule.is_in_all_non_scalar_tensors(factor):
            _give_to_batching_factors(rule, chosen[factor], chosen, mesh)
        chosen[factor] = ()
    return chosen


def compatible_axes(rule: OpShardingRule, tensors: Sequence[FactorAxes]) -> AxesPerFactor | None:
    """The axes of each factor if all tensors agree and the op can run so; else None.

    Factors that need replication must have no axes, and no axis may be used for two factors.
    """
    common: list[Axes | None] = [None] * rule.num_factors
    for tensor in tensors:
        for factor, axes in tensor.items():
            if axes and rule.factor_types[factor] is FactorType.NEED_REPLICATION:
                return None
            if common[factor] is None:
                common[factor] = axes
            elif common[factor] != axes:
                return None
    agreed = [axes or () for axes in common]
    return None if any_overlap(agreed) else agreed


def _axes_of_preferred(rule: OpShardingRule, tensors: Sequence[FactorAxes], tensor_sizes: Sequence[int], mesh: Mesh) -> AxesPerFactor:
    """The axes of the preferred of two tensors, and of the other what does not overlap them on factors of its own."""
    first, second = rule.non_scalar_tensors

    def preference(i: int) -> tuple[bool, int, int]:
        permuted = any(axes and rule.factor_types[factor] is FactorType.PERMUTATION for factor, axes in tensors[i].items())
        return not permuted, tensor_sizes[i], num_shards(tuple(axis for axes in tensors[i].values() for axis in axes), mesh)

    preferred, other = (second, first) if preference(second) > preference(first) else (first, second)
    used = tuple(axis for axes in tensors[preferred].values() for axis in axes)
    chosen: AxesPerFactor = [()] * rule.num_factors
    for factor, axes in tensors[other].items():
        chosen[factor] = truncate_by_removing_overlaps(axes, used)
    for factor, axes in tensors[preferred].items():
        chosen[factor] = axes
    return chosen


def _give_to_batching_factors(rule: OpShardingRule, axes: Axes, chosen: AxesPerFactor, mesh: Mesh) -> None:
    """Appends axes to the batching factors in order, as long as they divide."""
    rest = list(axes)
    for factor in rule.batching_factors:
        size = rule.factor_sizes[factor]
        if not size:
            continue
        extended = list(chosen[factor])
        parts = num_shards(chosen[factor], mesh)
        while rest and size % (parts * rest[0].size_in(mesh)) == 0:
            parts *= rest[0].size_in(mesh)
            add_axis_or_merge(extended, rest.pop(0), mesh)
        chosen[factor] = tuple(extended)
