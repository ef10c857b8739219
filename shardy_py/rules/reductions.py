"""Rules of reduce, reduce_window, select_and_scatter, batch_norm_inference and collectives."""

from __future__ import annotations

from shardy_py.dialect import FactorType, OpShardingRule
from shardy_py.rules.builder import NO_DIM, Builder, FactorBuilder, Signature
from shardy_py.rules.elementwise import pointwise


def reduce(signature: Signature) -> OpShardingRule:
    """Kept dimensions pass through, reduced ones are reductions; initial values have no factors."""
    inputs = len(signature.results)
    reduced = signature.attributes["dimensions"]
    builder = FactorBuilder(signature.operands, signature.results)
    out_dim = 0
    for dim, size in enumerate(signature.operands[0]):
        if dim in reduced:
            builder.add((dim,) * inputs, (), size, FactorType.REDUCTION)
        else:
            builder.add((dim,) * inputs, (out_dim,) * inputs, size)
            out_dim += 1
    return builder.build()


def _passes_through(signature: Signature, dim: int) -> bool:
    """Whether the windows along `dim` are the single elements, in order."""
    attributes = signature.attributes
    strides, padding = attributes["window_strides"], attributes["padding"]
    return (
        attributes["window_dimensions"][dim] == 1 and (not strides or strides[dim] == 1) and (not padding or tuple(padding[dim]) == (0, 0))
    )


def reduce_window(signature: Signature) -> OpShardingRule:
    """A factor per result dimension; a permutation where the windows are more than single elements in order."""
    inputs = len(signature.results)
    builder = FactorBuilder(signature.operands, signature.results)
    for dim, size in enumerate(signature.results[0]):
        dims = (dim,) * inputs
        if _passes_through(signature, dim):
            builder.add(dims, dims, size)
        else:
            builder.add(dims, dims, size, FactorType.PERMUTATION, blocked=signature.conservative)
    return builder.build()


def select_and_scatter(signature: Signature) -> OpShardingRule:
    """As reduce_window for the operand and the result; the source needs replication where windows matter."""
    operand, source = signature.operands[:2]
    conservative = signature.conservative
    builder = FactorBuilder(signature.operands, signature.results)
    for dim, size in enumerate(operand):
        if _passes_through(signature, dim):
            builder.add((dim, dim), (dim,), size)
        else:
            builder.add((NO_DIM, dim), (), source[dim], FactorType.NEED_REPLICATION, blocked=conservative)
            builder.add((dim,), (dim,), size, FactorType.PERMUTATION, blocked=conservative)
    return builder.build()


def batch_norm_inference(signature: Signature) -> OpShardingRule:
    """Pass-through; the feature dimension is also the only dimension of scale, offset, mean and variance."""
    feature = signature.attributes["feature_index"]
    builder = FactorBuilder(signature.operands, signature.results)
    for dim, size in enumerate(signature.operands[0]):
        other = 0 if dim == feature else NO_DIM
        builder.add((dim, other, other, other, other), (dim,), size)
    return builder.build()


def _resized(signature: Signature, *resized: int) -> OpShardingRule:
    """Pass-through, except that the resized dimensions need replication on either side, each with its own factor."""
    operand, result = signature.operands[0], signature.results[0]
    builder = FactorBuilder(signature.operands, signature.results)
    builder.add_pointwise(operand, skip=resized)
    for dim in resized:
        builder.add((dim,) * len(signature.operands), (), operand[dim], FactorType.NEED_REPLICATION)
        builder.add((), (dim,) * len(signature.results), result[dim], FactorType.NEED_REPLICATION)
    return builder.build()


def all_gather(signature: Signature) -> OpShardingRule:
    """Pass-through except for the gathered dimension."""
    return _resized(signature, signature.attributes["all_gather_dim"])


def reduce_scatter(signature: Signature) -> OpShardingRule:
    """Pass-through except for the scattered dimension."""
    return _resized(signature, signature.attributes["scatter_dimension"])


def all_to_all(signature: Signature) -> OpShardingRule:
    """Pass-through except for the split and the concatenated dimension."""
    split, concat = signature.attributes["split_dimension"], signature.attributes["concat_dimension"]
    return _resized(signature, split) if split == concat else _resized(signature, split, concat)


RULES: dict[str, Builder] = {
    "stablehlo.batch_norm_inference": batch_norm_inference,
    "stablehlo.reduce": reduce,
    "stablehlo.reduce_window": reduce_window,
    "stablehlo.select_and_scatter": select_and_scatter,
    "stablehlo.all_gather": all_gather,
    "stablehlo.all_reduce": pointwise,
    "stablehlo.all_to_all": all_to_all,
    "stablehlo.collective_broadcast": pointwise,
    "stablehlo.collective_permute": pointwise,
    "stablehlo.cross-replica-sum": pointwise,
    "stablehlo.reduce_scatter": reduce_scatter,
}
