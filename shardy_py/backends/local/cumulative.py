"""Cumulative ops: each block alone, then what the blocks before it come to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jax import lax
from jax import numpy as jnp

from shardy_py.backends.local.local_rule import Builder, Equation, LocalContext, LocalRule, identity_fill, make_rule
from shardy_py.backends.local.reshard import all_gather_bits
from shardy_py.partition.region.reshard_steps import gather_costs

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


LOCAL_RULES: dict[str, Builder] = dict.fromkeys(SCANS, cumulative)
"""Primitive -> builder of its local rule."""
