"""Local rules of reductions over dimensions, argmax and argmin among them, and of cumulative ops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp

from shardy_py.backends.local.local_rule import Builder, Equation, LocalContext, LocalRule, affine, identity_fill, make_rule, positions
from shardy_py.backends.local.reshard import all_gather_bits
from shardy_py.partition.region.reshard_steps import gather_costs

COMBINES = {
    "reduce_and": "and",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_or": "or",
    "reduce_prod": "mul",
    "reduce_sum": "add",
    "reduce_xor": "xor",
}


def reduction(equation: Equation) -> LocalRule | None:
    """Reduced dimensions may be sharded, and leave partial results."""
    (shape,) = equation.shapes
    axes = set(equation.params["axes"])
    combine = COMBINES[equation.name]
    rank = range(len(shape))
    rule = make_rule(shape, [rank], [[d for d in rank if d not in axes]], reduction=sorted(axes))
    fill = identity_fill(combine, equation.dtypes[0])

    def run(local: LocalContext, arrays: list) -> list:
        (x,) = arrays
        for d in sorted(axes):
            x = local.mask(x, d, d, fill)
        return local.bind(x)

    return LocalRule(rule, run, combine, uneven=frozenset(rank), linear=((0,),) if combine == "add" else ())


Pair = tuple[Any, Any]
"""A value and its position."""


def argminmax(equation: Equation) -> LocalRule | None:
    """Each shard sends its own extreme element and its position; the first shard with the global extreme wins.

    NaN is taken for the extreme, as on one device: the first NaN of a shard, of the first shard with one.
    """
    (shape,) = equation.shapes
    (axis,) = equation.params["axes"]
    dtype, index = equation.dtypes[0], equation.result_dtypes[0]
    rank = range(len(shape))
    kept = [d for d in rank if d != axis]
    rule = make_rule(shape, [rank], [kept], permutation=[axis])
    better = _larger if equation.name == "argmax" else _smaller
    worst = _worst("max" if equation.name == "argmax" else "min", dtype)

    def bytes_inside(num_shards: Sequence[int]) -> int:
        kept_here = math.prod(-(-shape[d] // num_shards[d]) for d in kept)
        return gather_costs(num_shards[axis], kept_here * dtype.itemsize, kept_here * index.itemsize)

    def run(local: LocalContext, arrays: list) -> list:
        (x,) = arrays
        names = local.names(axis)
        if not names:
            return local.bind(x)
        x = local.mask(x, axis, axis, worst)
        place = positions(x.shape, axis, affine(local.index(axis), local.block(axis)), index)
        start = np.array(worst, dtype), np.array(0, index)
        best = lax.reduce((x, place), start, better, (axis,))
        best = tuple([all_gather_bits(lax.expand_dims(part, (0,)), names, 0, local.platform) for part in best])
        return [lax.reduce(best, start, better, (0,))[1]]

    return LocalRule(rule, run, uneven=frozenset(rank), bytes_inside=bytes_inside)


def _worst(combine: str, dtype: Any) -> Any:
    """The value that no element is worse than."""
    infinite = not jnp.issubdtype(dtype, jnp.floating) or not np.isnan(np.array(np.inf, dtype))
    return identity_fill(combine, dtype) if infinite else getattr(jnp.finfo(dtype), "min" if combine == "max" else "max")


def _better(precedes: Callable[[Any, Any], Any]) -> Callable[[Pair, Pair], Pair]:
    def better(a: Pair, b: Pair) -> Pair:
        wins = lax.bitwise_or(precedes(a[0], b[0]), lax.ne(a[0], a[0]))
        first = lax.bitwise_and(lax.eq(a[0], b[0]), lax.lt(a[1], b[1]))
        return lax.select(wins, a[0], b[0]), lax.select(lax.bitwise_or(wins, first), a[1], b[1])

    return better


_larger, _smaller = _better(lax.gt), _better(lax.lt)
"""The better of two, as JAX has it: NaN before anything else, and the one that stands first of equals."""


Array = Any

SCANS = {
    "cumlogsumexp": ("max", jnp.logaddexp),
    "cummax": ("max", lax.max),
    "cummin": ("min", lax.min),
    "cumprod": ("mul", lax.mul),
    "cumsum": ("add", lax.add),
}
"""Primitive -> whose identity is its own, and the op that joins two results."""


def cumulative(equation: Equation) -> LocalRule | None:
    """Other dimensions pass through; along its own, one gather of the blocks' totals is enough."""
    (shape,) = equation.shapes
    if 0 in shape:
        return None
    axis, reverse = equation.params["axis"] % len(shape), equation.params["reverse"]
    rank = range(len(shape))
    combine, join = SCANS[equation.name]
    fill = identity_fill(combine, equation.dtypes[0])
    item = jnp.dtype(equation.dtypes[0]).itemsize

    def bytes_inside(num_shards: Sequence[int]) -> int:
        row = math.prod(-(-n // k) for d, (n, k) in enumerate(zip(shape, num_shards, strict=True)) if d != axis)
        return gather_costs(num_shards[axis], row * item)

    def run(local: LocalContext, arrays: list[Array]) -> list[Array]:
        names, index = local.names(axis), local.index(axis)
        if not names:
            return local.bind(*arrays)
        (x,) = local.bind(local.mask(arrays[0], axis, axis, fill))
        last = 0 if reverse else x.shape[axis] - 1
        totals = all_gather_bits(lax.slice_in_dim(x, last, last + 1, axis=axis), names, axis, local.platform)
        block = lax.broadcasted_iota(jnp.int32, totals.shape, axis)
        others = lax.select(block > index if reverse else block < index, totals, lax.full(totals.shape, fill, x.dtype))
        (before,) = local.bind(others)
        last = 0 if reverse else before.shape[axis] - 1
        before = lax.slice_in_dim(before, last, last + 1, axis=axis)
        return [join(x, lax.broadcast_in_dim(before, x.shape, tuple(rank)))]

    linear = ((0,),) if equation.name == "cumsum" else ()
    rule = make_rule(shape, [rank], [rank], permutation=[axis])
    return LocalRule(rule, run, uneven=frozenset(rank), linear=linear, bytes_inside=bytes_inside)


LOCAL_RULES: dict[str, Builder] = {
    **dict.fromkeys(COMBINES, reduction),
    "argmax": argminmax,
    "argmin": argminmax,
    **dict.fromkeys(SCANS, cumulative),
}
"""Primitive -> builder of its local rule."""
