"""The vote on a common sharding: tensors propose axes for factors, and the proposals of the largest tensors win."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardy_py.dialect import FactorType, Mesh, OpShardingRule
from shardy_py.dialect.axis import Axes, is_strict_prefix, num_shards, truncate_by_removing_overlaps
from shardy_py.passes.export.explicit_reshards.factor_axes import AxesPerFactor, FactorAxes, overlap_between

_PRECEDENCE = {FactorType.PASS_THROUGH: 3, FactorType.REDUCTION: 2, FactorType.PERMUTATION: 1, FactorType.NEED_REPLICATION: 0}


@dataclass
class Candidate:
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


def _proposals(rule: OpShardingRule, tensors: Sequence[FactorAxes], tensor_sizes: Sequence[int], mesh: Mesh) -> list[Candidate]:
    """Every prefix of the axes that any tensor has on a factor, once."""
    proposed: dict[tuple[int, Axes], None] = {}
    for tensor in tensors:
        for factor, axes in tensor.items():
            for end in range(1, len(axes) + 1):
                proposed[factor, axes[:end]] = None
    return [
        Candidate(factor, axes, _total(factor, axes, tensors, tensor_sizes), _PRECEDENCE[rule.factor_types[factor]], num_shards(axes, mesh))
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


def _update(candidate: Candidate, factor: int, axes: Axes, chosen: AxesPerFactor, mesh: Mesh) -> bool:
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
