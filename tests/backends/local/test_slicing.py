"""Slices, padding and concatenations on local arrays."""

from __future__ import annotations

import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from tests.backends.local.forced import check

RNG = np.random.default_rng(0)


def array(*shape: int, dtype: str = "int32") -> jnp.ndarray:
    return jnp.asarray(RNG.integers(0, 100, shape), dtype)


@pytest.mark.parametrize("n", [3, 8, 13, 16])
@pytest.mark.parametrize(("start", "stop", "stride"), [(0, 3, 1), (1, 3, 1), (1, 3, 2), (0, -1, 1), (3, -1, 1), (0, -0, 2), (1, -0, 3), (2, -2, 5)])
def test_slice(n, start, stop, stride):
    stop = n + stop if stop <= 0 else stop
    if stop > start:
        check(lambda x: lax.slice(x, (start, 0), (stop, 2), (stride, 1)), array(n, 3), name="slice")


@pytest.mark.parametrize("n", [3, 8, 13])
@pytest.mark.parametrize("config", [(1, 1, 0), (0, 5, 0), (7, 0, 0), (-2, 1, 0), (0, 0, 1), (0, 1, 1), (2, -1, 2), (-1, -1, 3), (20, 0, 0), (1, 0, 2)])
def test_pad(n, config):
    check(lambda x: lax.pad(x, jnp.int32(-7), (config, (0, 1, 0))), array(n, 3), name="pad")


@pytest.mark.parametrize("sizes", [(8, 8), (1, 7), (7, 1), (3, 5, 9), (1, 1, 1), (2, 13)])
def test_concatenate(sizes):
    check(lambda *xs: lax.concatenate(xs, 0), *(array(n, 3) for n in sizes), name="concatenate")


@pytest.mark.parametrize("n", [3, 8, 13])
def test_rev(n):
    check(lambda x: lax.rev(x, (0, 1)), array(n, 6), name="rev")


@pytest.mark.parametrize("sizes", [(4, 4), (1, 7), (3, 9, 1)])
def test_split(sizes):
    check(lambda x: lax.split(x, sizes), array(sum(sizes), 3), name="split")


def test_stack_and_unstack():
    check(lambda x, y: jnp.stack([x, y], 1), array(5, 6), array(5, 6), name="stack")
    check(lambda x: jnp.unstack(x, axis=1), array(5, 3), name="unstack")


@pytest.mark.parametrize("reps", [(2, 1), (1, 4), (8, 3)])
def test_tile(reps):
    check(lambda x: jnp.tile(x, reps), array(5, 8), name="tile")
