"""Ops of no family on local arrays."""

from __future__ import annotations

import numpy as np
from jax import lax
from jax import numpy as jnp

from tests.backends.local.forced import check

X = jnp.asarray(np.random.default_rng(0).normal(size=(5, 6, 4)), jnp.float32)


def test_bits_of_another_width() -> None:
    check(lambda x: lax.bitcast_convert_type(x, jnp.int32), X, name="bitcast_convert_type", count=1, cuts=6)
    check(lambda x: lax.bitcast_convert_type(x, jnp.uint8), X, name="bitcast_convert_type", count=1, cuts=6)
    check(lambda x: lax.bitcast_convert_type(x, jnp.float32), X.astype(jnp.bfloat16)[..., :2], name="bitcast_convert_type", count=1, cuts=4)


def test_what_a_function_of_the_user_reduces_is_whole() -> None:
    def both(x: jnp.ndarray) -> object:
        return lax.reduce((x, x + 1), (0.0, 1.0), lambda a, b: (a[0] + b[0] - a[0] * b[0], a[1] * b[1] + a[0]), (1,))

    check(both, X, name="reduce", cuts=4, tolerance=1e-4)
