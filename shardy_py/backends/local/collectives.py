"""Collectives over axes of the region, written down as equations of known types.

The functions of `jax.lax` ask each time how many devices there are, by a collective of its own, and derive what comes out. Here each is
called once for equal parameters; afterwards the equation that it wrote is written again, for other operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax.core import Tracer

from shardy_py.frontends.context import Written, axis_sizes, local_type, recorded, written

Array = Any
Names = tuple[str, ...]


def psum(x: Array, names: Names) -> Array:
    """As `jax.lax.psum`."""
    return _sent(x, lax.psum, names, x.shape)


def pmax(x: Array, names: Names) -> Array:
    """As `jax.lax.pmax`."""
    return _sent(x, lax.pmax, names, x.shape)


def pmin(x: Array, names: Names) -> Array:
    """As `jax.lax.pmin`."""
    return _sent(x, lax.pmin, names, x.shape)


def ppermute(x: Array, names: Names, pairs: tuple[tuple[int, int], ...]) -> Array:
    """As `jax.lax.ppermute`."""
    return _sent(x, lax.ppermute, names, x.shape, perm=pairs)


def all_gather(x: Array, names: Names, dim: int, *, tiled: bool) -> Array:
    """As `jax.lax.all_gather`; blocks along a dimension one behind the other, or with `tiled=False` along one of their own."""
    k = math.prod(axis_sizes(names))
    shape = _scaled(x.shape, dim, k) if tiled else (*x.shape[:dim], k, *x.shape[dim:])
    return _sent(x, lax.all_gather, names, shape, axis=dim, tiled=tiled)


def all_to_all(x: Array, names: Names, split: int, concat: int) -> Array:
    """As `jax.lax.all_to_all(tiled=True)`: one dimension is cut, and the pieces are put together along another."""
    k = math.prod(axis_sizes(names))
    cut = tuple([n // k if d == split else n for d, n in enumerate(x.shape)])
    return _sent(x, lax.all_to_all, names, _scaled(cut, concat, k), split_axis=split, concat_axis=concat, tiled=True)


def psum_scatter(x: Array, names: Names, dim: int) -> Array:
    """As `jax.lax.psum_scatter(tiled=True)`."""
    k = math.prod(axis_sizes(names))
    shape = tuple([n // k if d == dim else n for d, n in enumerate(x.shape)])
    return _sent(x, lax.psum_scatter, names, shape, scatter_dimension=dim, tiled=True)


def _scaled(shape: Sequence[int], dim: int, k: int) -> tuple[int, ...]:
    return tuple([n * k if d == dim else n for d, n in enumerate(shape)])


def _sent(x: Array, function: Callable[..., Array], names: Names, shape: Sequence[int], **given: Any) -> Array:
    """What a function of `jax.lax` gives, whose result has a shape."""
    if not isinstance(x, Tracer):
        return function(x, names, **given)
    aval = jax.typeof(x)
    key = (function, names, axis_sizes(names), aval.dtype, aval.weak_type, *given.items())
    known = _KNOWN.get(key)
    if known is not None:
        equation, like = known
        made = recorded(equation.primitive, (x,), equation.params, (local_type(like, shape),), effects=equation.effects)
        if made is not None:
            return made[0]
    made = function(x, names, **given)
    equation = written(made, x)
    if equation is not None:
        if len(_KNOWN) >= 4096:
            _KNOWN.clear()
        _KNOWN[key] = equation, jax.typeof(made)
    return made


_KNOWN: dict[Any, tuple[Written, Any]] = {}
"""What was called, and over what -> what it wrote, and the type that came out."""
