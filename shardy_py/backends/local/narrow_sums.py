"""Sends sums of bfloat16 over devices in two bytes per element, where XLA would send four.

XLA on CPU adds bfloat16 up in float32 and sends that. Here devices exchange the bits, and each adds up its part in float32, which gives
the same sum for half the bytes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.extend.core import Jaxpr, JaxprEqn, Literal

from shardy_py.backends.local.jaxpr_rewriting import Atom, Rewritten, axes_of, retraced, rewrite, rewrite_bodies
from shardy_py.backends.local.reshard import as_bits, padded
from shardy_py.partition.region.reshard_steps import COLLECTIVE_LAUNCH_BYTES
from shardy_py.passes.export.collective_bytes import received

_CONVERSION = "convert_element_type"


def narrow_sums(jaxpr: Jaxpr, sizes: Mapping[str, int]) -> Jaxpr:
    """The jaxpr of a region for CPUs, with sums of bfloat16, converted to float32 or not, sent as such where that saves bytes."""
    traces: dict[Any, Jaxpr] = {}
    return rewrite_bodies(jaxpr, lambda body: _narrowed(body, sizes, traces))


def _narrowed(body: Jaxpr, sizes: Mapping[str, int], traces: dict[Any, Jaxpr]) -> Jaxpr:
    if not any(eqn.primitive.name in ("psum", "reduce_scatter") for eqn in body.eqns):
        return body
    producers: dict[Any, JaxprEqn] = {v: eqn for eqn in body.eqns for v in eqn.outvars}
    exact = {v for v in body.outvars if not isinstance(v, Literal)}  # values that are read as float32
    exact.update(v for eqn in body.eqns if not _is_rounding(eqn) for v in eqn.invars if not isinstance(v, Literal))

    def replace(eqn: JaxprEqn) -> Rewritten | None:
        operand = _narrow_operand(eqn, producers)
        if operand is None:
            return None
        names, (result,) = axes_of(eqn), list[Any](eqn.outvars)
        k = math.prod(sizes[name] for name in names)
        if eqn.primitive.name == "reduce_scatter":
            dim = eqn.params["scatter_dimension"]
            saves = eqn.params["tiled"] and _saves_scatter(operand.aval.size, k)
            total = functools.partial(_scatter, names=names, dim=dim, k=k)
        else:
            rounded = result.aval.dtype == jnp.bfloat16 or result not in exact
            saves = _saves_sum(operand.aval.size, k, 2 if rounded else 4)
            total = functools.partial(_sum, names=names, k=k, rounded=rounded)
        if not saves:
            return None
        key = total.func, tuple(total.keywords.items()), result.aval.dtype
        return retraced(lambda x: [lax.convert_element_type(total(x), result.aval.dtype)], eqn, sizes, [operand], traces, key)

    return rewrite(body, replace)


def _is_rounding(eqn: JaxprEqn) -> bool:
    return eqn.primitive.name == _CONVERSION and eqn.params["new_dtype"] == jnp.bfloat16


def _narrow_operand(eqn: JaxprEqn, producers: Mapping[Any, JaxprEqn]) -> Atom | None:
    """The bfloat16 value that an equation sums over devices, itself or converted to float32; None for any other equation."""
    if eqn.primitive.name not in ("psum", "reduce_scatter") or len(eqn.invars) != 1 or eqn.params["axis_index_groups"] is not None:
        return None
    operand: Any = eqn.invars[0]
    producer = None if isinstance(operand, Literal) else producers.get(operand)
    if producer is not None and producer.primitive.name == _CONVERSION and producer.params["new_dtype"] == jnp.float32:
        (operand,) = producer.invars
    if isinstance(operand, Literal) or operand.aval.dtype != jnp.bfloat16 or not all(isinstance(name, str) for name in axes_of(eqn)):
        return None
    return operand


def _saves_scatter(size: int, k: int) -> bool:
    return (
        received("all_to_all", k, 2 * size, 2 * size) + COLLECTIVE_LAUNCH_BYTES * k
        < received("reduce_scatter", k, 4 * size, 4 * size // k) + COLLECTIVE_LAUNCH_BYTES
    )


def _saves_sum(size: int, k: int, gathered: int) -> bool:
    """Whether a sum takes fewer bytes than in float32.

    Args:
        size: Elements of the operand.
        k: Devices that add up.
        gathered: Bytes of an element of the sums that devices send around.
    """
    part = -(-size // k)
    bits = 2 * size + COLLECTIVE_LAUNCH_BYTES if k == 2 else (k - 1) * part * (2 + gathered) + COLLECTIVE_LAUNCH_BYTES * (k + 1)
    return bits < received("all_reduce", k, 4 * size, 4 * size) + COLLECTIVE_LAUNCH_BYTES


FEW = 8
"""Parts up to which they are added one to the other: XLA makes one kernel of that, but two of a reduction, with a copy of the parts."""


def _added(parts: Any, dim: int) -> Any:
    """The sum in float32 along a dimension."""
    k = parts.shape[dim]
    if k > FEW:
        return lax.reduce(lax.convert_element_type(parts, jnp.float32), np.float32(0), lax.add, (dim,))
    rest = tuple(n for d, n in enumerate(parts.shape) if d != dim)
    first, *others = (lax.reshape(lax.slice_in_dim(parts, i, i + 1, axis=dim), rest) for i in range(k))
    return functools.reduce(
        lambda total, part: lax.add(total, lax.convert_element_type(part, jnp.float32)),
        others,
        lax.convert_element_type(first, jnp.float32),
    )


def _scatter(x: Any, names: tuple[str, ...], dim: int, k: int) -> Any:
    """Scatters a sum, in float32: every device receives its part of each operand, and adds them up."""
    parts = lax.reshape(x, (*x.shape[:dim], k, x.shape[dim] // k, *x.shape[dim + 1 :]))
    return _added(as_bits(parts, lambda y: lax.all_to_all(y, names, dim, dim, tiled=True), "cpu"), dim)


def _sum(x: Any, names: tuple[str, ...], k: int, rounded: bool) -> Any:
    """The sum in float32, on every device.

    Args:
        x: This device's summand.
        names: Over which axes.
        k: Number of devices.
        rounded: Whether the sum is read in bfloat16 only, so that rounding it before it is sent changes nothing.
    """
    if k == 2:  # Each sends all that it has: as many bytes as two exchanges of halves, by one collective.
        return _added(as_bits(x, lambda y: lax.all_gather(y, names, axis=0, tiled=False), "cpu"), 0)
    part = -(-x.size // k)
    mine = _scatter(padded(lax.reshape(x, (x.size,)), 0, part * k), names, 0, k)
    if rounded:
        mine = lax.convert_element_type(mine, jnp.bfloat16)
    whole = as_bits(mine, lambda y: lax.all_gather(y, names, axis=0, tiled=True), "cpu")
    whole = lax.slice_in_dim(whole, 0, x.size) if whole.shape[0] != x.size else whole
    return lax.reshape(lax.convert_element_type(whole, jnp.float32) if rounded else whole, x.shape)
