"""Local rules of sorts and of top_k."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jax import numpy as jnp

from shardy_py.backends.local.local_rule import Builder, Equation, LocalContext, LocalRule, as_is, make_rule
from shardy_py.backends.local.reshard import all_gather_bits
from shardy_py.partition.region.reshard_steps import gather_costs


def sort(equation: Equation) -> LocalRule | None:
    """Every dimension passes through but the sorted one, which is whole."""
    shape = equation.shapes[0]
    rank = range(len(shape))
    dimension = equation.params["dimension"] % len(shape)
    rule = make_rule(shape, [rank] * len(equation.shapes), [rank] * len(equation.result_shapes), whole=[dimension])
    return LocalRule(rule, as_is, uneven=frozenset(rank) - {dimension}, weight=0.1)


def top_k(equation: Equation) -> LocalRule | None:
    """Every shard contributes its own largest elements; the global ones are the largest of all contributions.

    Shards come in order, and so do equal elements of a shard: of equal elements, the first ones are taken, as on one device.
    """
    (shape,) = equation.shapes
    k = equation.params["k"]
    axis = equation.params.get("axis", len(shape) - 1) % len(shape)
    rank = list(range(len(shape)))
    items = equation.dtypes[0].itemsize, equation.result_dtypes[1].itemsize
    result = [len(shape) if d == axis else d for d in rank]
    rule = make_rule([*shape, k], [rank], [result, result], whole=[len(shape)], permutation=[axis])

    def bytes_inside(num_shards: Sequence[int]) -> int:
        block = math.prod(-(-n // num_shards[d]) for d, n in enumerate(shape) if d != axis)
        count = min(k, shape[axis] // num_shards[axis]) * block
        return gather_costs(num_shards[axis], *[count * item for item in items])

    def run(local: LocalContext, arrays: list) -> list:
        (x,) = arrays
        names = local.names(axis)
        if not names:
            return local.bind(x)
        values, indices = local.bind(x, k=min(k, local.block(axis)))
        indices = indices + (local.index(axis) * local.block(axis)).astype(indices.dtype)
        values, indices = (all_gather_bits(part, names, axis, local.platform) for part in (values, indices))
        values, at = local.bind(values)
        return [values, jnp.take_along_axis(indices, at, axis, mode="promise_in_bounds")]

    return LocalRule(rule, run, uneven=frozenset(rank) - {axis}, bytes_inside=bytes_inside, weight=0.1)


def approx_top_k(equation: Equation) -> LocalRule | None:
    """Every dimension passes through but the searched one."""
    (shape,), (out, _) = equation.shapes, equation.result_shapes
    axis = equation.params["reduction_dimension"] % len(shape)
    rank = list(range(len(shape)))
    result = [len(shape) if d == axis else d for d in rank]
    rule = make_rule([*shape, out[axis]], [rank], [result, result], whole=[axis, len(shape)])
    return LocalRule(rule, as_is, uneven=frozenset(rank) - {axis}, weight=0.1)


LOCAL_RULES: dict[str, Builder] = {"approx_top_k": approx_top_k, "sort": sort, "top_k": top_k}
"""Primitive -> builder of its local rule."""
