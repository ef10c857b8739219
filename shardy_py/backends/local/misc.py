"""Local rules of primitives outside the families of the other files."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jax import lax
from jax import numpy as jnp

from shardy_py.backends.local.elementwise import pointwise
from shardy_py.backends.local.local_rule import Builder, Equation, LocalContext, LocalRule, make_rule, rebound
from shardy_py.backends.local.shapes import leading
from shardy_py.partition.region.reshard_steps import COLLECTIVE_LAUNCH_BYTES


def reduce(equation: Equation) -> LocalRule | None:
    """A reduction by a user's own computation: reduced dimensions are whole, as nothing is known of it."""
    shape = equation.shapes[0]
    count = len(equation.shapes) // 2
    dimensions = equation.params["dimensions"]
    rank = range(len(shape))
    kept = [d for d in rank if d not in dimensions]
    if any(equation.shapes[count:]):
        return None
    rule = make_rule(shape, [*[rank] * count, *[()] * count], [kept] * count, whole=dimensions)
    return LocalRule(rule, rebound, uneven=frozenset(kept))


def empty(equation: Equation) -> LocalRule | None:
    """An array of any numbers, at its local size."""
    (shape,) = equation.result_shapes
    rank = range(len(shape))
    if "shape" not in equation.params:
        return None

    def run(local: LocalContext, arrays: list) -> list:
        return local.bind(shape=local.result_shape(0))

    return LocalRule(make_rule(shape, [], [rank]), run, uneven=frozenset(rank))


def rng_uniform(equation: Equation) -> LocalRule | None:
    """Random numbers that differ on every call and device: all devices get those of the first."""
    (shape,), (dtype,) = equation.result_shapes, equation.result_dtypes
    rank = range(len(shape))

    def bytes_inside(num_shards: Sequence[int]) -> int:
        return 2 * math.prod(shape) * dtype.itemsize + COLLECTIVE_LAUNCH_BYTES

    def run(local: LocalContext, arrays: list) -> list:
        (x,) = local.bind(*arrays)
        names = tuple(name for name, size in local.sizes.items() if size > 1)
        if not names:
            return [x]
        first = jnp.broadcast_to(lax.axis_index(names) == 0, x.shape)
        return [lax.psum(lax.select(first, x, lax.full_like(x, 0)), names)]

    return LocalRule(make_rule(shape, [()] * len(equation.shapes), [rank], whole=rank), run, bytes_inside=bytes_inside)


LOCAL_RULES: dict[str, Builder] = {
    "bitcast_convert_type": leading,
    "empty": empty,
    "reduce": reduce,
    "rng_uniform": rng_uniform,
    "xla_metadata_value": pointwise,
}
"""Primitive -> builder of its local rule."""
