"""Random numbers: each shard draws those of its part, bit for bit as one device draws them.

JAX's default generator hashes a key with a counter for every number, its position in the result. A shard hashes the positions of its part.
Where the generator works otherwise (`jax_threefry_partitionable` off, `rbg`), numbers are drawn whole.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import lax
from jax import numpy as jnp
from jax.extend.random import threefry2x32_p

from shardy_py.backends.local.elementwise import pointwise
from shardy_py.backends.local.iota import linear_index
from shardy_py.backends.local.local_rule import Array, Builder, Equation, Factors, LocalContext, LocalRule, as_is, make_rule
from shardy_py.backends.local.shapes import leading
from shardy_py.frontends.context import gamma_draw


def _is_threefry(dtype: Any) -> bool:
    return getattr(dtype, "name", "") == "key<fry>"


def _is_partitionable() -> bool:
    """Whether a random number depends on its position only, not on the shape."""
    return bool(jax.config.jax_threefry_partitionable)  # pyright: ignore[reportAttributeAccessIssue]


def _is_batched(dtype: Any, *, draws: bool = False) -> bool:
    """Whether keys of an array are used independently; `unsafe_rbg`, and drawing with `rbg`, mix them."""
    name = getattr(dtype, "name", "")
    return name in _HASHES or (name == "key<rbg>" and not draws)


_HASHES = frozenset({"key<fry>", "key<fry4>", "key<phx2>", "key<phx4>"})
"""Key types of generators that hash a key with a counter."""


def _hashed(local: LocalContext, keys: Array, shape: tuple[int, ...], result: tuple[int, ...]) -> tuple[Array, Array]:
    """Hashes of the positions in arrays of a global shape, one for every key; this device's part of them.

    The hash takes keys and positions as they are, as in JAX's own draws: where it is a loop, the loop carries what it takes.
    """
    data = jax.random.key_data(keys)
    lead = keys.ndim
    counts = linear_index(local, shape, tuple(range(lead, lead + len(shape))), result[lead:])
    halves = [lax.index_in_dim(data, i, lead, keepdims=False) for i in range(2)]
    if lead:
        halves = [lax.expand_dims(half, range(lead, len(result))) for half in halves]
        counts = [lax.expand_dims(half, range(lead)) for half in counts]
    first, second = threefry2x32_p.bind(*halves, *counts)
    return first, second


def _drawn(equation: Equation, draws: Any) -> LocalRule | None:
    """Dimensions of keys and of the numbers drawn with each pass through."""
    (keys,), (dtype,) = equation.shapes, equation.dtypes
    (out,) = equation.result_shapes
    shape = tuple(equation.params["shape"])
    rank = len(out)
    splits = _is_threefry(dtype) and _is_partitionable()
    if not _is_batched(dtype, draws=equation.name == "random_bits") or 0 in out:
        return None
    whole = () if splits else range(len(keys), rank)
    rule = make_rule(out, [range(len(keys))], [range(rank)], whole=whole)

    def run(local: LocalContext, arrays: list) -> list:
        if not any(local.names(f) for f in range(len(keys), rank)):
            return local.bind(*arrays)
        return [draws(*_hashed(local, arrays[0], shape, local.result_shape(0)))]

    return LocalRule(rule, run, uneven=frozenset(range(rank)) - frozenset(whole), weight=0.1)


def random_bits(equation: Equation) -> LocalRule | None:
    """Bits of a width."""
    width = equation.params["bit_width"]
    dtype = equation.result_dtypes[0]

    def draws(first: Array, second: Array) -> Array:
        if width == 64:
            high, low = (lax.convert_element_type(half, dtype) for half in (first, second))
            return lax.bitwise_or(lax.shift_left(high, dtype.type(32)), low)
        return lax.convert_element_type(lax.bitwise_xor(first, second), dtype)

    return _drawn(equation, draws)


def _keys(first: Array, second: Array) -> Array:
    """Keys of their two halves."""
    return jax.random.wrap_key_data(jnp.stack([first, second], axis=-1), impl="threefry2x32")


def random_split(equation: Equation) -> LocalRule | None:
    """New keys from each key."""
    return _drawn(equation, _keys)


def random_fold_in(equation: Equation) -> LocalRule | None:
    """A key and a number make a key; dimensions of one element are stretched."""
    if not _is_batched(equation.dtypes[0]):
        return None
    (out,) = equation.result_shapes
    factors, rank = Factors(out), range(len(out))
    operands = [factors.matching(shape, rank) for shape in equation.shapes]
    rule = make_rule(factors.sizes, operands, [rank], whole=factors.whole)
    return LocalRule(rule, as_is, uneven=frozenset(rank), weight=0.1)


def keyed(equation: Equation) -> LocalRule | None:
    """Conversions between keys and numbers: the dimension of one key's numbers is whole."""
    if equation.name == "random_seed" and getattr(equation.result_dtypes[0], "name", "") == "key<urbg>":
        return None
    return leading(equation)


def random_gamma(equation: Equation) -> LocalRule | None:
    """Draws each number with a key derived from a key and the number's position; dimensions of both pass through."""
    keys, shape = equation.shapes
    log = equation.params["log_space"]
    if not _is_threefry(equation.dtypes[0]) or 0 in shape:
        return None
    rank = range(len(shape))
    whole = () if _is_partitionable() else rank[len(keys) :]
    rule = make_rule(shape, [rank[: len(keys)], rank], [rank], whole=whole)

    def run(local: LocalContext, arrays: list) -> list:
        if not any(local.names(f) for f in rank[len(keys) :]):
            return local.bind(*arrays)
        keys_array, alphas = arrays
        each = _keys(*_hashed(local, keys_array, shape[len(keys) :], alphas.shape))
        drawn = jax.vmap(lambda key, alpha: gamma_draw(key, alpha, log))(each.reshape(-1), alphas.reshape(-1))
        return [drawn.reshape(alphas.shape)]

    return LocalRule(rule, run, uneven=frozenset(rank) - frozenset(whole), weight=1.0)


LOCAL_RULES: dict[str, Builder] = {
    **dict.fromkeys(("philox2x32", "philox4x32", "threefry2x32", "threefry4x32"), pointwise),
    "random_bits": random_bits,
    "random_fold_in": random_fold_in,
    "random_gamma": random_gamma,
    "random_seed": keyed,
    "random_split": random_split,
    "random_unwrap": keyed,
    "random_wrap": keyed,
}
"""Primitive -> builder of its local rule."""
