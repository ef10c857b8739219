"""Random numbers on local arrays are those that one device draws, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.backends.local.iota import linear_index
from shardy_py.backends.local.local_rule import LocalContext
from shardy_py.backends.local.table import LOCAL_RULES
from tests.backends.local.forced import check, equation_of

KEY = jax.random.key(3)


@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_bits(width: int) -> None:
    with jax.enable_x64(width == 64):
        check(lambda k: jax.random.bits(k, (6, 5), dtype=f"uint{width}"), KEY, name="random_bits", count=2 if width == 32 else 0, cuts=4)


def test_bits_of_many_keys() -> None:
    keys = jax.random.split(KEY, 3)
    check(jax.vmap(lambda k: jax.random.bits(k, (5,))), keys, name="random_bits", count=1, cuts=5)


def test_keys_from_keys() -> None:
    keys = jax.random.split(KEY, 6)
    check(lambda k: jax.random.split(k, (3, 4)), KEY, name="random_split", count=1, cuts=4)
    check(jax.vmap(lambda k: jax.random.split(k, 5)), keys, name="random_split", count=1, cuts=4)
    check(jax.vmap(jax.random.fold_in), keys, jnp.arange(6), name="random_fold_in", cuts=2)
    check(jax.vmap(lambda i: jax.random.fold_in(KEY, i)), jnp.arange(6), name="random_fold_in", cuts=2)
    check(jax.vmap(jax.random.key), jnp.arange(6), name="random_seed", cuts=2)
    check(jax.random.key_data, keys, name="random_unwrap", cuts=2)
    check(jax.random.wrap_key_data, jax.random.key_data(keys), name="random_wrap", cuts=2)
    check(jax.random.clone, keys, name="random_clone", cuts=2)


def test_gamma() -> None:
    """Also where one key draws many numbers."""
    keys = jax.random.split(KEY, 3)
    check(jax.vmap(lambda k: jax.random.loggamma(k, 0.3, (5,))), keys, name="random_gamma", tolerance=1e-6, count=0, cuts=4)


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_generators_that_do_not_split_draw_whole(impl: str) -> None:
    key = jax.random.key(3, impl=impl)
    equation, _ = equation_of(lambda k: jax.random.bits(k, (8,)), [key], "random_bits")
    assert LOCAL_RULES["random_bits"](equation) is None
    keys = jax.random.split(key, 4)
    if impl == "rbg":
        check(jax.vmap(lambda k: jax.random.split(k, 4)), keys, name="random_split")
        check(jax.vmap(jax.random.fold_in), keys, jnp.arange(4), name="random_fold_in")
        check(jax.vmap(lambda i: jax.random.key(i, impl="rbg")), jnp.arange(4), name="random_seed")
    else:
        equation, _ = equation_of(lambda k: jax.random.split(k, 8), [key], "random_split")
        assert LOCAL_RULES["random_split"](equation) is None


def test_older_numbers_are_drawn_whole_for_each_key() -> None:
    keys = jax.random.split(KEY, 4)
    with jax.threefry_partitionable(False):
        local_rule = check(jax.vmap(lambda k: jax.random.bits(k, (8,))), keys, name="random_bits")
        assert local_rule.rule.need_replication == (1,)
        check(jax.vmap(lambda k: jax.random.split(k, 8)), keys, name="random_split")


def test_positions_beyond_32_bits() -> None:
    shape, block = (1 << 20, 3, 1 << 14), (1 << 16, 3, 1 << 14)

    class Part(LocalContext):
        __slots__ = ()

        def __init__(self) -> None:
            pass

        def names(self, factor: int) -> tuple[str, ...]:
            return ("x",) if factor == 0 else ()

        def block(self, factor: int) -> int:
            return block[factor]

        def index(self, factor: int) -> jnp.ndarray:
            return jnp.int32(13)

    high, low = jax.jit(lambda: linear_index(Part(), shape, (0, 1, 2), (2, 3, 5)))()
    at = np.indices((2, 3, 5)).astype(object)
    want = ((at[0] + 13 * block[0]) * 3 + at[1]) * (1 << 14) + at[2]
    np.testing.assert_array_equal(np.asarray(high).astype(object) * (1 << 32) + np.asarray(low).astype(object), want)


DRAWS: dict[str, tuple[Callable[..., Any], P, P]] = {
    "one key": (lambda keys: jax.random.truncated_normal(keys[0], -2, 2, (512, 256)), P(), P("x")),
    "raw key": (lambda keys: jax.random.normal(jax.random.key_data(keys[0]), (512, 256)), P(), P(None, "x")),
    "a key a row": (jax.vmap(lambda key: jax.random.normal(key, (8192,))), P(), P(None, "x")),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_part_takes_no_more_memory_than_under_jit(name: str) -> None:
    draw, cut, out = DRAWS[name]
    keys = jax.random.split(KEY, 16)
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    plain = jax.jit(draw, in_shardings=NamedSharding(mesh, cut), out_shardings=NamedSharding(mesh, out)).lower(keys).compile()
    step = sp.auto_shard(draw, mesh=mesh, in_shardings=cut, out_shardings=out, lowering="shard_map").lower(keys).compile()
    temporaries = [one.memory_analysis().temp_size_in_bytes for one in (step, plain)]
    assert temporaries[0] <= 1.2 * temporaries[1]
