"""The one conflict of a dot that is settled even where reshards are otherwise left to the partitioner."""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.dialect import OpShardingRule
from shardy_py.dialect.axis import Axes
from shardy_py.passes.export.explicit_reshards.factor_axes import FactorAxes, overlap_between


def result_axes_of_dot(rule: OpShardingRule, tensors: Sequence[FactorAxes], tensor_sizes: Sequence[int]) -> tuple[int, Axes] | None:
    """The factor to shard in the result of a dot as in its operand, so that only the result is resharded.

    A result that is to be sharded by the very axes along which the dot sums, on a factor where the operand has others,
    is made with the operand's axes: its all-reduce and the reshard behind become one reduce-scatter, and no operand moves.
    It may be no larger than the operand with that factor; on a batching factor, than the larger operand.

    Example:
        `[{"x"}, {"y"}]` times `[{"y"}, {}]`, wanted as `[{"y"}, {}]`, is made as `[{"x"}, {}]`.

    Returns:
        `(factor, axes)`, or None where the op is no such dot.
    """
    lhs, rhs, result = tensors
    if any(axes != rhs[factor] for factor, axes in lhs.items() if factor in rhs):
        return None
    own = [axes for factor, axes in lhs.items() if factor not in rhs]
    others = [axes for factor, axes in rhs.items() if factor not in lhs]
    if any(overlap_between(axes, other) for axes in own for other in others):
        return None
    conflicts = [factor for factor, axes in result.items() if axes != (lhs[factor] if factor in lhs else rhs[factor])]
    if len(conflicts) != 1:
        return None
    factor = conflicts[0]
    sides = [i for i, operand in enumerate((lhs, rhs)) if factor in operand]
    axes = tensors[sides[0]][factor]
    reduced = tuple(axis for reduction in rule.reduction for axis in lhs[reduction])
    if not axes or not reduced or result[factor] != reduced or tensor_sizes[2] > max(tensor_sizes[i] for i in sides):
        return None
    return factor, axes
