"""The axes under which an op runs where its tensors disagree: those with the most elements keep theirs, whatever their element types."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardy_py.dialect import FactorType, Mesh, OpShardingRule
from shardy_py.dialect.axis import Axes, add_axis_or_merge, is_strict_prefix, num_shards, overlaps, truncate_by_removing_overlaps
from shardy_py.dialect.projection import TensorFactors

FactorAxes = Mapping[int, Axes]
"""Factor -> its axes in one tensor; factors that the tensor does not have, or that an overflow hides, are left out."""

AxesPerFactor = list[Axes]
"""The axes of every factor of a rule, those under which the op runs."""


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


_PRECEDENCE = {FactorType.PASS_THROUGH: 3, FactorType.REDUCTION: 2, FactorType.PERMUTATION: 1, FactorType.NEED_REPLICATION: 0}


@dataclass
class AxesCandidate:
    """Axes proposed for a factor, with the sizes of all tensors that have them, and the further parts that they cut the factor into."""

    factor: int
    axes: Axes
    total: int
    precedence: int
    shards: int

    @property
    def rank(self) -> tuple[Any, ...]:
        """The sort key of candidates; the largest is taken."""
        return (self.total, self.precedence, self.shards, self.factor, len(self.axes), self.axes)


def vote(rule: OpShardingRule, tensors: Sequence[FactorAxes], tensor_sizes: Sequence[int], mesh: Mesh) -> AxesPerFactor:
    """Gives factors the best candidate, one after the other, until none is left.

    A candidate of a factor that stands behind another one in a dimension waits until that one is cut into single
    elements, as the dimension could not be sharded like that. When one wins, the others lose what overlaps it.
    """
    chosen: AxesPerFactor = [()] * rule.num_factors
    waiting = _predecessors(rule)
    candidates = _proposals(rule, tensors, tensor_sizes, mesh)
    while ready := [candidate for candidate in candidates if not waiting[candidate.factor]]:
        best = max(ready, key=lambda candidate: candidate.rank)
        factor, axes = best.factor, best.axes
        chosen[factor] = axes
        if num_shards(axes, mesh) == rule.factor_sizes[factor]:
            for others in waiting:
                others.discard(factor)
        candidates = [candidate for candidate in candidates if _update(candidate, factor, axes, chosen, mesh)]
    return chosen


def _proposals(rule: OpShardingRule, tensors: Sequence[FactorAxes], tensor_sizes: Sequence[int], mesh: Mesh) -> list[AxesCandidate]:
    """Every prefix of the axes that any tensor has on a factor, once."""
    proposed: dict[tuple[int, Axes], None] = {}
    for tensor in tensors:
        for factor, axes in tensor.items():
            for end in range(1, len(axes) + 1):
                proposed[factor, axes[:end]] = None
    return [
        AxesCandidate(
            factor, axes, _total(factor, axes, tensors, tensor_sizes), _PRECEDENCE[rule.factor_types[factor]], num_shards(axes, mesh)
        )
        for factor, axes in proposed
    ]


def _total(factor: int, axes: Axes, tensors: Sequence[FactorAxes], tensor_sizes: Sequence[int]) -> int:
    """The sizes of the tensors that have the axes on the factor, or more behind them."""
    total = 0
    for tensor, size in zip(tensors, tensor_sizes, strict=True):
        own = tensor.get(factor)
        if own is not None and (axes == own or is_strict_prefix(axes, own)):
            total += size
    return total


def _predecessors(rule: OpShardingRule) -> list[set[int]]:
    """For every factor those that stand right before it in a dimension of any tensor."""
    before: list[set[int]] = [set() for _ in rule.factor_sizes]
    for mapping in rule.mappings:
        for dim in mapping:
            for major, minor in itertools.pairwise(dim):
                before[minor].add(major)
    return before


def _update(candidate: AxesCandidate, factor: int, axes: Axes, chosen: AxesPerFactor, mesh: Mesh) -> bool:
    """Removes the axes of the winner from a candidate; False if none remain.

    A candidate that does not overlap counts in full again, even if its factor has been given axes in between; Shardy
    does it like that, and which candidate is next depends on it.
    """
    chosen_axes = chosen[candidate.factor]
    if candidate.factor == factor:
        if not is_strict_prefix(axes, candidate.axes):
            return False
        candidate.shards = num_shards(candidate.axes, mesh) // num_shards(axes, mesh)
        return True
    if not overlap_between(candidate.axes, axes):
        candidate.shards = num_shards(candidate.axes, mesh)
        return True
    candidate.axes = truncate_by_removing_overlaps(candidate.axes, axes)
    if candidate.axes == chosen_axes:
        return False
    candidate.shards = num_shards(candidate.axes, mesh) // num_shards(chosen_axes, mesh)
    return True


def factor_axes(tensors: Sequence[TensorFactors]) -> list[FactorAxes]:
    """The axes of every factor of every tensor, overflow left out."""
    return [{factor: sharding.axes for factor, sharding in tensor.factors.items()} for tensor in tensors]


def overlap_between(axes: Axes, others: Axes) -> bool:
    """Whether any axis of one list shares a part with any of the other."""
    return any(overlaps(axis, other) for axis in axes for other in others)


def any_overlap(per_factor: Sequence[Axes]) -> bool:
    """Whether two factors share a part of an axis."""
    used = [axes for axes in per_factor if axes]
    return any(overlap_between(axes, others) for i, axes in enumerate(used) for others in used[:i])
