"""Local rules of primitives outside the families of the other files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.extend.core import Jaxpr, Literal, jaxpr_as_fun

from shardy_py.backends.local.elementwise import pointwise
from shardy_py.backends.local.local_rule import Builder, Equation, LocalContext, LocalRule, as_is, is_key, make_rule
from shardy_py.backends.local.reshard import all_gather_bits
from shardy_py.backends.local.shapes import leading
from shardy_py.partition.region.reshard_steps import COLLECTIVE_LAUNCH_BYTES, gather_costs


def reduce(equation: Equation) -> LocalRule | None:
    """A reduction by a user's own computation: each shard reduces its elements, and every device the results of all.

    The start values may be no identity: they enter once, and a shard without elements does not. Reduced dimensions are whole where
    the computation may not be associative.
    """
    shape = equation.shapes[0]
    count = len(equation.shapes) // 2
    dimensions = equation.params["dimensions"]
    rank = range(len(shape))
    kept = [d for d in rank if d not in dimensions]
    if any(equation.shapes[count:]):
        return None
    operands = [*[rank] * count, *[()] * count]
    if any(map(is_key, equation.dtypes)) or not _is_associative(equation.params["jaxpr"].jaxpr, count):
        return LocalRule(make_rule(shape, operands, [kept] * count, whole=dimensions), as_is, uneven=frozenset(kept))
    computation = jaxpr_as_fun(equation.params["jaxpr"])
    nothing = (np.False_, *[np.zeros((), dtype) for dtype in equation.dtypes[:count]])

    def join(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        both = computation(*a[1:], *b[1:])
        values = [lax.select(lax.bitwise_and(a[0], b[0]), z, lax.select(a[0], x, y)) for x, y, z in zip(a[1:], b[1:], both)]
        return lax.bitwise_or(a[0], b[0]), *values

    def bytes_inside(num_shards: Sequence[int]) -> int:
        kept_here = math.prod(-(-shape[d] // num_shards[d]) for d in kept)
        return gather_costs(math.prod(num_shards[d] for d in dimensions), *[kept_here * d.itemsize for d in equation.dtypes[:count]])

    def run(local: LocalContext, arrays: list) -> list:
        names = tuple(name for d in dimensions for name in local.names(d))
        if not names:
            return local.bind(*arrays)
        is_element, has_elements = lax.full(arrays[0].shape, True), np.ones(1, bool)
        for d in dimensions:
            is_element = local.mask(is_element, d, d, False)
            has_elements = np.kron(has_elements, np.arange(local.num_shards(d)) * local.block(d) < shape[d])
        parts = lax.reduce((is_element, *arrays[:count]), nothing, join, dimensions)[1:]
        all_parts = [all_gather_bits(lax.expand_dims(x, (0,)), names, 0, local.platform) for x in parts]
        starts = [lax.broadcast(start, (1, *x.shape)) for start, x in zip(arrays[count:], parts)]
        stacked = [lax.concatenate(pair, 0) for pair in zip(starts, all_parts)]
        is_part = lax.broadcast_in_dim(np.concatenate([[True], has_elements]), stacked[0].shape, (0,))
        return list(lax.reduce((is_part, *stacked), nothing, join, (0,))[1:])

    rule = make_rule(shape, operands, [kept] * count, permutation=dimensions)
    return LocalRule(rule, run, uneven=frozenset(rank), bytes_inside=bytes_inside)


_ASSOCIATIVE = frozenset({"add", "and", "max", "min", "mul", "or", "xor"})


def _is_associative(computation: Jaxpr, count: int) -> bool:
    """Whether each result of a computation combines an element of one operand with an element of the same by an associative op."""
    producers = {out: eqn for eqn in computation.eqns for out in eqn.outvars}

    def combines(out: Any, pair: list[Any]) -> bool:
        eqn = producers.get(out)
        if eqn is None:
            return False
        if eqn.primitive.name == "jit":  # as jnp.minimum is
            body = eqn.params["jaxpr"].jaxpr
            operands = {outer: inner for inner, outer in zip(body.invars, eqn.invars) if not isinstance(outer, Literal)}
            return [operands.get(v) for v in pair] == list(body.invars) and _is_associative(body, 1)
        return eqn.primitive.name in _ASSOCIATIVE and list(eqn.invars) == pair

    pairs = zip(computation.invars[:count], computation.invars[count:])
    return all(combines(out, list(pair)) for out, pair in zip(computation.outvars, pairs, strict=True))


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
