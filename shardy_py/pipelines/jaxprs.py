"""Small parts of jaxprs: types of their variables, lists of equations as jaxprs."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from shardy_py.frontends.context import is_extended_dtype as is_extended_dtype

Atom = Any
"""A `Var` or a `Literal`."""


def shape_of(v: Atom) -> tuple[int, ...]:
    """Shape of a variable or literal."""
    return tuple(v.aval.shape)


def dtype_of(v: Atom) -> Any:
    """Element type of a variable or literal."""
    return v.aval.dtype


def bytes_of(v: Atom) -> int:
    """Bytes of a variable or literal, on one device."""
    return math.prod(getattr(v.aval, "shape", ())) * getattr(getattr(v.aval, "dtype", None), "itemsize", 4)


def short(v: Atom) -> str:
    """`float32[8,16]`."""
    return v.aval.str_short()


def struct_of(v: Atom) -> jax.ShapeDtypeStruct:
    """The type as JAX takes it for an argument; a weak type stays weak."""
    return jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=getattr(v.aval, "weak_type", False))


def is_differentiable(v: Atom) -> bool:
    """Whether a value is a variable of real or complex numbers, so that it has a cotangent."""
    return isinstance(v, Var) and jax.numpy.issubdtype(dtype_of(v), jax.numpy.inexact)


def reads(eqn: JaxprEqn) -> list[Var]:
    """The variables that an equation reads."""
    return [v for v in eqn.invars if not isinstance(v, Literal)]


def closed_jaxpr(eqns: Sequence[JaxprEqn], inputs: Iterable[Var], results: Iterable[Atom]) -> ClosedJaxpr:
    """The jaxpr of a list of equations, without constants."""
    effects: set[Any] = set().union(*(eqn.effects for eqn in eqns))
    return ClosedJaxpr(_empty().replace(invars=list(inputs), outvars=list(results), eqns=list(eqns), effects=effects), ())


@functools.cache
def _empty() -> Jaxpr:
    """A jaxpr to replace the parts of: its constructor takes other parts in every version of JAX."""
    return jax.make_jaxpr(lambda: ())().jaxpr


def closed(inner: ClosedJaxpr | Jaxpr) -> ClosedJaxpr:
    """The jaxpr of a call, which some primitives hold without constants."""
    return inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())
