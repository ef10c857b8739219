"""Elementwise primitives, as `_nary_lower_hlo` and the few rules beside it in `jax/_src/lax/lax.py` lower them."""

from __future__ import annotations

import functools

from shardy_py.frontends.primitives.avals import is_extended
from shardy_py.frontends.primitives.template import Builder, OpsTemplate, TemplateBuilder, Unsupported
from shardy_py.ir import TensorType
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
    if b.out_type.dtype.startswith("complex"):
        raise Unsupported
    return _nary(op, b)


def _exp2(b: Builder) -> OpsTemplate:
    scaled = b.op("stablehlo.multiply", (b.like(0, "log(2)"), 0), b.out_type)
    return b.build((b.op("stablehlo.exponential", (scaled,), b.out_type),), typed=False)


def _logistic(b: Builder) -> OpsTemplate:
    e = b.step("stablehlo.exponential", b.step("stablehlo.negate", 0))
    total = b.step("stablehlo.add", b.typed(b.like(0, 1)), e)
    return b.build((b.step("stablehlo.divide", b.typed(b.like(0, 1)), total),), typed=False)


def _square(b: Builder) -> OpsTemplate:
    op = "stablehlo.multiply" if "int" in b.out_type.dtype else "chlo.square"
    operands = (0, 0) if "int" in b.out_type.dtype else (0,)
    return b.build((b.op(op, operands, b.out_type),), typed=False)


def _pow(b: Builder) -> OpsTemplate:
    x, y = b.operands
    if b.type(x).dtype != b.type(y).dtype:
        y = b.op("stablehlo.convert", (y,), TensorType(b.type(y).shape, b.out_type.dtype))
    return b.build((b.op("stablehlo.power", b.match((x, y), b.out_type.shape), b.out_type),))


def _integer_pow(b: Builder) -> OpsTemplate:
    """Repeated squaring in the order of `_integer_pow`; the shortest powers are written out."""
    y = b.params["y"]
    if y == 0:
        return b.build((b.like(0, 1),))
    if y == 3:
        return b.build((b.op("stablehlo.multiply", (b.op("stablehlo.multiply", (0, 0), b.out_type), 0), b.out_type),))
    if y == 2:
        return b.build((b.op("stablehlo.multiply", (0, 0), b.out_type),))
    if y == -1:
        return b.build((b.op("stablehlo.divide", (b.like(0, 1), 0), b.out_type),))
    acc, x, left = -1, 0, abs(y)
    while left > 0:
        if left & 1:
            acc = x if acc < 0 else b.step("stablehlo.multiply", acc, x)
        left >>= 1
        if left > 0:
            x = b.step("stablehlo.multiply", x, x)
    if y < 0:
        acc = b.step("stablehlo.divide", b.typed(b.like(0, 1)), acc)
    return b.build((acc,))


def _compare(b: Builder) -> OpsTemplate:
    if is_extended(b.avals[0]):
        raise Unsupported
    return b.build((b.op("stablehlo.compare", b.match(b.operands, b.out_type.shape), b.out_type),), typed=False)


def _convert(b: Builder) -> OpsTemplate:
    """A conversion to bool compares with zero first; one from complex to real takes the real part first."""
    if is_extended(b.avals[0]) or is_extended(b.out_avals[0]):
        raise Unsupported
    x, out = 0, b.out_type
    if b.type(x).dtype.startswith("complex") and not out.dtype.startswith("complex"):
        x = b.op("stablehlo.real", (x,), TensorType(out.shape, "float64" if b.type(x).dtype == "complex128" else "float32"))
    if out.dtype == "bool":
        x = b.op("stablehlo.compare", (x, b.like(x, 0)), out)
    return b.build((b.op("stablehlo.convert", (x,), out),))


def _select(b: Builder) -> OpsTemplate:
    """Two cases under a bool; JAX compares an integer with the middle case, recursively."""
    which, *cases = b.operands
    if len(cases) == 1:
        return b.build((cases[0],))
    if b.type(which).dtype != "bool":
        raise Unsupported
    if is_extended(b.out_avals[0]):
        which = b.broadcast(which, b.out_type.shape, range(b.type(which).rank))
    return b.build((b.op("stablehlo.select", (which, cases[1], cases[0]), b.out_type),))


def _one(op: str, b: Builder) -> OpsTemplate:
    """One op whose operands have the result's shape already."""
    return b.build((b.op(op, b.operands, b.out_type),))


def _identity(b: Builder) -> OpsTemplate:
    """The operand itself: no op at all."""
    return b.build((0,), typed=False)


_NARY = {
    "abs": "stablehlo.abs",
    "acos": "chlo.acos",
    "acosh": "chlo.acosh",
    "add": "stablehlo.add",
    "and": "stablehlo.and",
    "asin": "chlo.asin",
    "asinh": "chlo.asinh",
    "atan": "chlo.atan",
    "atan2": "stablehlo.atan2",
    "atanh": "chlo.atanh",
    "bessel_i1e": "chlo.bessel_i1e",
    "cbrt": "stablehlo.cbrt",
    "ceil": "stablehlo.ceil",
    "clamp": "stablehlo.clamp",
    "clz": "stablehlo.count_leading_zeros",
    "complex": "stablehlo.complex",
    "cosh": "chlo.cosh",
    "digamma": "chlo.digamma",
    "div": "stablehlo.divide",
    "erf": "chlo.erf",
    "erf_inv": "chlo.erf_inv",
    "erfc": "chlo.erfc",
    "exp": "stablehlo.exponential",
    "expm1": "stablehlo.exponential_minus_one",
    "floor": "stablehlo.floor",
    "imag": "stablehlo.imag",
    "is_finite": "stablehlo.is_finite",
    "lgamma": "chlo.lgamma",
    "log": "stablehlo.log",
    "log1p": "stablehlo.log_plus_one",
    "mul": "stablehlo.multiply",
    "neg": "stablehlo.negate",
    "nextafter": "chlo.next_after",
    "not": "stablehlo.not",
    "or": "stablehlo.or",
    "polygamma": "chlo.polygamma",
    "population_count": "stablehlo.popcnt",
    "real": "stablehlo.real",
    "rem": "stablehlo.remainder",
    "rsqrt": "stablehlo.rsqrt",
    "shift_left": "stablehlo.shift_left",
    "shift_right_arithmetic": "stablehlo.shift_right_arithmetic",
    "shift_right_logical": "stablehlo.shift_right_logical",
    "sinh": "chlo.sinh",
    "sqrt": "stablehlo.sqrt",
    "sub": "stablehlo.subtract",
    "tan": "stablehlo.tan",
    "tanh": "stablehlo.tanh",
    "xor": "stablehlo.xor",
    "zeta": "chlo.zeta",
}

_REAL = {"cos": "stablehlo.cosine", "max": "stablehlo.maximum", "min": "stablehlo.minimum", "sin": "stablehlo.sine"}
"""Those that are several ops of complex values, which JAX's own lowering gives."""

BINARY_OPS = {
    **{name: op for name, op in _NARY.items() if op.startswith("stablehlo.")},
    **dict.fromkeys(("eq", "ge", "gt", "le", "lt", "ne"), "stablehlo.compare"),
    "add_any": "stablehlo.add",
    "max": "stablehlo.maximum",
    "min": "stablehlo.minimum",
    "pow": "stablehlo.power",
}
"""Primitive name -> the one op it is between operands of one shape."""

_IDENTITIES = (
    *CASTS, "agreed", "copy", "from_edtype", "multiple_of", "name", "random_clone", "random_unwrap", "random_wrap", "stage",
    "stop_gradient", "to_edtype",
)  # fmt: skip

TEMPLATES: dict[str, TemplateBuilder] = {
    **{name: functools.partial(_nary, op) for name, op in _NARY.items()},
    **{name: functools.partial(_real_only, op) for name, op in _REAL.items()},
    **dict.fromkeys(("eq", "eq_to", "ge", "gt", "le", "le_to", "lt", "lt_to", "ne"), _compare),
    **dict.fromkeys(_IDENTITIES, _identity),
    "add_any": functools.partial(_one, "stablehlo.add"),
    "convert_element_type": _convert,
    "exp2": _exp2,
    "integer_pow": _integer_pow,
    "logistic": _logistic,
    "pow": _pow,
    "reduce_precision": functools.partial(_one, "stablehlo.reduce_precision"),
    "select_n": _select,
    "square": _square,
}
