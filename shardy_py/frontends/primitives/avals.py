"""Abstract values as types of the program: a PRNG key has its physical type, a token is opaque."""

from __future__ import annotations

from typing import Any

from shardy_py.frontends import _jax
from shardy_py.ir import TOKEN, TensorType, Type

_TYPES: dict[Any, Type] = {}


def is_extended(aval: Any) -> bool:
    """Whether the elements are of an extended type, such as PRNG keys."""
    return _jax.is_extended_dtype(aval.dtype)


def physical_shape(aval: Any) -> tuple[int, ...]:
    """The shape with the dimensions that a PRNG key adds at the end."""
    return tuple(_jax.physical_aval(aval).shape) if is_extended(aval) else tuple(aval.shape)


def type_of_aval(aval: Any) -> Type:
    """The type of a value with this abstract value."""
    type_ = _TYPES.get(aval)
    if type_ is None:
        if not hasattr(aval, "shape"):
            return TOKEN
        physical = _jax.physical_aval(aval) if is_extended(aval) else aval
        type_ = TensorType(tuple(int(n) for n in physical.shape), str(physical.dtype))
        if len(_TYPES) > 10_000:
            _TYPES.clear()
        _TYPES[aval] = type_
    return type_
