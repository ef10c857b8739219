"""The passes over the jaxpr of a region, in order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend.core import Jaxpr, JaxprEqn
from jax.sharding import PartitionSpec

from shardy_py.backends.local.gathers_ahead import gather_ahead
from shardy_py.backends.local.hoist import defer_sums, hoist_collectives, sink_broadcasts
from shardy_py.backends.local.in_place import update_out_of_place
from shardy_py.backends.local.jaxpr_rewriting import Rewritten, axes_of, retraced, rewrite_by_name
from shardy_py.backends.local.local_rule import block_index, is_key
from shardy_py.backends.local.overlap import Overlap, overlapped
from shardy_py.backends.local.scaled_sums import scale_sums
from shardy_py.backends.local.simplify import simplify


def optimize_region(
    jaxpr: Jaxpr,
    sizes: Mapping[str, int],
    platform: str,
    spelling: Mapping[str, str] | None = None,
    specs: Sequence[PartitionSpec] = (),
    overlap: Overlap | None = None,
) -> Jaxpr:
    """Optimizes the collectives of a region: drops equal and dead ones, moves them out of loops, scales sums, not their parts.

    Scans gather one trip ahead, and products run along rings, where `overlap` says so.

    On CPU, updates are out of place where XLA would run them wrongly in place. On TPU, sums are scattered over one axis after the other,
    but for large arrays, and short vectors exchanged in place of gathered.
    """
    jaxpr = simplify(sink_broadcasts(jaxpr))
    optimized = scale_sums(defer_sums(hoist_collectives(jaxpr, sizes), sizes), frozenset(sizes), specs)
    if overlap is not None:
        optimized = overlapped(gather_ahead(optimized, sizes, overlap), sizes, overlap)
    if platform == "tpu":
        optimized = tpu_collectives(optimized, sizes, spelling or {})
    optimized = optimized if optimized is jaxpr else simplify(optimized)
    return update_out_of_place(optimized, sizes) if platform == "cpu" else optimized


def merged_as_by_xla(jaxpr: Jaxpr, platform: str) -> Jaxpr:
    """A region's jaxpr with equal equations merged as XLA merges them.

    Before that of JAX 0.11, XLA on CPU drops each `optimization_barrier` first: a parameter that `jax.checkpoint` has gathered again is
    gathered once. Other values are computed again in ways that differ by then.
    """
    if platform != "cpu" or jax.__version_info__ >= (0, 11):
        return jaxpr
    return simplify(jaxpr, drop_barriers=True)


SUBLANES, LANES = 8, 128
"""Elements of the last two dimensions that a vector register of a TPU holds."""

LARGE = 1 << 20
"""Bytes from which on a sum is scattered over several axes at once."""


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
    if _stays_whole(x, dim, total):
        return lax.psum_scatter(x, tuple(itertools.chain(*runs)), scatter_dimension=dim, tiled=True)
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


def _stays_whole(x: Any, dim: int, parts: int) -> bool:
    """Whether TPU's compiler keeps one scatter over several axes; of arrays other than large ones in whole tiles it may sum all."""
    size, last = x.dtype.itemsize, x.ndim - 1
    if dim not in (0, last - 1, last) or last < 1 or x.size * size < LARGE or size > 4:
        return False
    lengths = [x.shape[d] // parts if d == dim else x.shape[d] for d in (last - 1, last)]
    tile = [n * 4 // size if d == dim else n for d, n in ((last - 1, SUBLANES), (last, LANES))]
    return all(length % n == 0 for length, n in zip(lengths, tile))


def _in_front(x: Any, runs: Sequence[tuple[str, ...]], dim: int, sizes: Mapping[str, int]) -> Any:
    """The scattered sum with its dimension in front."""
    x = lax.transpose(x, (dim, *range(dim), *range(dim + 1, x.ndim)))
    rest = x.shape[1:]
    for names in runs:
        k = math.prod(sizes[name] for name in names)
        matrices = lax.reshape(x, (k, x.size // (k * rest[-1]), rest[-1]))
        x = lax.reshape(lax.psum_scatter(matrices, names, scatter_dimension=0, tiled=True), (x.shape[0] // k, *rest))
    return x
