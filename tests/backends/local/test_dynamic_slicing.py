"""Slices at run-time places on local arrays."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from tests.backends.local.running import check_together

RNG = np.random.default_rng(0)
PLACES = [(13, 1, 7), (13, 1, 99), (13, 5, 6), (8, 3, -4), (16, 9, 5), (5, 4, 1), (3, 2, 0)]


def array(*shape: int, dtype: str = "int32") -> jnp.ndarray:
    return jnp.asarray(RNG.integers(0, 100, shape), dtype)


def test_dynamic_slice():
    def case(n, length, dtype):
        return lambda x, i: lax.dynamic_slice(x, (i, i * 0), (length, 4)), array(n, 4, dtype=dtype)

    cases = [(f, (x, i)) for n, length, i in PLACES for f, x in [case(n, length, "int32")]]
    cases += [(f, (x, np.uint8(7))) for f, x in [case(13, 3, "bool"), case(13, 3, "float32")]]
    check_together("dynamic_slice", cases, count=1)


def test_dynamic_slice_of_two_dimensions():
    check_together("dynamic_slice", [(lambda x, i, j: lax.dynamic_slice(x, (i, j), (3, 4)), (array(9, 8), 4, 3))], count=6)


def test_dynamic_update_slice():
    def case(n, length):
        return lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 0)), array(n, 4), array(length, 4)

    cases = [(f, (x, u, i)) for n, length, i in PLACES for f, x, u in [case(n, length)]]
    check_together("dynamic_update_slice", cases, count=1)


def test_dynamic_update_slice_of_two_dimensions():
    f = lambda x, u, i, j: lax.dynamic_update_slice(x, u, (i, j))  # noqa: E731
    check_together("dynamic_update_slice", [(f, (array(9, 8), array(3, 5), 4, 2))], count=6)


def test_starts_of_32_bits_under_x64():
    def update(x, i):
        return lax.dynamic_update_slice(x, x[:, :2], (np.int32(0), i))

    with jax.enable_x64(True):
        step = sp.auto_shard(update, mesh={"x": 4}, in_shardings=(P(None, "x"), P()), out_shardings=P(None, "x"))
        x, i = np.arange(64.0).reshape(4, 16), np.int32(7)
        np.testing.assert_array_equal(step(x, i), jax.jit(update)(x, i))
