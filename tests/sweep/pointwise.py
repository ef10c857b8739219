"""Configurations of primitives that work element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import primitives

from tests.sweep.draw import ANY, COMPLEX, FLOATS, INTEGERS, NUMBERS, SMALL_FLOATS, Case, Draw, Generator

REAL = ("float32", "float32", "float64", "bfloat16")

_OF_REALS = """
    acos asin asinh atan atanh bessel_i0e bessel_i1e cbrt cos cosh digamma erf erf_inv erfc exp exp2 expm1 is_finite lgamma
    log log1p logistic rsqrt sin sinh sqrt tan tanh
"""
_OF_NUMBERS = {
    "abs": (*FLOATS, "int32", "int8", *COMPLEX),
    "neg": NUMBERS,
    "sign": NUMBERS,
    "square": NUMBERS,
    "ceil": FLOATS,
    "floor": FLOATS,
    "round": FLOATS,
}
_BITS = {"not": "bitwise_not", "clz": "clz", "population_count": "population_count"}
_PAIRS = {
    **dict.fromkeys(("add", "sub", "mul", "max", "min", "eq", "ne"), NUMBERS),
    **dict.fromkeys(("ge", "gt", "le", "lt", "div", "rem"), (*FLOATS, *INTEGERS)),
    **dict.fromkeys(("atan2", "nextafter", "igamma", "igammac", "igamma_grad_a"), REAL),
}
_LOGIC = {name: f"bitwise_{name}" for name in ("and", "or", "xor")}
_SHIFTS = ("shift_left", "shift_right_arithmetic", "shift_right_logical")


def _of_reals(name: str) -> Generator:
    def generate(draw: Draw) -> Case:
        low, high = (1.1, 3.0) if name == "acosh" else (0.05, 0.95)
        return Case(getattr(lax, name), (draw.reals(draw.shape(0), draw.dtype(REAL), low, high),), (0,))

    return generate


def _of_numbers(name: str, types: tuple[str, ...]) -> Generator:
    return lambda draw: Case(getattr(lax, name), (draw.array(draw.shape(0), draw.dtype(types)),))


def _pair(name: str, types: tuple[str, ...]) -> Generator:
    def generate(draw: Draw) -> Case:
        shape, dtype = draw.shape(0), draw.dtype(types)
        positive = jnp.issubdtype(dtype, jnp.integer) or name.startswith("ig")
        second = shape if draw.chance(70) or name in ("nextafter", "atan2") or name.startswith("ig") else ()
        operands = draw.array(shape, dtype, 1 if positive else -4), draw.array(second, dtype, 1, 4)
        smooth = (0, 1) if jnp.issubdtype(dtype, jnp.floating) and name in ("add", "sub", "mul", "div", "max", "min", "atan2") else ()
        return Case(getattr(lax, name), operands, smooth)

    return generate


def _bits(function: Callable[..., Any], count: int, *, boolean: bool = True) -> Generator:
    def generate(draw: Draw) -> Case:
        shape, dtype = draw.shape(0), draw.dtype((*INTEGERS, "bool") if boolean else INTEGERS)
        return Case(function, tuple(draw.array(shape, dtype, 0, 7) for _ in range(count)))

    return generate


def _bound(name: str, count: int, types: tuple[str, ...]) -> Generator:
    def generate(draw: Draw) -> Case:
        shape, dtype = draw.shape(0), draw.dtype(types)
        return Case(getattr(primitives, f"{name}_p").bind, tuple(draw.array(shape, dtype) for _ in range(count)))

    return generate


def _clamp(draw: Draw) -> Case:
    shape, dtype = draw.shape(0), draw.dtype((*FLOATS, *INTEGERS))
    bounds = shape if draw.chance(40) else ()
    return Case(lax.clamp, (draw.array(bounds, dtype, -3, 0), draw.array(shape, dtype, -5, 5), draw.array(bounds, dtype, 1, 3)))


def _select_n(draw: Draw) -> Case:
    shape, dtype, count = draw.shape(0), draw.dtype(ANY), draw.one_of((2, 2, 3))
    which = draw.array(shape if draw.chance(70) else (), "bool" if count == 2 else "int32", 0, count - 1)
    return Case(lax.select_n, (which, *(draw.array(shape, dtype) for _ in range(count))), fixed=(0,))


def _complex(draw: Draw) -> Case:
    shape = draw.shape(0)
    return Case(lax.complex, (draw.array(shape, "float32"), draw.array(shape, "float32")))


def _of_complex(name: str) -> Generator:
    return lambda draw: Case(getattr(lax, name), (draw.array(draw.shape(0), draw.dtype(COMPLEX)),))


def _convert(draw: Draw) -> Case:
    dtype = draw.dtype(ANY)
    source = draw.dtype([t for t in ANY if jnp.issubdtype(dtype, jnp.complexfloating) or "complex" not in t])
    return Case(lambda x: lax.convert_element_type(x, dtype), (draw.array(draw.shape(0), source, 0, 4),))


def _integer_pow(draw: Draw) -> Case:
    dtype, power = draw.dtype(FLOATS), draw.one_of((-2, -1, 0, 1, 2, 3, 5))
    return Case(lambda x: lax.integer_pow(x, power), (draw.array(draw.shape(0), dtype, 1, 3),), (0,))


def _pow(draw: Draw) -> Case:
    shape, dtype = draw.shape(0), draw.dtype(REAL)
    exponent = draw.array(shape, draw.one_of((dtype, jnp.dtype("int32"))), 0, 3)
    return Case(lax.pow, (draw.reals(shape, dtype, 0.5, 1.5), exponent), (0,))


def _reduce_precision(draw: Draw) -> Case:
    bits = draw.one_of(((5, 4), (8, 7), (5, 10)))
    return Case(lambda x: lax.reduce_precision(x, *bits), (draw.reals(draw.shape(0), "float32"),))


def _betainc(draw: Draw) -> Case:
    shape = draw.shape(0)
    return Case(
        lax.betainc, (draw.reals(shape, "float32", 0.5, 2), draw.reals(shape, "float32", 0.5, 2), draw.reals(shape, "float32", 0.1, 0.9))
    )


def _polygamma(draw: Draw) -> Case:
    shape = draw.shape(0)
    return Case(lax.polygamma, (draw.array(shape, "float32", 1, 3), draw.reals(shape, "float32", 0.5, 2)))


def _zeta(draw: Draw) -> Case:
    shape = draw.shape(0)
    return Case(lax.zeta, (draw.reals(shape, "float32", 2, 4), draw.reals(shape, "float32", 1, 3)))


def _polynomial(draw: Draw) -> Case:
    shape, count = draw.shape(0), draw.integer(1, 4)
    coefficients = [draw.array(shape if draw.chance(30) else (), "float32", -2, 2) for _ in range(count)]
    return Case(lambda x, *c: lax.polynomial(x, c), (draw.array(shape, "float32", -2, 2), *coefficients), (0,))


def _name(draw: Draw) -> Case:
    return Case(lambda x: checkpoint_name(x, "x"), (draw.array(draw.shape(0), draw.dtype(FLOATS)),), (0,))


def _threefry(draw: Draw) -> Case:
    shape = draw.shape()
    words = [draw.array(s, "uint32", 0, 1 << 31) for s in ((), (), shape, shape)]
    return Case(primitives.threefry2x32_p.bind, tuple(words))


def _bitcast(draw: Draw) -> Case:
    old, new = draw.one_of((("float32", "int32"), ("float32", "uint8"), ("float32", "int16"), ("uint8", "int8"), ("bfloat16", "uint16"),
                            ("int16", "uint8"), ("uint8", "uint32"), ("uint16", "float32")))  # fmt: skip
    shape = draw.shape()
    wider = jnp.dtype(new).itemsize // jnp.dtype(old).itemsize
    return Case(lambda x: lax.bitcast_convert_type(x, new), (draw.array((*shape, wider) if wider > 1 else shape, old, 0, 9),))


def _small_floats(draw: Draw) -> Case:
    shape, dtype = draw.shape(0), draw.dtype(SMALL_FLOATS)
    return Case(draw.one_of((lax.add, lax.mul, lax.max)), (draw.array(shape, dtype, -2, 2), draw.array(shape, dtype, -2, 2)))


_LATER = {"log2": _of_reals("log2"), "one_minus_square": _of_reals("one_minus_square"), "polynomial": _polynomial}
"""Primitives that not every version has."""

GENERATORS: dict[str, Generator] = {
    **{name: _of_reals(name) for name in (*_OF_REALS.split(), "acosh")},
    **{name: _of_numbers(name, types) for name, types in _OF_NUMBERS.items()},
    **{name: _bits(getattr(lax, function), 1, boolean=name == "not") for name, function in _BITS.items()},
    **{name: _pair(name, types) for name, types in _PAIRS.items()},
    **{name: _bits(getattr(lax, function), 2) for name, function in _LOGIC.items()},
    **{name: _bits(getattr(lax, name), 2, boolean=False) for name in _SHIFTS},
    **{name: _of_complex(name) for name in ("real", "imag", "conj")},
    **{name: _bound(name, 2, ("float32",)) for name in ("eq_to", "le_to", "lt_to")},
    "copy": _bound("copy", 1, ANY),
    "add_any": lambda draw: Case(jax.grad(lambda x: jnp.sum(x * jnp.sin(x))), (draw.array(draw.shape(0), "float32"),)),
    "clamp": _clamp,
    "select_n": _select_n,
    "complex": _complex,
    "convert_element_type": _convert,
    "integer_pow": _integer_pow,
    "pow": _pow,
    "reduce_precision": _reduce_precision,
    "regularized_incomplete_beta": _betainc,
    "polygamma": _polygamma,
    **{name: case for name, case in _LATER.items() if hasattr(lax, name)},
    "zeta": _zeta,
    "name": _name,
    "threefry2x32": _threefry,
    "bitcast_convert_type": _bitcast,
    "add/small floats": _small_floats,
    "stop_gradient": lambda draw: Case(lax.stop_gradient, (draw.array(draw.shape(0), "float32"),)),
    "optimization_barrier": lambda draw: Case(lax.optimization_barrier, (draw.array(draw.shape(0), draw.dtype(ANY)),)),
    "custom_jvp_call": lambda draw: Case(jax.nn.relu, (draw.array(draw.shape(0), draw.dtype(FLOATS)),), (0,)),
}
