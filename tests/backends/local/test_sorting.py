"""Sorts and largest elements on local arrays."""

from __future__ import annotations

import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from tests.backends.local.forced import check
from tests.backends.local.running import check_together

RNG = np.random.default_rng(0)


def ties(dtype: str, shape: tuple[int, ...] = (4, 16, 3)) -> jnp.ndarray:
    x = jnp.asarray(RNG.integers(0, 5, shape), dtype)
    if jnp.issubdtype(x.dtype, jnp.floating):
        x = x.at[0, 3].set(jnp.nan).at[1, 7].set(-jnp.nan).at[2].set(-jnp.inf).at[3, 5].set(-0.0)
    return x


def test_sort() -> None:
    x, y = ties("float32"), jnp.asarray(RNG.integers(0, 1000, (4, 16, 3)))
    check(lambda x, y: lax.sort((x, y), dimension=1, num_keys=1), x, y, name="sort", cuts=3)
    check(lambda x, y: lax.sort((y, x), dimension=0, num_keys=2, is_stable=False), x, y, name="sort", cuts=3)


@pytest.mark.parametrize("dtype", ["float32", "int32", "bfloat16", "uint8"])
def test_top_k(dtype: str) -> None:
    """Also more than a shard has, with ties and NaN."""
    check_together("top_k", [((lambda x, k=k: lax.top_k(x, k, axis=1)), (ties(dtype),)) for k in (3, 6)])


def test_top_k_of_a_dimension_that_does_not_divide_is_whole() -> None:
    local_rule = check(lambda x: lax.top_k(x, 2), ties("int32", (4, 7)), name="top_k")
    assert local_rule.uneven == {0}


def test_approx_top_k() -> None:
    check(
        lambda x: lax.approx_max_k(x, 2, reduction_dimension=1),
        ties("float32", (6, 16, 3)).at[:, :, :].add(1.0),
        name="approx_top_k",
        cuts=2,
    )
