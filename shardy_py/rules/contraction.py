"""Rules of dot, dot_general, ragged_dot and convolution."""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.dialect import FactorType, OpShardingRule
from shardy_py.rules.builder import NO_DIM, Builder, FactorBuilder, Signature


def dot(signature: Signature) -> OpShardingRule:
    """Free dimensions pass through; the contracting one (last of lhs, first of rhs) is a reduction."""
    lhs, rhs = signature.operands
    builder = FactorBuilder(signature.operands, signature.results)
    if len(lhs) == 2:
        builder.add((0, NO_DIM), (0,), lhs[0])
    if len(rhs) == 2:
        builder.add((NO_DIM, 1), (len(lhs) - 1,), rhs[1])
    builder.add((len(lhs) - 1, 0), (), lhs[-1], FactorType.REDUCTION)
    return builder.build()


def dot_general(signature: Signature) -> OpShardingRule:
    """Batch dimensions, free dimensions of lhs, then of rhs pass through; contracting ones are reductions.

    Example:
        >>> dims = dict(lhs_batching_dimensions=(), rhs_batching_dimensions=(),
        ...             lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,))
        >>> str(dot_general(Signature(((8, 32), (32, 16)), ((8, 16),), dims)))
        '#sdy.op_sharding_rule<([i, k], [k, j])->([i, j]) {i=8, j=16, k=32} reduction={k}>'
    """
    lhs, rhs = signature.operands
    attributes = signature.attributes
    lhs_batch: Sequence[int] = attributes["lhs_batching_dimensions"]
    rhs_batch: Sequence[int] = attributes["rhs_batching_dimensions"]
    lhs_contract: Sequence[int] = attributes["lhs_contracting_dimensions"]
    rhs_contract: Sequence[int] = attributes["rhs_contracting_dimensions"]
    builder = FactorBuilder(signature.operands, signature.results)
    out_dim = 0
    for lhs_dim, rhs_dim in zip(lhs_batch, rhs_batch, strict=True):
        builder.add((lhs_dim, rhs_dim), (out_dim,), lhs[lhs_dim])
        out_dim += 1
    for dim, size in enumerate(lhs):
        if dim not in lhs_batch and dim not in lhs_contract:
            builder.add((dim, NO_DIM), (out_dim,), size)
            out_dim += 1
    for dim, size in enumerate(rhs):
        if dim not in rhs_batch and dim not in rhs_contract:
            builder.add((NO_DIM, dim), (out_dim,), size)
            out_dim += 1
    for lhs_dim, rhs_dim in zip(lhs_contract, rhs_contract, strict=True):
        builder.add((lhs_dim, rhs_dim), (), lhs[lhs_dim], FactorType.REDUCTION)
    return builder.build()


def ragged_dot(signature: Signature) -> OpShardingRule:
    """A product whose groups of rows, such as tokens of experts, have a matrix each; as `dot_general` besides.

    The groups of the right operand are summed over, since a row has a product in one of them. In the gradient of the matrices rows are
    contracted, and the result has the groups, which stay whole, as their sizes do. Shardy has no rule for it.

    Example:
        >>> dims = dict(lhs_batching_dimensions=(), rhs_batching_dimensions=(), lhs_contracting_dimensions=(1,),
        ...             rhs_contracting_dimensions=(1,), lhs_ragged_dimensions=(0,), rhs_group_dimensions=(0,))
        >>> str(ragged_dot(Signature(((64, 32), (4, 32, 16), (4,)), ((64, 16),), dims)))
        '#sdy.op_sharding_rule<([i, l], [j, l, k], [m])->([i, k]) {i=64, j=4, k=16, l=32, m=4} reduction={j, l} need_replication={m}>'
    """
    lhs, rhs, sizes = signature.operands
    pairs: dict[str, Sequence[int]] = {name: values for name, values in signature.attributes.items() if name.endswith("_dimensions")}
    batch = list(zip(pairs["lhs_batching_dimensions"], pairs["rhs_batching_dimensions"], strict=True))
    contracted = list(zip(pairs["lhs_contracting_dimensions"], pairs["rhs_contracting_dimensions"], strict=True))
    ragged, groups = pairs["lhs_ragged_dimensions"], pairs["rhs_group_dimensions"]
    builder = FactorBuilder(signature.operands, signature.results)
    out_dim = 0
    if any(i in ragged for i, _ in contracted):
        builder.add((NO_DIM,) * 3, (0,), signature.results[0][0], FactorType.NEED_REPLICATION)
        out_dim = 1
    for i, j in batch:
        builder.add((i, j, NO_DIM), (out_dim,), lhs[i], FactorType.NEED_REPLICATION if i in ragged else FactorType.PASS_THROUGH)
        out_dim += 1
    for side, shape in enumerate((lhs, rhs)):
        for dim, size in enumerate(shape):
            place = tuple(dim if operand == side else NO_DIM for operand in range(3))
            if any(dim == pair[side] for pair in (*batch, *contracted)):
                continue
            if side and dim in groups:
                builder.add(place, (NO_DIM,), size, FactorType.REDUCTION)
            else:
                builder.add(place, (out_dim,), size)
                out_dim += 1
    for i, j in contracted:
        builder.add((i, j, NO_DIM), (NO_DIM,), lhs[i], FactorType.REDUCTION)
    for dim, size in enumerate(sizes):
        builder.add((NO_DIM, NO_DIM, dim), (NO_DIM,), size, FactorType.NEED_REPLICATION)
    return builder.build()


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


RULES: dict[str, Builder] = {
    "chlo.ragged_dot": ragged_dot,
    "stablehlo.dot": dot,
    "stablehlo.dot_general": dot_general,
    "stablehlo.convolution": convolution,
}
