"""Rules of dot, dot_general and ragged_dot."""

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


RULES: dict[str, Builder] = {
    "chlo.ragged_dot": ragged_dot,
    "stablehlo.dot": dot,
    "stablehlo.dot_general": dot_general,
}
