"""Elementwise primitives, as `_nary_lower_hlo` and the few rules beside it in `jax/_src/lax/lax.py` lower them."""

from __future__ import annotations

import functools

from shardy_py.frontends.primitives.avals import is_extended
from shardy_py.frontends.primitives.template import Builder, OpsTemplate, TemplateBuilder, Unsupported
from shardy_py.ir.jax_collectives import CASTS


def _nary(op: str, b: Builder) -> OpsTemplate:
    """Every operand is broadcast to the result's shape, then one op."""
    shape = b.out_type.shape
    operands = b.match(b.operands, shape)
    if b.params.get("out_dtype") is not None:
        operands = tuple(b.op("stablehlo.convert", (s,), b.out_type) for s in operands)
    out = b.op(op, operands, b.out_type)
    if b.params.get("accuracy"):
        out = b.op(op, operands, b.out_type)
    return b.build((out,))


def _real_only(op: str, b: Builder) -> OpsTemplate:
    if b.type(0).dtype.startswith("complex"):
        raise Unsupported
    return _nary(op, b)


def _square(b: Builder) -> OpsTemplate:
    if b.out_type.dtype.startswith("complex"):
        raise Unsupported
    return b.build((b.op("stablehlo.multiply", (0, 0), b.out_type),))


def _integer_pow(b: Builder) -> OpsTemplate:
    """Repeated squaring in the order of `_integer_pow`; 3 is written out."""
    y, type_ = b.params["y"], b.out_type
    if y == 3:
        return b.build((b.op("stablehlo.multiply", (b.op("stablehlo.multiply", (0, 0), type_), 0), type_),))
    power, x, left = -1, 0, abs(y)
    while left > 0:
        if left & 1:
            power = x if power < 0 else b.op("stablehlo.multiply", (power, x), type_)
        left >>= 1
        if left > 0:
            x = b.op("stablehlo.multiply", (x, x), type_)
    if y < 0:
        power = b.op("stablehlo.divide", (b.like(0, 1), power), type_)
    return b.build((b.like(0, 1) if power < 0 else power,))


def _compare(b: Builder) -> OpsTemplate:
    if is_extended(b.avals[0]):
        raise Unsupported
    return b.build((b.op("stablehlo.compare", b.match(b.operands, b.out_type.shape), b.out_type),))


def _convert(b: Builder) -> OpsTemplate:
    """A conversion to bool compares with zero first."""
    if is_extended(b.avals[0]) or is_extended(b.out_avals[0]) or b.type(0).dtype.startswith("complex"):
        raise Unsupported
    x = b.op("stablehlo.compare", (0, b.like(0, 0)), b.out_type) if b.out_type.dtype == "bool" else 0
    return b.build((b.op("stablehlo.convert", (x,), b.out_type),))


def _select(b: Builder) -> OpsTemplate:
    which, *cases = b.operands
    if is_extended(b.out_avals[0]) or len(cases) != 2 or b.type(which).dtype != "bool":
        raise Unsupported
    return b.build((b.op("stablehlo.select", (which, cases[1], cases[0]), b.out_type),))


def _one(op: str, b: Builder) -> OpsTemplate:
    """One op whose operands have the result's shape already."""
    return b.build((b.op(op, b.operands, b.out_type),))


def _identity(b: Builder) -> OpsTemplate:
    """The operand itself: no op at all."""
    return b.build((0,))


_SAME = (
    "add and atan2 ceil clamp complex floor imag is_finite log not or real rsqrt shift_left shift_right_arithmetic shift_right_logical"
    " sqrt tanh xor"
).split()
"""Primitives with the names of their ops."""

_NARY = {
    **{name: f"stablehlo.{name}" for name in _SAME},
    "div": "stablehlo.divide",
    "exp": "stablehlo.exponential",
    "expm1": "stablehlo.exponential_minus_one",
    "log1p": "stablehlo.log_plus_one",
    "mul": "stablehlo.multiply",
    "neg": "stablehlo.negate",
    "rem": "stablehlo.remainder",
    "sub": "stablehlo.subtract",
}

_REAL = {"abs": "stablehlo.abs", "cos": "stablehlo.cosine", "max": "stablehlo.maximum", "min": "stablehlo.minimum", "sin": "stablehlo.sine"}
"""Of complex numbers they are several ops."""

_IDENTITIES = (
    *CASTS, "agreed", "copy", "from_edtype", "multiple_of", "name", "random_clone", "random_unwrap", "random_wrap", "stage",
    "stop_gradient", "to_edtype",
)  # fmt: skip

TEMPLATES: dict[str, TemplateBuilder] = {
    **{name: functools.partial(_nary, op) for name, op in _NARY.items()},
    **{name: functools.partial(_real_only, op) for name, op in _REAL.items()},
    **dict.fromkeys(("eq", "ge", "gt", "le", "lt", "ne"), _compare),
    **dict.fromkeys(_IDENTITIES, _identity),
    "add_any": functools.partial(_one, "stablehlo.add"),
    "convert_element_type": _convert,
    "integer_pow": _integer_pow,
    "reduce_precision": functools.partial(_one, "stablehlo.reduce_precision"),
    "select_n": _select,
    "square": _square,
}
