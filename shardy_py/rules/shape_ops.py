"""Rules of ops that rearrange a whole tensor: broadcast_in_dim, reshape, transpose, bitcast_convert, reverse, sort."""

from __future__ import annotations

import math

from shardy_py.dialect import FactorType, OpShardingRule
from shardy_py.rules.builder import NO_DIM, Builder, FactorBuilder, Signature


def broadcast_in_dim(signature: Signature) -> OpShardingRule:
    """A factor per result dimension; an operand dimension of size 1 that is expanded keeps one of its own."""
    (operand,), (result,) = signature.operands, signature.results
    source = {out_dim: in_dim for in_dim, out_dim in enumerate(signature.attributes["broadcast_dimensions"])}
    builder = FactorBuilder((operand,), (result,))
    for out_dim, size in enumerate(result):
        in_dim = source.get(out_dim, NO_DIM)
        if in_dim != NO_DIM and operand[in_dim] != size:
            builder.add((in_dim,), (), 1)
            in_dim = NO_DIM
        builder.add((in_dim,), (out_dim,), size)
    return builder.build()


def reshape(signature: Signature) -> OpShardingRule | None:
    """Common factors of the two shapes, read from major to minor; None where there are no elements.

    Where the shapes have no common divisor at the current position, each side gets a factor of its own until the
    products of the sizes read so far agree again. From 0.12 on the first factor of the operand is shared, as a permutation, and
    factors of one side need replication.

    Example:
        >>> str(reshape(Signature(((2, 4, 32),), ((8, 32),))))
        '#sdy.op_sharding_rule<([i, j, k])->([ij, k]) {i=2, j=4, k=32}>'
    """
    semantics = signature.semantics
    alone = FactorType.NEED_REPLICATION if semantics.has("reshape: factors of one side replicate") else FactorType.PASS_THROUGH
    (operand,), (result,) = signature.operands, signature.results
    if 0 in operand:
        return None
    builder = FactorBuilder((operand,), (result,))
    in_dim = out_dim = 0
    # Per side: product of the sizes of the dimensions read so far, the current one included, and of its factors.
    in_dims = out_dims = in_factors = out_factors = 1
    while in_dim < len(operand) or out_dim < len(result):
        if in_dim < len(operand) and operand[in_dim] == 1:
            builder.add((in_dim,), (), 1, alone)
            in_dim += 1
            continue
        if out_dim < len(result) and result[out_dim] == 1:
            builder.add((), (out_dim,), 1, alone)
            out_dim += 1
            continue
        if in_dims == in_factors and in_dim < len(operand):
            in_dims *= operand[in_dim]
        if out_dims == out_factors and out_dim < len(result):
            out_dims *= result[out_dim]
        in_next, out_next = in_dims // in_factors, out_dims // out_factors
        common = math.gcd(in_next, out_next)
        if in_factors == out_factors and common > 1:
            builder.add((in_dim,), (out_dim,), common)
            in_factors *= common
            out_factors *= common
        elif in_factors == out_factors:
            if semantics.has("reshape: shared permutation"):
                builder.add((in_dim,), (out_dim,), in_next, FactorType.PERMUTATION)
            else:
                builder.add((in_dim,), (), in_next)
                builder.add((), (out_dim,), out_next)
            in_factors *= in_next
            out_factors *= out_next
        elif in_factors < out_factors:
            size = _catch_up(in_factors, out_factors, in_next, common)
            builder.add((in_dim,), (), size, alone)
            in_factors *= size
        else:
            size = _catch_up(out_factors, in_factors, out_next, common)
            builder.add((), (out_dim,), size, alone)
            out_factors *= size
        if in_dims == in_factors:
            in_dim += 1
        if out_dims == out_factors:
            out_dim += 1
    return builder.build()


def _catch_up(smaller: int, larger: int, remaining: int, common: int) -> int:
    """Size of the next factor on the side that is behind, out of `remaining`."""
    ratio, rest = divmod(larger, smaller)
    if rest == 0 and remaining % ratio == 0:
        return ratio
    return remaining // common if remaining > common else remaining


def transpose(signature: Signature) -> OpShardingRule:
    """A factor per result dimension, on the operand dimension it comes from."""
    (operand,), (result,) = signature.operands, signature.results
    builder = FactorBuilder((operand,), (result,))
    for out_dim, (size, in_dim) in enumerate(zip(result, signature.attributes["permutation"], strict=True)):
        builder.add((in_dim,), (out_dim,), size)
    return builder.build()


def bitcast_convert(signature: Signature) -> OpShardingRule:
    """Pass-through for the dimensions both sides have; the extra minor one needs replication."""
    (operand,), (result,) = signature.operands, signature.results
    builder = FactorBuilder((operand,), (result,))
    for dim, size in enumerate(operand if len(operand) < len(result) else result):
        builder.add((dim,), (dim,), size)
    if len(operand) > len(result):
        builder.add((len(operand) - 1,), (), operand[-1], FactorType.NEED_REPLICATION)
    elif len(operand) < len(result):
        builder.add((), (len(result) - 1,), result[-1], FactorType.NEED_REPLICATION)
    return builder.build()


def reverse(signature: Signature) -> OpShardingRule:
    """As pointwise, with the reversed dimensions being permutations."""
    builder = FactorBuilder(signature.operands, signature.results)
    for dim, size in enumerate(signature.results[0]):
        reversed_dim = dim in signature.attributes["dimensions"]
        builder.add_to_all(dim, size, FactorType.PERMUTATION if reversed_dim else FactorType.PASS_THROUGH)
    return builder.build()


def sort(signature: Signature) -> OpShardingRule:
    """The sorted dimension needs replication, and does not propagate where it is the only one of size above 1."""
    shape = signature.operands[0]
    rank = len(shape)
    sorted_dim = signature.attributes.get("dimension", -1)
    if sorted_dim < 0:
        sorted_dim += rank
    alone = all(size == 1 for dim, size in enumerate(shape) if dim != sorted_dim)
    builder = FactorBuilder(signature.operands, signature.results)
    for dim, size in enumerate(shape):
        if dim == sorted_dim:
            builder.add_to_all(dim, size, FactorType.NEED_REPLICATION, blocked=alone)
        else:
            builder.add_to_all(dim, size)
    return builder.build()


RULES: dict[str, Builder] = {
    "stablehlo.bitcast_convert": bitcast_convert,
    "stablehlo.broadcast_in_dim": broadcast_in_dim,
    "stablehlo.reshape": reshape,
    "stablehlo.reverse": reverse,
    "stablehlo.transpose": transpose,
    "stablehlo.sort": sort,
}
