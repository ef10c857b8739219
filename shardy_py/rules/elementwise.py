"""Rules of ops that treat each position by itself."""

from __future__ import annotations

from shardy_py.dialect import OpShardingRule
from shardy_py.rules.builder import Builder, FactorBuilder, Signature

UNIFORM = (
    "stablehlo.abs",
    "stablehlo.add",
    "stablehlo.and",
    "stablehlo.atan2",
    "stablehlo.cbrt",
    "stablehlo.ceil",
    "stablehlo.compare",
    "stablehlo.complex",
    "stablehlo.convert",
    "stablehlo.cosine",
    "stablehlo.count_leading_zeros",
    "stablehlo.divide",
    "stablehlo.exponential",
    "stablehlo.exponential_minus_one",
    "stablehlo.floor",
    "stablehlo.imag",
    "stablehlo.is_finite",
    "stablehlo.log",
    "stablehlo.log_plus_one",
    "stablehlo.logistic",
    "stablehlo.maximum",
    "stablehlo.minimum",
    "stablehlo.multiply",
    "stablehlo.negate",
    "stablehlo.not",
    "stablehlo.or",
    "stablehlo.popcnt",
    "stablehlo.power",
    "stablehlo.real",
    "stablehlo.reduce_precision",
    "stablehlo.remainder",
    "stablehlo.round_nearest_afz",
    "stablehlo.round_nearest_even",
    "stablehlo.rsqrt",
    "stablehlo.shift_left",
    "stablehlo.shift_right_arithmetic",
    "stablehlo.shift_right_logical",
    "stablehlo.sign",
    "stablehlo.sine",
    "stablehlo.sqrt",
    "stablehlo.subtract",
    "stablehlo.tan",
    "stablehlo.tanh",
    "stablehlo.xor",
)
"""Ops whose operands and results all have one shape."""

WITH_SCALARS = ("stablehlo.clamp", "stablehlo.select")
"""Ops where some operands may be scalars although the result is not."""


def pointwise(signature: Signature) -> OpShardingRule:
    """Dimension `d` of every tensor that is not a scalar has factor `d`.

    Example:
        >>> str(pointwise(Signature(((4, 8), ()), ((4, 8),))))
        '#sdy.op_sharding_rule<([i, j], [])->([i, j]) {i=4, j=8}>'
    """
    builder = FactorBuilder(signature.operands, signature.results)
    builder.add_pointwise(signature.results[0])
    return builder.build()


RULES: dict[str, Builder] = {
    **dict.fromkeys(UNIFORM, pointwise),
    **dict.fromkeys(WITH_SCALARS, pointwise),
    "sdy.sharding_constraint": pointwise,
}
