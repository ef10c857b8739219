"""Functions of `jax.lax` on local arrays, written down as equations of known types.

They give what those of the same names in `jax.lax` give, in half of the time or less: what is left out is to find out whether operands
fit together, which mesh they are on, and what type comes out. Where an operand is no tracer, or its type is not plain, `jax.lax` is asked.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.core import ShapedArray, Tracer

from shardy_py.frontends.context import local_type, recorded

Array = Any
Shape = Sequence[int]


def _aval(x: Any) -> Any:
    """The type of a tracer of numbers; None of anything else."""
    if not isinstance(x, Tracer):
        return None
    aval = jax.typeof(x)
    return aval if isinstance(aval.dtype, np.dtype) and not aval.weak_type else None


def _written(primitive: Any, operands: Sequence[Any], params: dict[str, Any], like: Any, shape: Shape) -> Array | None:
    results = recorded(primitive, operands, params, (local_type(like, shape),))
    return None if results is None else results[0]


def slice(x: Array, starts: Shape, limits: Shape, strides: Shape | None = None) -> Array:
    """As `jax.lax.slice`."""
    aval, result = _aval(x), None
    if aval is not None:
        every = (1,) * len(starts) if strides is None else strides
        shape = tuple([max(0, -((start - limit) // step)) for start, limit, step in zip(starts, limits, every, strict=True)])
        if any(start < 0 or limit > n or start > limit for start, limit, n in zip(starts, limits, x.shape, strict=True)):
            return lax.slice(x, starts, limits, strides)
        params = {"start_indices": tuple(starts), "limit_indices": tuple(limits), "strides": strides and tuple(strides)}
        result = _written(lax.slice_p, (x,), params, aval, shape)
    return lax.slice(x, starts, limits, strides) if result is None else result


def slice_in_dim(x: Array, start: int, limit: int, stride: int = 1, *, axis: int = 0) -> Array:
    """As `jax.lax.slice_in_dim`."""
    starts = tuple([start if d == axis else 0 for d in range(x.ndim)])
    limits = tuple([limit if d == axis else n for d, n in enumerate(x.shape)])
    return slice(x, starts, limits, None if stride == 1 else tuple([stride if d == axis else 1 for d in range(x.ndim)]))


def index_in_dim(x: Array, index: int, axis: int = 0) -> Array:
    """As `jax.lax.index_in_dim(keepdims=False)`."""
    axis, n = axis % x.ndim, x.shape[axis]
    start = index + n if index < 0 else index
    return squeeze(slice_in_dim(x, start, start + 1, axis=axis), axis)


def squeeze(x: Array, axis: int) -> Array:
    """As `jax.lax.squeeze` of one dimension."""
    aval, result = _aval(x), None
    if aval is not None and x.shape[axis] == 1:
        result = _written(lax.squeeze_p, (x,), {"dimensions": (axis,)}, aval, (*x.shape[:axis], *x.shape[axis + 1 :]))
    return lax.squeeze(x, (axis,)) if result is None else result


def dynamic_slice(x: Array, starts: Sequence[Any], sizes: Shape) -> Array:
    """As `jax.lax.dynamic_slice(allow_negative_indices=False)`."""
    aval, result = _aval(x), None
    begins = _starts(starts)
    if aval is not None and begins is not None:
        result = _written(lax.dynamic_slice_p, (x, *begins), {"slice_sizes": tuple(sizes)}, aval, tuple(sizes))
    return lax.dynamic_slice(x, starts, sizes, allow_negative_indices=False) if result is None else result


def dynamic_slice_in_dim(x: Array, start: Any, size: int, *, axis: int) -> Array:
    """As `jax.lax.dynamic_slice_in_dim(allow_negative_indices=False)`."""
    starts = [start if d == axis else 0 for d in range(x.ndim)]
    return dynamic_slice(x, starts, tuple([size if d == axis else n for d, n in enumerate(x.shape)]))


def dynamic_update_slice(x: Array, update: Array, starts: Sequence[Any]) -> Array:
    """As `jax.lax.dynamic_update_slice(allow_negative_indices=False)`."""
    aval, result = _aval(x), None
    begins = _starts(starts)
    if aval is not None and begins is not None and _aval(update) is not None and update.dtype == x.dtype:
        result = _written(lax.dynamic_update_slice_p, (x, update, *begins), {}, aval, x.shape)
    return lax.dynamic_update_slice(x, update, starts, allow_negative_indices=False) if result is None else result


def dynamic_update_slice_in_dim(x: Array, update: Array, start: Any, *, axis: int) -> Array:
    """As `jax.lax.dynamic_update_slice_in_dim(allow_negative_indices=False)`."""
    return dynamic_update_slice(x, update, [start if d == axis else 0 for d in range(x.ndim)])


def _starts(starts: Sequence[Any]) -> list[Any] | None:
    """Starts of a slice as 32-bit integers; None if they are of another type."""
    scalars = [np.int32(start) if type(start) is int else start for start in starts]
    return scalars if all(start.dtype == _INT32 for start in scalars) else None


_INT32 = np.dtype("int32")


def transpose(x: Array, permutation: Shape) -> Array:
    """As `jax.lax.transpose`."""
    aval, result = _aval(x), None
    permutation = tuple(permutation)
    if aval is not None:
        if permutation == tuple(range(x.ndim)):
            return x
        result = _written(lax.transpose_p, (x,), {"permutation": permutation}, aval, tuple([x.shape[d] for d in permutation]))
    return lax.transpose(x, permutation) if result is None else result


def reshape(x: Array, shape: Shape) -> Array:
    """As `jax.lax.reshape`."""
    aval, result = _aval(x), None
    shape = tuple(shape)
    if aval is not None:
        if shape == aval.shape:
            return x
        if math.prod(shape) == aval.size:
            result = _written(lax.reshape_p, (x,), {"new_sizes": shape, "dimensions": None, "sharding": None}, aval, shape)
    return lax.reshape(x, shape) if result is None else result


def broadcast_in_dim(x: Array, shape: Shape, dims: Shape) -> Array:
    """As `jax.lax.broadcast_in_dim`."""
    aval, result = _aval(x), None
    shape, dims = tuple(shape), tuple(dims)
    if aval is not None and shape != x.shape and all(n in (1, shape[d]) for n, d in zip(x.shape, dims, strict=True)):
        result = _written(lax.broadcast_in_dim_p, (x,), _broadcast(shape, dims), aval, shape)
    return lax.broadcast_in_dim(x, shape, dims) if result is None else result


def _broadcast(shape: Shape, dims: Shape) -> dict[str, Any]:
    return {"shape": shape, "broadcast_dimensions": dims, "sharding": None}


def expand_dims(x: Array, axis: int) -> Array:
    """As `jax.lax.expand_dims` by one dimension."""
    if _aval(x) is None:
        return lax.expand_dims(x, (axis,))
    axis %= x.ndim + 1
    return broadcast_in_dim(x, (*x.shape[:axis], 1, *x.shape[axis:]), tuple([d + (d >= axis) for d in range(x.ndim)]))


def concatenate(xs: Sequence[Array], axis: int) -> Array:
    """As `jax.lax.concatenate`."""
    avals, result = [_aval(x) for x in xs], None
    first = avals[0]
    if len(xs) > 1 and all(a is not None and a.dtype == first.dtype for a in avals):
        shape = (*first.shape[:axis], sum([a.shape[axis] for a in avals]), *first.shape[axis + 1 :])
        if all((*a.shape[:axis], *a.shape[axis + 1 :]) == (*shape[:axis], *shape[axis + 1 :]) for a in avals):
            result = _written(lax.concatenate_p, xs, {"dimension": axis}, first, shape)
    return lax.concatenate(xs, axis) if result is None else result


def convert_element_type(x: Array, dtype: Any) -> Array:
    """As `jax.lax.convert_element_type`."""
    aval, result = _aval(x), None
    to = np.dtype(dtype)
    if aval is not None and to != aval.dtype and to == jax.dtypes.canonicalize_dtype(to) and (aval.dtype.kind != "c" or to.kind == "c"):
        params = {"new_dtype": to, "weak_type": False, "sharding": None}
        result = _written(lax.convert_element_type_p, (x,), params, aval.update(dtype=to), x.shape)
    return lax.convert_element_type(x, dtype) if result is None else result


def select(which: Array, on_true: Array, on_false: Array) -> Array:
    """As `jax.lax.select`."""
    aval, other, result = _aval(on_true), _aval(on_false), None
    if aval is not None and aval == other and isinstance(which, Tracer) and which.dtype == np.bool_ and which.shape in ((), aval.shape):
        result = _written(lax.select_n_p, (which, on_false, on_true), {}, aval, aval.shape)
    return lax.select(which, on_true, on_false) if result is None else result


def add(x: Array, y: Any) -> Array:
    """As `jax.lax.add`."""
    return _pointwise(lax.add_p, lax.add, x, y)


def mul(x: Array, y: Any) -> Array:
    """As `jax.lax.mul`."""
    return _pointwise(lax.mul_p, lax.mul, x, y)


def lt(x: Array, y: Any) -> Array:
    """As `jax.lax.lt`."""
    return _pointwise(lax.lt_p, lax.lt, x, y, np.dtype(bool))


def _pointwise(primitive: Any, function: Any, x: Array, y: Any, dtype: Any = None) -> Array:
    """A function of two arrays of one type, or of an array and a scalar."""
    aval, result = _aval(x), None
    like = isinstance(y, np.generic) or _aval(y) is not None
    if aval is not None and like and y.dtype == aval.dtype and y.shape in ((), aval.shape):
        result = _written(primitive, (x, y), _params(function), aval if dtype is None else aval.update(dtype=dtype), aval.shape)
    return function(x, y) if result is None else result


@functools.cache
def _params(function: Any) -> dict[str, Any]:
    """The parameters of a function of two arrays, which are not the same in all versions of JAX."""
    (eqn,) = jax.make_jaxpr(function)(np.float32(0), np.float32(0)).jaxpr.eqns
    return eqn.params


def broadcasted_iota(dtype: Any, shape: Shape, dim: int) -> Array:
    """As `jax.lax.broadcasted_iota`."""
    to, shape = np.dtype(dtype), tuple(shape)
    result = None
    if to == jax.dtypes.canonicalize_dtype(to) and to.kind in "iuf":
        result = recorded(lax.iota_p, (), {"dtype": to, "shape": shape, "dimension": dim, "sharding": None}, (_plain(to, shape),))
    return lax.broadcasted_iota(dtype, shape, dim) if result is None else result[0]


def full(shape: Shape, value: Any, dtype: Any) -> Array:
    """As `jax.lax.full`, of a number that stands in the program."""
    result = None
    if shape and isinstance(value, int | float) and isinstance(dtype, np.dtype) and _holds(dtype, value):
        shape = tuple(shape)
        result = recorded(lax.broadcast_in_dim_p, (np.array(value, dtype),), _broadcast(shape, ()), (_plain(dtype, shape),))
    return lax.full(shape, value, dtype) if result is None else result[0]


def _holds(dtype: Any, value: float) -> bool:
    """Whether a number is plainly one of a type."""
    if dtype != jax.dtypes.canonicalize_dtype(dtype):
        return False
    return jax.dtypes.issubdtype(dtype, np.floating) or value in (0, 1) or (dtype == _INT32 and -(1 << 31) <= value < 1 << 31)


def full_like(x: Array, value: Any) -> Array:
    """As `jax.lax.full_like`, of a number that stands in the program."""
    return full(x.shape, value, x.dtype) if _aval(x) is not None else lax.full_like(x, value)


def pad(x: Array, value: Any, config: Sequence[tuple[int, int, int]]) -> Array:
    """As `jax.lax.pad`."""
    aval, result = _aval(x), None
    if aval is not None and value.dtype == aval.dtype and not any(low < 0 or high < 0 for low, high, _ in config):
        shape = tuple([low + n + max(n - 1, 0) * inner + high for n, (low, high, inner) in zip(x.shape, config, strict=True)])
        result = _written(lax.pad_p, (x, value), {"padding_config": tuple(config)}, aval, shape)
    return lax.pad(x, value, config) if result is None else result


def _plain(dtype: Any, shape: Shape) -> Any:
    return local_type(ShapedArray((), dtype), shape)
