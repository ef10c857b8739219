"""Types of the variables and literals of a jaxpr."""

from __future__ import annotations

from typing import Any

import jax


def shape_of(v: Any) -> tuple[int, ...]:
    """Shape of a variable or literal."""
    return tuple(v.aval.shape)


def dtype_of(v: Any) -> Any:
    """Element type of a variable or literal."""
    return v.aval.dtype


def short(v: Any) -> str:
    """`float32[8,16]`."""
    return v.aval.str_short()


def struct_of(v: Any) -> jax.ShapeDtypeStruct:
    """The type as JAX takes it for an argument; types that adapt stay such."""
    return jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=getattr(v.aval, "weak_type", False))


def is_extended_dtype(dtype: Any) -> bool:
    """Whether an element type is an extended one, such as that of PRNG keys."""
    return jax.dtypes.issubdtype(dtype, jax.dtypes.extended)
