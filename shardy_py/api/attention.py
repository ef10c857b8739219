"""Attention whose sequence is cut: keys and values go around a ring, one block at a time."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike

from shardy_py.errors import MeshError, ShardyError
from shardy_py.frontends.context import api_boundary

_SOURCE = "ring_attention"
_MASKED = -0.7 * float(jnp.finfo(jnp.float32).max)
"""The score of a position that a query does not see; finite, so that a block without any leaves no NaN."""


@api_boundary
def ring_attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, *, axis: str, scale: float | None = None, is_causal: bool = False
) -> jax.Array:
    """As `jax.nn.dot_product_attention`, in memory of one block of scores, with the sequence cut along a mesh axis.

    Every device keeps its queries; blocks of keys and values go once around the axis, and softmax is computed online. The backward pass
    does the same and computes the scores again. Batch and heads may be cut along other axes. Inside of a `jax.shard_map` over the axis it
    takes local blocks.

    Args:
        query: (batch, length, heads, features).
        key: (batch, length of the source, key heads, features); the number of heads is a multiple of key heads.
        value: As `key`.
        axis: The mesh axis along which the length is cut; it divides both lengths.
        scale: The factor of the scores; 1 / sqrt(features) by default.
        is_causal: A query sees the positions up to its own.

    Returns:
        (batch, length, heads, features), of the type of `query`.

    Raises:
        MeshError: No mesh (of `auto_shard` or `jax.set_mesh`) has this axis.
        ShardyError: Shapes do not fit each other or the axis.

    Example:
        >>> import jax, shardy_py as sp
        >>> from jax.sharding import PartitionSpec as P
        >>> @sp.auto_shard(mesh={"context": 8}, in_shardings=P(None, "context"))
        ... def attend(q, k, v):
        ...     return sp.ring_attention(q, k, v, axis="context", is_causal=True)
        >>> x = jax.ShapeDtypeStruct((2, 1024, 4, 64), "float32")
        >>> print(attend.plan(x, x, x).outputs[0])
        result: float32[2,1024@context,4,64]
    """
    query, key, value = jnp.asarray(query), jnp.asarray(key), jnp.asarray(value)
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or axis not in mesh.axis_names:
        axes = "no mesh is set" if mesh.empty else f"the mesh has axes {', '.join(map(repr, mesh.axis_names))}"
        fix = "call it inside of a function under auto_shard(mesh=...), or under jax.set_mesh, with this axis"
        raise MeshError(f"no mesh axis {axis!r}", where=_SOURCE, why=axes, fix=fix)
    is_local = axis in mesh.manual_axes
    _check_shapes(query.shape, key.shape, value.shape, axis, 1 if is_local else mesh.shape[axis])
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    local = functools.partial(_attention, _Ring(axis, mesh.shape[axis], scale, is_causal))
    if is_local:
        return local(query, key, value)
    specs = PartitionSpec(None, axis)
    return jax.shard_map(local, in_specs=specs, out_specs=specs, axis_names={axis})(query, key, value)


class _Ring(NamedTuple):
    """How the blocks of keys and values are seen."""

    axis: str
    size: int
    scale: float
    is_causal: bool

    def scores(self, query: jax.Array, key: jax.Array, trip: ArrayLike) -> jax.Array:
        """(batch, key heads, group, length, source) of the queries with the block that is here after `trip` turns."""
        scores = _product("btkgh,bskh->bkgts", query, key) * self.scale
        if not self.is_causal:
            return scores
        own = jax.lax.axis_index(self.axis)
        length, source = scores.shape[-2:]
        position = own * length + jnp.arange(length)
        seen = (own - trip) % self.size * source + jnp.arange(source)
        return jnp.where(position[:, None] >= seen, scores, _MASKED)

    def turn(self, blocks: Any) -> Any:
        """Every block on the next device."""
        return jax.lax.ppermute(blocks, self.axis, [(i, (i + 1) % self.size) for i in range(self.size)])


def _product(subscripts: str, left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, left, right, preferred_element_type=jnp.float32)


def _forward(ring: _Ring, query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Attention of grouped queries, and the logarithm of the sum of each softmax."""

    def attend(key: jax.Array, value: jax.Array, trip: ArrayLike) -> tuple[jax.Array, ...]:
        scores = ring.scores(query, key, trip)
        peak = jax.lax.stop_gradient(scores.max(-1, keepdims=True))
        weights = jnp.exp(scores - peak)
        return peak, weights.sum(-1, keepdims=True), _product("bkgts,bskh->bkgth", weights.astype(value.dtype), value)

    def step(carry: Any, trip: jax.Array) -> tuple[Any, None]:
        blocks, (peak, total, output) = carry
        blocks = ring.turn(blocks)
        new_peak, new_total, new_output = attend(blocks[0], blocks[1], trip)
        top = jnp.maximum(peak, new_peak)
        old, new = jnp.exp(peak - top), jnp.exp(new_peak - top)
        return (blocks, (top, old * total + new * new_total, old * output + new * new_output)), None

    (_, (peak, total, output)), _ = jax.lax.scan(step, ((key, value), attend(key, value, 0)), jnp.arange(1, ring.size))
    return output / total, peak + jnp.log(total)


def _output(ring: _Ring, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    return _forward(ring, query, key, value)[0]


def _saved(ring: _Ring, query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, Any]:
    output, logs = _forward(ring, query, key, value)
    return output, (query, key, value, output, logs)


def _backward(ring: _Ring, saved: Any, cotangent: jax.Array) -> tuple[jax.Array, ...]:
    query, key, value, output, logs = saved
    shift = (cotangent * output).sum(-1, keepdims=True)

    def gradients(key: jax.Array, value: jax.Array, trip: ArrayLike) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        weights = jnp.exp(ring.scores(query, key, trip) - logs)
        scores = ring.scale * weights * (_product("bkgth,bskh->bkgts", cotangent, value) - shift)
        of_block = _product("bkgts,btkgh->bskh", scores, query), _product("bkgts,bkgth->bskh", weights, cotangent)
        return _product("bkgts,bskh->btkgh", scores, key), of_block

    def step(carry: Any, trip: jax.Array) -> tuple[Any, None]:
        blocks, of_query, of_block = carry
        blocks, of_block = ring.turn((blocks, of_block))
        new = gradients(blocks[0], blocks[1], trip)
        return (blocks, *jax.tree.map(jnp.add, (of_query, of_block), new)), None

    (_, of_query, of_block), _ = jax.lax.scan(step, ((key, value), *gradients(key, value, 0)), jnp.arange(1, ring.size))
    return tuple(gradient.astype(like.dtype) for gradient, like in zip((of_query, *ring.turn(of_block)), saved))


_grouped: Any = jax.custom_vjp(_output, nondiff_argnums=(0,))
_grouped.defvjp(_saved, _backward)


def _attention(ring: _Ring, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Of local blocks: the heads that share a key head are a dimension of their own."""
    batch, length, heads, features = query.shape
    grouped = query.reshape(batch, length, key.shape[2], heads // key.shape[2], features)
    output = jnp.moveaxis(_grouped(ring, grouped, key, value), 3, 1)
    return output.reshape(query.shape).astype(query.dtype)


def _check_shapes(query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], axis: str, size: int) -> None:
    shapes = f"query {query}, key {key}, value {value}"
    if not (len(query) == len(key) == 4 and key == value and (query[0], query[3]) == (key[0], key[3]) and query[2] % key[2] == 0):
        raise ShardyError(
            "shapes do not fit each other",
            where=_SOURCE,
            why=f"{shapes}; they are (batch, length, heads, features), and heads a multiple of key heads",
            fix="add a batch dimension, or repeat the heads of keys and values",
        )
    if query[1] % size or key[1] % size:
        raise ShardyError(
            f"a length is not a multiple of the {size} devices of axis {axis!r}",
            where=_SOURCE,
            why=f"{shapes}; every device has one block of each length",
            fix="pad the sequence",
        )
