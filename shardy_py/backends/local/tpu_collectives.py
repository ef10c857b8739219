"""Collectives in the forms that the compiler for TPUs keeps; in other forms it sends an all-reduce of the whole, twice as much, and slices.

A reduce-scatter over several axes of the mesh becomes one per axis: that compiler has none over two dimensions of a torus at once. Over one
axis after the other the same bytes arrive, and the same parts. By the shapes that were compiled for v5e and v5p, such a step stays a
reduce-scatter with pieces along a dimension of their own for a first dimension, and for a matrix whose pieces are not whole lanes, which
would be padded; as pieces that are matrices for a dimension in front of the last two, or of which a device gets less than a tile; and with
the dimension as it is elsewhere.

An all-gather of less than a tile from two devices becomes a permute, in which each sends its block to the other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from jax import lax
from jax.extend.core import Jaxpr, JaxprEqn

from shardy_py.backends.local.jaxpr_rewriting import Rewritten, axes_of, retraced, rewrite_by_name
from shardy_py.backends.local.local_rule import block_index, is_key

SUBLANES, LANES = 8, 128
"""Elements of the last two dimensions that a vector register of a TPU holds."""


def tpu_collectives(jaxpr: Jaxpr, sizes: Mapping[str, int], spelling: Mapping[str, str]) -> Jaxpr:
    """The jaxpr of a region for TPUs, with its collectives in the forms that stay."""

    def scatter(eqn: JaxprEqn, sizes: Mapping[str, int]) -> Rewritten | None:
        if not eqn.params["tiled"] or eqn.params["axis_index_groups"] is not None:
            return None
        runs = _runs(axes_of(eqn), spelling)
        return retraced(lambda x: [_scattered(x, runs, eqn.params["scatter_dimension"], sizes)], eqn, sizes)

    return rewrite_by_name(jaxpr, sizes, {"all_gather": _exchange, "reduce_scatter": scatter})


def _exchange(eqn: JaxprEqn, sizes: Mapping[str, int]) -> Rewritten | None:
    block: Any = eqn.invars[0].aval
    names = axes_of(eqn)
    is_small = block.ndim == 1 and block.size < LANES and not is_key(block.dtype)
    if not is_small or eqn.params["axis_size"] != 2 or not eqn.params["tiled"] or eqn.params["axis_index_groups"] is not None:
        return None

    def exchanged(x: Any) -> list[Any]:
        other = lax.ppermute(x, names, [(0, 1), (1, 0)])
        is_first = lax.broadcast(lax.eq(block_index(names), 0), x.shape)
        return [lax.concatenate([lax.select(is_first, x, other), lax.select(is_first, other, x)], 0)]

    return retraced(exchanged, eqn, sizes)


def _runs(axes: Sequence[str], spelling: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Splits axes into runs of consecutive parts of the same axis of the user's mesh."""
    return [tuple(run) for _, run in itertools.groupby(axes, lambda axis: spelling.get(axis, axis).partition(":")[0])]


def _scattered(x: Any, runs: Sequence[tuple[str, ...]], dim: int, sizes: Mapping[str, int]) -> Any:
    total = math.prod(sizes[name] for names in runs for name in names)
    is_split = dim < x.ndim - 2 or (dim == x.ndim - 2 and x.shape[dim] // total % SUBLANES != 0)
    if dim and is_split and x.shape[-1] % LANES == 0:
        return lax.transpose(_in_front(x, runs, dim, sizes), (*range(1, dim + 1), 0, *range(dim + 1, x.ndim)))
    for names in runs:
        k = math.prod(sizes[name] for name in names)
        part = x.shape[dim] // k
        if dim and (x.ndim > 2 or part % (LANES * 4 // x.dtype.itemsize) == 0):  # two numbers of 16 bits share a lane
            x = lax.psum_scatter(x, names, scatter_dimension=dim, tiled=True)
            continue
        pieces = lax.reshape(x, (*x.shape[:dim], k, part, *x.shape[dim + 1 :]))
        x = lax.reshape(lax.psum_scatter(pieces, names, scatter_dimension=dim, tiled=True), (*x.shape[:dim], part, *x.shape[dim + 1 :]))
    return x


def _in_front(x: Any, runs: Sequence[tuple[str, ...]], dim: int, sizes: Mapping[str, int]) -> Any:
    """The scattered sum with its dimension in front."""
    x = lax.transpose(x, (dim, *range(dim), *range(dim + 1, x.ndim)))
    rest = x.shape[1:]
    for names in runs:
        k = math.prod(sizes[name] for name in names)
        matrices = lax.reshape(x, (k, x.size // (k * rest[-1]), rest[-1]))
        x = lax.reshape(lax.psum_scatter(matrices, names, scatter_dimension=0, tiled=True), (x.shape[0] // k, *rest))
    return x
