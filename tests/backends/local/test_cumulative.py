"""Cumulative ops on local arrays."""

from __future__ import annotations

import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from tests.backends.local.forced import check
from tests.backends.local.running import check_together

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"])
def test_floats(name):
    cases = []
    for n in (3, 13):
        x = jnp.asarray(RNG.normal(size=(n, 3)), jnp.float32)
        cases += [(lambda x, r=reverse: getattr(lax, name)(x, 0, r), (x,)) for reverse in (False, True)]
    check_together(name, cases, tolerance=1e-5)


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin"])
def test_integers(name):
    xs = [jnp.asarray(RNG.integers(0, 100, (11, 3)), dtype) for dtype in ("int8", "uint8", "int32")]
    check_together(name, [(lambda x: getattr(lax, name)(x, 0), (x,)) for x in xs])


def test_infinities():
    x = jnp.asarray([-np.inf, -np.inf, -np.inf, 1.0, -np.inf, np.inf, 2.0], jnp.float32)
    check(lambda x: lax.cumlogsumexp(x), x, name="cumlogsumexp", tolerance=1e-6)
    check(lambda x: lax.cummax(x), x, name="cummax")
