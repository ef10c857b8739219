"""Floats as integers in the same order: what the largest and smallest of are taken of over devices.

All-reduces by maximum and minimum pass NaN over on CPU, and may elsewhere, which reductions on one device do not. Integers have no NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp

Array = Any


def as_ordered(x: Array, largest: bool) -> Array:
    """Integers of the size of floats, in their order, -0 before 0; small floats of one byte become four."""
    wide = x if x.dtype.itemsize > 1 else lax.convert_element_type(x, jnp.float32)
    limits = jnp.iinfo(f"int{8 * wide.dtype.itemsize}")
    bits = lax.bitcast_convert_type(wide, limits.dtype)
    nan = lax.full_like(bits, limits.max if largest else limits.min)
    return lax.select(lax.ne(wide, wide), nan, _turned(bits))


def from_ordered(ordered: Array, dtype: Any) -> Array:
    """The inverse of `as_ordered`: integers back to floats."""
    wide = dtype if jnp.dtype(dtype).itemsize > 1 else jnp.float32
    return lax.convert_element_type(lax.bitcast_convert_type(_turned(ordered), wide), dtype)


def _turned(bits: Array) -> Array:
    """The bits of floats in the order of integers, and back: those of negative ones, but for the sign, are the other way round."""
    turned = lax.bitwise_xor(bits, np.array(jnp.iinfo(bits.dtype).max, bits.dtype))
    return lax.select(lax.lt(bits, np.zeros((), bits.dtype)), turned, bits)
