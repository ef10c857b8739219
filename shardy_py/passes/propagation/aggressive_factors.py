"""The aggressive strategy: every tensor takes what it can on its own, the largest source first."""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.dialect import AxisRef, Mesh, OpShardingRule
from shardy_py.dialect.axis import Axes, is_prefix, is_strict_prefix, num_shards
from shardy_py.dialect.projection import TensorFactors
from shardy_py.passes.propagation.compatible import (
    compatible_major_axes,
    fit_across_factors,
    fit_within_factor,
    truncate,
)


def propagate_factors(
    rule: OpShardingRule, tensors: Sequence[TensorFactors], directions: Sequence[int], mesh: Mesh, conservative: bool, elementwise: bool
) -> bytearray:
    """Expands the factor shardings in place; returns which tensors changed. `AggressiveFactorPropagation` of the reference."""
    updated = bytearray(len(tensors))
    num_operands = len(rule.operand_mappings)
    axes_of = [compatible_major_axes(tensors, num_operands, f, d) for f, d in enumerate(directions)]
    order = [f for f, axes in enumerate(axes_of) if axes]
    if not order:
        return updated
    if len(order) > 1:
        order = _sorted_factors(rule, tensors, axes_of, order, mesh, elementwise)
    sizes = rule.factor_sizes
    results = range(num_operands, len(tensors))
    for i in results:
        updated[i] = _update(tensors[i], order, axes_of, sizes, mesh, conservative)
    sideways = [tensors[i] for i in results] if elementwise else []
    for i in range(num_operands):
        updated[i] = _update(tensors[i], order, axes_of, sizes, mesh, conservative, sideways)
    return updated


def _sorted_factors(
    rule: OpShardingRule, tensors: Sequence[TensorFactors], axes_of: Sequence[Axes], order: Sequence[int], mesh: Mesh, elementwise: bool
) -> list[int]:
    tensor_sizes = rule.tensor_sizes
    keys: dict[int, tuple[int, int, int, int]] = {}
    for f in order:
        source, source_size = -1, -1
        for i, tensor in enumerate(tensors):
            state = tensor.factors.get(f)
            if state is not None and tensor_sizes[i] > source_size and is_prefix(axes_of[f], state.axes):
                source, source_size = i, tensor_sizes[i]
        keys[f] = (-source_size, -num_shards(axes_of[f], mesh) if elementwise else 0, source, f)
    return sorted(order, key=keys.__getitem__)


def _update(
    tensor: TensorFactors,
    order: Sequence[int],
    axes_of: Sequence[Axes],
    sizes: Sequence[int],
    mesh: Mesh,
    conservative: bool,
    results: Sequence[TensorFactors] = (),
) -> bool:
    updated = False
    for f in order:
        state = tensor.factors.get(f)
        if state is None:
            continue
        axes = axes_of[f]
        if state.axes == axes:
            continue
        for result in results:
            other = result.factors.get(f)
            if other is not None and is_strict_prefix(other.axes, axes):
                axes = other.axes

        def fit_within(axis: AxisRef, before: int, f: int = f) -> AxisRef | None:
            return fit_within_factor(axis, before, tensor, tensor.factors[f], sizes[f], mesh)

        axes = truncate(axes, mesh, fit_within, conservative)
        if not is_strict_prefix(state.axes, axes):
            continue

        def fit_across(axis: AxisRef, before: int, f: int = f) -> AxisRef | None:
            return fit_across_factors(axis, tensor, f)

        axes = truncate(axes, mesh, fit_across, conservative)
        if is_strict_prefix(state.axes, axes):
            state.axes = axes
            state.overflow = ()
            updated = True
    return updated
