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
    return _bound(x, lax.psum, names, x.shape)


def pmax(x: Array, names: Names) -> Array:
    """As `jax.lax.pmax`."""
    return _bound(x, lax.pmax, names, x.shape)


def pmin(x: Array, names: Names) -> Array:
    """As `jax.lax.pmin`."""
    return _bound(x, lax.pmin, names, x.shape)


def ppermute(x: Array, names: Names, pairs: tuple[tuple[int, int], ...]) -> Array:
    """As `jax.lax.ppermute`."""
    return _bound(x, lax.ppermute, names, x.shape, perm=pairs)


def all_gather(x: Array, names: Names, dim: int, *, tiled: bool) -> Array:
    """As `jax.lax.all_gather`; blocks along a dimension one behind the other, or with `tiled=False` along one of their own."""
    k = math.prod(axis_sizes(names))
    shape = _scaled(x.shape, dim, k) if tiled else (*x.shape[:dim], k, *x.shape[dim:])
    return _bound(x, lax.all_gather, names, shape, axis=dim, tiled=tiled)


def all_to_all(x: Array, names: Names, split: int, concat: int) -> Array:
    """As `jax.lax.all_to_all(tiled=True)`: one dimension is cut, and the pieces are put together along another."""
    k = math.prod(axis_sizes(names))
    cut = tuple([n // k if d == split else n for d, n in enumerate(x.shape)])
    return _bound(x, lax.all_to_all, names, _scaled(cut, concat, k), split_axis=split, concat_axis=concat, tiled=True)


def psum_scatter(x: Array, names: Names, dim: int) -> Array:
    """As `jax.lax.psum_scatter(tiled=True)`."""
    k = math.prod(axis_sizes(names))
    shape = tuple([n // k if d == dim else n for d, n in enumerate(x.shape)])
    return _bound(x, lax.psum_scatter, names, shape, scatter_dimension=dim, tiled=True)


def _scaled(shape: Sequence[int], dim: int, k: int) -> tuple[int, ...]:
    return tuple([n * k if d == dim else n for d, n in enumerate(shape)])


def _bound(x: Array, function: Callable[..., Array], names: Names, shape: Sequence[int], **params: Any) -> Array:
    """Applies a collective of `jax.lax` whose result has a known shape."""
    if not isinstance(x, Tracer):
        return function(x, names, **params)
    aval = jax.typeof(x)
    key = (function, names, axis_sizes(names), aval.dtype, aval.weak_type, *params.items())
    cached = _EQUATIONS.get(key)
    if cached is not None:
        equation, result_type = cached
        result = recorded(equation.primitive, (x,), equation.params, (local_type(result_type, shape),), effects=equation.effects)
        if result is not None:
            return result[0]
    result = function(x, names, **params)
    equation = written(result, x)
    if equation is not None:
        if len(_EQUATIONS) >= 4096:
            _EQUATIONS.clear()
        _EQUATIONS[key] = equation, jax.typeof(result)
    return result


_EQUATIONS: dict[Any, tuple[Written, Any]] = {}
"""Collective, axes and operand type -> the equation that JAX wrote, and its result type."""
