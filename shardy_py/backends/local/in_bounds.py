"""Clamps starts of windows into range before XLA sees them.

A dynamic slice moves a start that is out of range back, so that the slice fits. XLA makes one slice of a slice of a slice, adds the starts
and moves only the sum back (openxla/xla#49122), so that other elements are read. A device's part of a value is such a slice, and a gather
or a scatter of a single window becomes one where XLA expands it, as on CPU. A start that is in range when the slice is made stays right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.extend.core import Jaxpr, Primitive

Array = Any


def clamped_start(start: Array, most: int) -> Array:
    """A start, clamped as XLA clamps it, in a type that holds sums of starts: int32 if it is wide enough."""
    dtype, wide = lax.dtype(start), np.dtype(np.int32 if most <= _INT32 else np.int64)
    limit = min(most, jnp.iinfo(dtype).max)
    if isinstance(start, int | np.integer | np.ndarray):
        return wide.type(min(max(int(start), 0), limit))
    return lax.convert_element_type(lax.clamp(np.zeros((), dtype), start, np.array(limit, dtype)), wide)


_INT32 = (1 << 31) - 1


def clamped_indices(indices: Array, bounds: Sequence[int]) -> Array:
    """Index vectors, clamped between zero and the bounds, in a type that holds sums of indices."""
    clamped = lax.clamp(np.zeros((), indices.dtype), indices, _limits(indices, bounds))
    return lax.convert_element_type(clamped, np.int64 if indices.dtype.itemsize == 8 else np.int32)


def are_in_bounds(indices: Array, bounds: Sequence[int]) -> Array:
    """Whether each index vector lies between zero and the bounds."""
    inside = lax.bitwise_and(lax.ge(indices, indices.dtype.type(0)), lax.le(indices, _limits(indices, bounds)))
    return lax.reduce_and(inside, (indices.ndim - 1,))


def _limits(indices: Array, bounds: Sequence[int]) -> Array:
    """The upper bounds of index vectors, clipped to the range of their type; a scalar if all bounds are equal."""
    most = jnp.iinfo(indices.dtype).max
    limits = np.array([min(bound, most) for bound in bounds], indices.dtype)
    return limits[0] if len(set(bounds)) == 1 else lax.broadcast_in_dim(limits, indices.shape, (indices.ndim - 1,))


def is_single_window(indices: Array) -> bool:
    """Whether indices name one window."""
    return math.prod(indices.shape[:-1]) == 1


def writes_itself(primitive: Primitive, params: Mapping[str, Any]) -> bool:
    """Whether a scatter writes its updates or combines them by one of `COMBINATIONS`, and does not call a function of the user."""
    body: Jaxpr | None = params["update_jaxpr"]
    return primitive.name in COMBINATIONS or body is None or body.outvars[0] is body.invars[1]


COMBINATIONS: dict[str, Callable[[Array, Array], Array]] = {
    "scatter-add": lax.add,
    "scatter-max": lax.max,
    "scatter-min": lax.min,
    "scatter-mul": lax.mul,
    "scatter-sub": lax.sub,
}
"""Scatter primitive -> the function that combines an element with its update."""
