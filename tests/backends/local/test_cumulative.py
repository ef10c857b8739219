"""Cumulative ops on local arrays."""

from __future__ import annotations

import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from tests.backends.local.forced import check

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("n", [3, 8, 13])
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"])
def test_floats(name, n, reverse):
    x = jnp.asarray(RNG.normal(size=(n, 3)), jnp.float32)
    check(lambda x: getattr(lax, name)(x, 0, reverse), x, name=name, tolerance=1e-5)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin"])
def test_integers(name, dtype):
    x = jnp.asarray(RNG.integers(0, 100, (11, 3)), dtype)
    check(lambda x: getattr(lax, name)(x, 0), x, name=name)


def test_infinities():
    x = jnp.asarray([-np.inf, -np.inf, -np.inf, 1.0, -np.inf, np.inf, 2.0], jnp.float32)
    check(lambda x: lax.cumlogsumexp(x), x, name="cumlogsumexp", tolerance=1e-6)
    check(lambda x: lax.cummax(x), x, name="cummax")
