"""Rules of ops that treat each position by itself."""

from __future__ import annotations

from shardy_py.dialect import OpShardingRule
from shardy_py.rules.builder import Builder, FactorBuilder, Signature
from shardy_py.rules.traits import ELEMENTWISE


def pointwise(signature: Signature) -> OpShardingRule:
    """Dimension `d` of every tensor that is not a scalar has factor `d`.

    Example:
        >>> str(pointwise(Signature(((4, 8), ()), ((4, 8),))))
        '#sdy.op_sharding_rule<([i, j], [])->([i, j]) {i=4, j=8}>'
    """
    builder = FactorBuilder(signature.operands, signature.results)
    builder.add_pointwise(signature.results[0])
    return builder.build()


NO_RULE = frozenset(("sdy.propagation_barrier", "sdy.reshard", "stablehlo.uniform_dequantize", "stablehlo.uniform_quantize"))
"""Elementwise ops that Shardy has no rule for."""

RULES: dict[str, Builder] = dict.fromkeys(sorted(ELEMENTWISE - NO_RULE), pointwise)
