"""Abstract values as types of the program: a PRNG key has its physical type, a token is opaque."""

from __future__ import annotations

import functools
from typing import Any

from shardy_py.frontends import _jax
from shardy_py.ir import TOKEN, TensorType, Type


def is_extended(aval: Any) -> bool:
    """Whether the elements are of an extended type, such as PRNG keys."""
    return _jax.is_extended_dtype(aval.dtype)


def physical_shape(aval: Any) -> tuple[int, ...]:
    """The shape with the dimensions that a PRNG key adds at the end."""
    return tuple(_jax.physical_aval(aval).shape) if is_extended(aval) else tuple(aval.shape)


@functools.lru_cache(maxsize=10_000)
def type_of_aval(aval: Any) -> Type:
    """The type of a value with this abstract value."""
    if not hasattr(aval, "shape"):
        return TOKEN
    physical = _jax.physical_aval(aval) if is_extended(aval) else aval
    return TensorType(tuple(int(n) for n in physical.shape), str(physical.dtype))
