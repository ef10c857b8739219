"""Fourier transforms on local arrays."""

from __future__ import annotations

import numpy as np
from jax import numpy as jnp

from tests.backends.local.forced import check

X = jnp.asarray(np.random.default_rng(0).normal(size=(5, 4, 6, 8)), jnp.float32)


def test_dimensions_that_are_not_transformed_pass_through() -> None:
    check(jnp.fft.rfft2, X, name="fft", cuts=4, tolerance=1e-5)
    check(lambda x: jnp.fft.irfft(jnp.fft.rfft(x)), X, name="fft", count=1, cuts=6, tolerance=1e-5)


def test_all_of_a_transform_is_whole() -> None:
    check(lambda x: jnp.fft.fftn(x, axes=(1, 2, 3)), X + 0j, name="fft", count=0, cuts=2, tolerance=1e-4)
