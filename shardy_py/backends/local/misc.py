"""Local rules of primitives outside the families of the other files."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.extend.core import Jaxpr, Literal, jaxpr_as_fun

from shardy_py.backends.local.elementwise import pointwise
from shardy_py.backends.local.local_rule import (
    Builder,
    Equation,
    LocalContext,
    LocalRule,
    as_is,
    identity_fill,
    is_key,
    make_rule,
)
from shardy_py.backends.local.reshard import all_gather_bits
from shardy_py.backends.local.shapes import leading
from shardy_py.partition.region.reshard_steps import COLLECTIVE_LAUNCH_BYTES, gather_costs


def reduce(equation: Equation) -> LocalRule | None:
    """A reduction by a user's own computation: each shard reduces its elements, and every device the results of all.

    The start values may be no identity, so they enter once. Reduced dimensions are whole where the computation may not be associative.
    """
    shape = equation.shapes[0]
    count = len(equation.shapes) // 2
    dimensions = equation.params["dimensions"]
    rank = range(len(shape))
    kept = [d for d in rank if d not in dimensions]
    if any(equation.shapes[count:]):
        return None
    operands = [*[rank] * count, *[()] * count]
    combines = _associative_ops(equation.params["jaxpr"].jaxpr, count)
    if any(map(is_key, equation.dtypes)) or None in combines:
        return LocalRule(make_rule(shape, operands, [kept] * count, whole=dimensions), as_is, uneven=frozenset(kept))
    computation = jaxpr_as_fun(equation.params["jaxpr"])

    def bytes_inside(num_shards: Sequence[int]) -> int:
        kept_here = math.prod(-(-shape[d] // num_shards[d]) for d in kept)
        return gather_costs(math.prod(num_shards[d] for d in dimensions), *[kept_here * d.itemsize for d in equation.dtypes[:count]])

    def run(local: LocalContext, arrays: list) -> list:
        names = tuple(name for d in dimensions for name in local.names(d))
        if not names:
            return local.bind(*arrays)
        fills = [np.asarray(identity_fill(combine, x.dtype), x.dtype) for combine, x in zip(combines, arrays)]
        masked = [functools.reduce(lambda x, d: local.mask(x, d, d, fill), dimensions, x) for x, fill in zip(arrays, fills)]
        parts = local.bind(*masked, *fills)
        all_parts = tuple(all_gather_bits(lax.expand_dims(x, (0,)), names, 0, local.platform) for x in parts)
        return list(lax.reduce(all_parts, tuple(arrays[count:]), lambda a, b: tuple(computation(*a, *b)), (0,)))

    rule = make_rule(shape, operands, [kept] * count, permutation=dimensions)
    return LocalRule(rule, run, uneven=frozenset(rank), bytes_inside=bytes_inside)


_ASSOCIATIVE = frozenset({"add", "and", "max", "min", "mul", "or", "xor"})


def _associative_ops(computation: Jaxpr, count: int) -> list[Any]:
    """For each result of a computation the associative op that combines an element of one operand with an element of the same, or None."""
    producers = {out: eqn for eqn in computation.eqns for out in eqn.outvars}

    def combine(out: Any, pair: list[Any]) -> str | None:
        eqn = producers.get(out)
        if eqn is not None and eqn.primitive.name == "jit":  # as jnp.minimum is
            body = eqn.params["jaxpr"].jaxpr
            operands = {outer: inner for inner, outer in zip(body.invars, eqn.invars) if not isinstance(outer, Literal)}
            return _associative_ops(body, 1)[0] if [operands.get(v) for v in pair] == list(body.invars) else None
        return eqn.primitive.name if eqn is not None and eqn.primitive.name in _ASSOCIATIVE and list(eqn.invars) == pair else None

    pairs = zip(computation.invars[:count], computation.invars[count:])
    return [combine(out, list(pair)) for out, pair in zip(computation.outvars, pairs, strict=True)]


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
