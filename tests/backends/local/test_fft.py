"""Fourier transforms on local arrays."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import shardy_py as sp
from tests.backends.local.forced import check

X = jnp.asarray(np.random.default_rng(0).normal(size=(5, 4, 6, 8)), jnp.float32)


def test_dimensions_that_are_not_transformed_pass_through() -> None:
    check(jnp.fft.rfft2, X, name="fft", cuts=4, tolerance=1e-5)
    check(lambda x: jnp.fft.irfft(jnp.fft.rfft(x)), X, name="fft", count=1, cuts=6, tolerance=1e-5)


def test_all_of_a_transform_is_whole() -> None:
    check(lambda x: jnp.fft.fftn(x, axes=(1, 2, 3)), X + 0j, name="fft", count=0, cuts=2, tolerance=1e-4)


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_only_cpus_are_told_how_an_operand_lies_in_memory(platform: str) -> None:
    """XLA for TPU cannot keep the layout of complex numbers, which it splits into two arrays."""
    mesh = jax.sharding.AbstractMesh((2, 4), ("x", "y"))
    options = sp.Options(platform=platform)
    step = sp.auto_shard(lambda x: jnp.abs(jnp.fft.fft(x)), mesh=mesh, in_shardings=jax.P("x"), lowering="shard_map", options=options)
    text = step.trace(jax.ShapeDtypeStruct((8, 64), "float32")).lower(lowering_platforms=(platform,)).as_text()
    assert "stablehlo.fft" in text
    assert ("LayoutConstraint" in text) is (platform == "cpu")
