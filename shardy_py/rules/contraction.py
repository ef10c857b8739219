"""Rules of dot and dot_general."""

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


RULES: dict[str, Builder] = {
    "stablehlo.dot": dot,
    "stablehlo.dot_general": dot_general,
}
