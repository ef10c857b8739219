"""Where the largest or smallest element is."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jax import numpy as jnp

from shardy_py.backends.local.emit import gathered
from shardy_py.backends.local.form import Builder, Equation, Form, Local, identity_fill, make_rule


def argminmax(equation: Equation) -> Form | None:
    """Each shard sends its own extreme element and where it is; the first of the shards that have the extreme of all wins.

    NaN is taken for the extreme, as on one device: the first NaN of a shard, of the first shard with one.
    """
    (shape,) = equation.shapes
    (axis,) = equation.params["axes"]
    dtype, index = equation.dtypes[0], equation.result_dtypes[0]
    rank = range(len(shape))
    kept = [d for d in rank if d != axis]
    rule = make_rule(shape, [rank], [kept], permutation=[axis])
    fills = dtype.kind in "biuf" or dtype == jnp.bfloat16
    fill = identity_fill("max" if equation.name == "argmax" else "min", dtype) if fills else None

    def moved(ways: Sequence[int]) -> int:
        return (ways[axis] - 1) * math.prod(-(-shape[d] // ways[d]) for d in kept) * (dtype.itemsize + index.itemsize)

    def run(local: Local, arrays: list) -> list:
        (x,) = arrays
        names = local.names(axis)
        if not names:
            return local.bind(x)
        if fills:
            x = local.mask(x, axis, axis, fill)
        (at,) = local.bind(x)
        spread = jnp.expand_dims(at, axis)
        value = jnp.take_along_axis(x, spread, axis, mode="promise_in_bounds")
        spread = spread + (local.index(axis) * local.block(axis)).astype(index)
        values, places = (gathered(part, names, axis, local.platform) for part in (value, spread))
        (first,) = local.bind(values)
        return [jnp.squeeze(jnp.take_along_axis(places, jnp.expand_dims(first, axis), axis, mode="promise_in_bounds"), axis)]

    return Form(rule, run, uneven=frozenset(rank) if fills else frozenset(kept), moved=moved)


FORMS: dict[str, Builder] = {"argmax": argminmax, "argmin": argminmax}
"""Primitive -> form."""
