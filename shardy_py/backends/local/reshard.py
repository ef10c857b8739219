"""Reshards of local arrays, and reductions over mesh axes: the steps of `reshard_steps` as JAX collectives."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp

from shardy_py.backends.local.local_rule import affine, all_gathered, block_index, is_key, unsharded_along
from shardy_py.backends.ordered import as_ordered, from_ordered
from shardy_py.dialect import Mesh
from shardy_py.dialect.axis import Axes
from shardy_py.dialect.devices import shard_index
from shardy_py.dialect.grouping import grouped
from shardy_py.frontends.context import pmul_p
from shardy_py.ir.types import element_bits
from shardy_py.partition.region.layouts import Layout, block, local_shape, names, num_shards
from shardy_py.partition.region.reshard_steps import ReshardStep, reshard_steps

Array = Any


def reshard(x: Array, source: Layout, target: Layout, shape: tuple[int, ...], mesh: Mesh, platform: str) -> Array:
    """Reshards a local array."""
    if 0 in shape:
        return lax.reshape(x, local_shape(shape, target, mesh))
    for move in reshard_steps(source, target, shape, mesh):
        x = _STEPS[move.kind](x, move, shape, mesh, platform)
    return x


def padded(x: Array, dim: int, length: int) -> Array:
    """Pads a dimension to a length with arbitrary contents."""
    missing = length - x.shape[dim]
    if not missing:
        return x
    if is_key(x.dtype):
        return jnp.concatenate([x, *[lax.slice_in_dim(x, 0, 1, axis=dim)] * missing], axis=dim)
    return lax.pad(x, np.zeros((), x.dtype), [(0, missing if d == dim else 0, 0) for d in range(x.ndim)])


def _slice(x: Array, move: ReshardStep, shape: Sequence[int], mesh: Mesh, platform: str) -> Array:
    k, d = num_shards(move.axes, mesh), move.dim
    size = block(shape[d], num_shards(move.after.dims[d].axes, mesh))
    x = padded(x, d, k * size)
    return lax.dynamic_slice_in_dim(x, affine(block_index(names(move.axes)), size), size, axis=d, allow_negative_indices=False)


def _gather(x: Array, move: ReshardStep, shape: Sequence[int], mesh: Mesh, platform: str) -> Array:
    size = block(shape[move.dim], num_shards(move.after.dims[move.dim].axes, mesh))
    return as_bits(x, lambda y: unsharded_along(y, names(move.axes), move.dim, size, platform), platform)


def _all_to_all(x: Array, move: ReshardStep, shape: Sequence[int], mesh: Mesh, platform: str) -> Array:
    k, s, t = num_shards(move.axes, mesh), move.dim, move.to
    x = padded(x, t, k * block(shape[t], num_shards(move.after.dims[t].axes, mesh)))
    x = as_bits(x, lambda y: lax.all_to_all(y, names(move.axes), t, s, tiled=True), platform)
    length = block(shape[s], num_shards(move.after.dims[s].axes, mesh))
    return lax.slice_in_dim(x, 0, length, axis=s) if x.shape[s] != length else x


def _permute(x: Array, move: ReshardStep, shape: Sequence[int], mesh: Mesh, platform: str) -> Array:
    pairs = permutation(move.before, move.after, mesh)
    return as_bits(x, lambda y: lax.ppermute(y, mesh.axis_names, pairs), platform)


def _reduce(x: Array, move: ReshardStep, shape: Sequence[int], mesh: Mesh, platform: str) -> Array:
    return all_reduce(x, in_mesh_order(move.axes, mesh), "add", platform)


def _scatter(x: Array, move: ReshardStep, shape: Sequence[int], mesh: Mesh, platform: str) -> Array:
    k, d = num_shards(move.axes, mesh), move.dim
    x = padded(x, d, k * block(shape[d], num_shards(move.after.dims[d].axes, mesh)))
    return lax.psum_scatter(x, names(move.axes), scatter_dimension=d, tiled=True)


_STEPS = {
    "all_slice": _slice,
    "all_gather": _gather,
    "all_to_all": _all_to_all,
    "collective_permute": _permute,
    "all_reduce": _reduce,
    "reduce_scatter": _scatter,
}


def all_reduce(x: Array, axes: Axes, combine: str, platform: str) -> Array:
    """Combines partial results over axes."""
    axis_names = names(axes)
    if x.dtype == jnp.bool_:
        return _reduce_bools(x, axis_names, combine)
    if combine == "add" or (combine == "mul" and (platform == "cpu" or x.dtype.kind != "c")):
        return lax.psum(x, axis_names) if combine == "add" else pmul_p.bind(x, axes=axis_names, axis_index_groups=None)
    if combine in ("max", "min") and x.dtype.kind != "c":
        reduce = lax.pmax if combine == "max" else lax.pmin
        if jnp.issubdtype(x.dtype, jnp.floating):
            return from_ordered(reduce(as_ordered(x, combine == "max"), axis_names), x.dtype)
        return reduce(x, axis_names)
    return _reduce_by_fold(x, axis_names, combine, platform)


def _reduce_bools(x: Array, over: tuple[str, ...], combine: str) -> Array:
    """Combines booleans, one byte each, all by a maximum, so that several reductions can be sent together."""
    if combine == "xor":
        count = lax.psum(lax.convert_element_type(x, jnp.uint8), over)  # whose last bit is right even where it wraps around
        return lax.eq(lax.bitwise_and(count, np.uint8(1)), np.uint8(1))
    if combine in ("and", "min", "mul"):
        return lax.bitwise_not(lax.pmax(lax.bitwise_not(x), over))
    return lax.pmax(x, over)


def _reduce_by_fold(x: Array, over: tuple[str, ...], combine: str, platform: str) -> Array:
    """A reduction without an all-reduce in XLA: each device combines a part and gathers the others, or all of a small operand."""
    group = math.prod(map(lax.axis_size, over))
    block = -(-x.size // group)

    def fold(parts: Array) -> Array:
        start, combined = _FOLD_OPS[combine](x.dtype)
        return lax.reduce(parts, start, combined, (0,))

    if 2 * block >= x.size:
        return fold(as_bits(x, lambda y: lax.all_gather(y, over, axis=0, tiled=False), platform))
    parts = padded(lax.reshape(x, (x.size,)), 0, block * group).reshape(group, block)
    mine = fold(as_bits(parts, lambda y: lax.all_to_all(y, over, 0, 0, tiled=True), platform))
    return lax.reshape(as_bits(mine, lambda y: unsharded_along(y, over, 0, x.size, platform), platform), x.shape)


_FOLD_OPS = {
    "max": lambda dtype: (jnp.full((), -jnp.inf, dtype), lax.max),
    "min": lambda dtype: (jnp.full((), jnp.inf, dtype), lax.min),
    "mul": lambda dtype: (jnp.ones((), dtype), lax.mul),
    "and": lambda dtype: (~jnp.zeros((), dtype), lax.bitwise_and),
    "or": lambda dtype: (jnp.zeros((), dtype), lax.bitwise_or),
    "xor": lambda dtype: (jnp.zeros((), dtype), lax.bitwise_xor),
}


def in_mesh_order(axes: Axes, mesh: Mesh) -> Axes:
    """Axes in the order of the mesh, so that reductions over the same axes are equal."""
    return tuple(sorted(axes, key=lambda axis: mesh.axis_index(axis.name)))


def as_bits(x: Array, send: Callable[[Array], Array], platform: str) -> Array:
    """Sends an array as integers where a collective does not compute and XLA on CPU would widen small floats, or misplace 2 bits."""
    if platform == "cpu" and x.dtype.name in ("int2", "uint2"):
        return lax.convert_element_type(send(lax.convert_element_type(x, jnp.int8)), x.dtype)
    widened = not is_key(x.dtype) and x.dtype.itemsize <= 2 and jnp.issubdtype(x.dtype, jnp.floating) and x.dtype != jnp.float16
    if platform != "cpu" or not widened:
        return send(x)
    return lax.bitcast_convert_type(send(lax.bitcast_convert_type(x, f"uint{element_bits(str(x.dtype))}")), x.dtype)


def all_gather_bits(x: Array, over: tuple[str, ...], dim: int, platform: str) -> Array:
    """All blocks of a dimension one behind the other."""
    return as_bits(x, lambda y: all_gathered(y, over, dim, platform), platform)


@functools.lru_cache(maxsize=4096)
def permutation(before: Layout, after: Layout, mesh: Mesh) -> tuple[tuple[int, int], ...]:
    """Pairs of source and target positions in the mesh that give every device its block.

    A device that has its block already keeps it.
    """

    def block_of(position: int, of: Layout) -> tuple[int, ...]:
        return tuple(shard_index(position, dim.axes, mesh) for dim in of.dims)

    have = grouped(range(mesh.size), lambda i: block_of(i, before))
    want = grouped(range(mesh.size), lambda i: block_of(i, after))
    pairs = []
    for key, targets in want.items():
        sources = have[key]
        staying = [i for i in targets if i in sources]
        rest = [i for i in sources if i not in staying]
        pairs += [(i, i) for i in staying] + list(zip(rest, [i for i in targets if i not in staying], strict=True))
    if len(pairs) != mesh.size:
        raise AssertionError("a permutation has to name every device")
    return tuple(sorted(pairs))
