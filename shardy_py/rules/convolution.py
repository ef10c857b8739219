"""Rule of convolution."""

from __future__ import annotations

from shardy_py.dialect import FactorType, OpShardingRule
from shardy_py.rules.builder import NO_DIM, Builder, FactorBuilder, Signature


def convolution(signature: Signature) -> OpShardingRule:
    """Batch and output features pass through, input features and windows are reductions, spatial positions permutations.

    A spatial dimension of the input is split into the number of windows (the output's size) and the window's size, the
    larger of the two being major; what does not fit into the input dimension is cut off. From 0.12 on a number of which no part fits is a
    permutation of its own.
    """
    rhs = signature.operands[1]
    (result,) = signature.results
    dims = signature.attributes
    lhs_batch, lhs_feature = dims["input_batch_dimension"], dims["input_feature_dimension"]
    rhs_in: int = dims["kernel_input_feature_dimension"]
    rhs_out: int = dims["kernel_output_feature_dimension"]
    out_batch: int = dims["output_batch_dimension"]
    out_feature: int = dims["output_feature_dimension"]
    batch_groups: int = dims["batch_group_count"]
    feature_groups: int = dims["feature_group_count"]
    builder = FactorBuilder(signature.operands, signature.results)

    if batch_groups > 1:
        builder.add((lhs_batch, rhs_out), (out_feature,), batch_groups)
    builder.add((lhs_batch, NO_DIM), (out_batch,), result[out_batch])

    if not signature.conservative:
        spatial = zip(dims["input_spatial_dimensions"], dims["kernel_spatial_dimensions"], dims["output_spatial_dimensions"], strict=True)
        for lhs_dim, rhs_dim, out_dim in spatial:
            _add_spatial(builder, signature, lhs_dim, rhs_dim, out_dim)

    if feature_groups > 1:
        builder.add((lhs_feature, rhs_out), (out_feature,), feature_groups)
    builder.add((lhs_feature, rhs_in), (), rhs[rhs_in], FactorType.REDUCTION)
    features_per_group = result[out_feature] // (batch_groups * feature_groups)
    if features_per_group > 1:
        builder.add((NO_DIM, rhs_out), (out_feature,), features_per_group)
    return builder.build()


def _add_spatial(builder: FactorBuilder, signature: Signature, lhs_dim: int, rhs_dim: int, out_dim: int) -> None:
    lhs, rhs = signature.operands
    (result,) = signature.results
    remaining = lhs[lhs_dim]
    windows, window = result[out_dim], rhs[rhs_dim]
    for counts_windows in (True, False) if windows >= window else (False, True):
        size = min(remaining, windows if counts_windows else window)
        if size <= 1:
            alone = windows if counts_windows else window
            if alone > 1 and signature.semantics.has("convolution: factors of one side"):
                operand_dims, result_dims = ((), (out_dim,)) if counts_windows else ((NO_DIM, rhs_dim), ())
                builder.add(operand_dims, result_dims, alone, FactorType.PERMUTATION)
            continue
        if counts_windows:
            builder.add((lhs_dim, NO_DIM), (out_dim,), size, FactorType.PERMUTATION)
        else:
            builder.add((lhs_dim, rhs_dim), (), size, FactorType.REDUCTION)
        remaining //= size


RULES: dict[str, Builder] = {"stablehlo.convolution": convolution}
