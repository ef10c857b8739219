"""Counting on local arrays."""

from __future__ import annotations

import jax
import pytest
from jax import lax
from jax.extend.random import threefry_prng_impl

from tests.backends.local.forced import check


@pytest.mark.parametrize("dtype", ["int32", "int8", "uint16", "float32", "bfloat16", "complex64"])
def test_iota(dtype: str) -> None:
    check(lambda: lax.broadcasted_iota(dtype, (300, 4), 0), name="iota", count=2, cuts=4)
    check(lambda: lax.broadcasted_iota(dtype, (2, 7, 3), 1), name="iota", count=1, cuts=4)


def test_positions_in_two_halves() -> None:
    keys = jax.random.key_data(jax.random.key(0))
    check(lambda k: threefry_prng_impl.random_bits(k, 32, (6, 5)), keys, name="iota_2x32_shape", count=1, cuts=4)
    check(lambda k: threefry_prng_impl.random_bits(k, 32, (6, 4)), keys, name="threefry2x32", count=0, cuts=4)
