"""The basic strategy: every factor gets the same axes in all tensors that have it."""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.dialect import AxisRef, Mesh, OpShardingRule
from shardy_py.dialect.axis import is_strict_prefix
from shardy_py.dialect.projection import TensorFactors
from shardy_py.passes.propagation.compatible import compatible_major_axes, fit_across_factors, fit_within_factor, truncate


def propagate_factors(
    rule: OpShardingRule, tensors: Sequence[TensorFactors], directions: Sequence[int], mesh: Mesh, conservative: bool, elementwise: bool
) -> bytearray:
    """Expands the factor shardings in place; returns which tensors changed. `BasicFactorPropagation` of the reference."""
    del elementwise
    updated = bytearray(len(tensors))
    num_operands = len(rule.operand_mappings)
    for factor, size in enumerate(rule.factor_sizes):
        axes = compatible_major_axes(tensors, num_operands, factor, directions[factor])
        if not axes:
            continue

        def fit(axis: AxisRef, before: int, factor: int = factor, size: int = size) -> AxisRef | None:
            fitting: AxisRef | None = axis
            for tensor in tensors:
                fitting = fit_across_factors(fitting, tensor, factor)
                if fitting is None:
                    return None
                state = tensor.factors.get(factor)
                if state is not None:
                    fitting = fit_within_factor(fitting, before, tensor, state, size, mesh)
                    if fitting is None:
                        return None
            return fitting

        axes = truncate(axes, mesh, fit, conservative)
        for i, tensor in enumerate(tensors):
            state = tensor.factors.get(factor)
            if state is not None and is_strict_prefix(state.axes, axes):
                state.axes = axes
                state.overflow = ()
                updated[i] = True
    return updated
