"""Iotas: each shard counts from its offset."""

from __future__ import annotations

import math

import numpy as np
from jax import lax
from jax import numpy as jnp

from shardy_py.backends.local.local_rule import Array, Builder, Equation, LocalContext, LocalRule, affine, make_rule, positions


def iota(equation: Equation) -> LocalRule | None:
    """Positions along a dimension; a shard adds its offset."""
    if equation.shapes:
        return None
    (shape,), (dtype,) = equation.result_shapes, equation.result_dtypes
    dimension = equation.params["dimension"]
    rank = range(len(shape))

    def run(local: LocalContext, arrays: list) -> list:
        counter = dtype if jnp.issubdtype(dtype, jnp.integer) and dtype.itemsize >= 4 else jnp.dtype(jnp.int32)
        counts = positions(local.result_shape(0), dimension, affine(local.index(dimension), local.block(dimension)), counter)
        return [lax.convert_element_type(counts, dtype)]

    return LocalRule(make_rule(shape, [], [rank]), run, uneven=frozenset(rank))


def linear_index(local: LocalContext, shape: tuple[int, ...], factors: tuple[int, ...], result: tuple[int, ...]) -> tuple[Array, Array]:
    """Row-major positions in a global array, as high and low halves of 64 bits."""
    high = low = lax.full(result, 0, jnp.uint32)
    stride = 1
    for d in reversed(range(len(shape))):
        start = affine(local.index(factors[d]), local.block(factors[d])) if local.names(factors[d]) else 0
        at = positions(result, d, start, jnp.dtype(jnp.uint32))
        if math.prod(shape) <= 1 << 32:
            low = lax.add(low, lax.mul(at, np.uint32(stride % (1 << 32))))
        else:
            more, less = _product(at, stride)
            low = low + less
            high = high + more + (low < less).astype(jnp.uint32)
        stride *= shape[d]
    return high, low


def _product(a: Array, b: int) -> tuple[Array, Array]:
    """The high and the low half of a product of 32 bits with 64, of which the low 64 bits are kept."""
    mask = np.uint32(0xFFFF)
    b0, b1, rest = np.uint32(b & 0xFFFF), np.uint32(b >> 16 & 0xFFFF), np.uint32(b >> 32 & 0xFFFFFFFF)
    a0, a1 = a & mask, a >> 16
    low, middle = a0 * b0, a1 * b0
    middle = middle + (low >> 16)
    other = a0 * b1 + (middle & mask)
    return a1 * b1 + (middle >> 16) + (other >> 16) + a * rest, (other << 16) | (low & mask)


def iota_2x32_shape(equation: Equation) -> LocalRule | None:
    """Positions in row-major order, in two halves."""
    shape = equation.result_shapes[0]
    rank = tuple(range(len(shape)))

    def run(local: LocalContext, arrays: list) -> list:
        return list(linear_index(local, shape, rank, local.result_shape(0)))

    return LocalRule(make_rule(shape, [], [rank, rank]), run, uneven=frozenset(rank))


LOCAL_RULES: dict[str, Builder] = {"iota": iota, "iota_2x32_shape": iota_2x32_shape}
"""Primitive -> builder of its local rule."""
