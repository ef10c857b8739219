"""Rule of rng_bit_generator."""

from __future__ import annotations

from shardy_py.dialect import FactorType, OpShardingRule
from shardy_py.rules.builder import NO_DIM, Builder, FactorBuilder, Signature


def rng_bit_generator(signature: Signature) -> OpShardingRule:
    """The state needs replication and does not propagate; the random bits pass through on their own."""
    (state,) = signature.operands
    builder = FactorBuilder(signature.operands, signature.results)
    for dim, size in enumerate(state):
        builder.add((dim,), (dim,), size, FactorType.NEED_REPLICATION, blocked=True)
    for dim, size in enumerate(signature.results[1]):
        builder.add((), (NO_DIM, dim), size)
    return builder.build()


RULES: dict[str, Builder] = {"stablehlo.rng_bit_generator": rng_bit_generator}
