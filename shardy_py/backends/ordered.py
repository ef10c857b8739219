"""Floats as integers in the same order: what the largest and smallest of are taken of over devices.

All-reduces by maximum and minimum pass NaN over on CPU, and may elsewhere, which reductions on one device do not. Integers have no NaN.
"""

from __future__ import annotations

from typing import Any

from jax import lax
from jax import numpy as jnp

Array = Any


def as_ordered(x: Array, largest: bool) -> Array:
    """Integers of the size of floats, in their order, -0 before 0; small floats of one byte become four.

    Args:
        x: Floats.
        largest: Whether NaN comes last; otherwise first. So it wins.
    """
    wide = x if x.dtype.itemsize > 1 else x.astype(jnp.float32)
    limits = jnp.iinfo(f"int{8 * wide.dtype.itemsize}")
    bits = lax.bitcast_convert_type(wide, limits.dtype)
    ordered = jnp.where(bits < 0, bits ^ limits.max, bits)
    return jnp.where(jnp.isnan(wide), limits.max if largest else limits.min, ordered)


def from_ordered(ordered: Array, dtype: Any) -> Array:
    """The floats that `as_ordered` was given.

    Args:
        ordered: Integers.
        dtype: The floats' type.
    """
    wide = dtype if jnp.dtype(dtype).itemsize > 1 else jnp.float32
    bits = jnp.where(ordered < 0, ordered ^ jnp.iinfo(ordered.dtype).max, ordered)
    return lax.bitcast_convert_type(bits, wide).astype(dtype)
