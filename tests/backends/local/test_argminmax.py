"""Places of extreme elements on local arrays."""

from __future__ import annotations

import numpy as np
import pytest
from jax import numpy as jnp

from tests.backends.local.running import check_together

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "bool", "uint8", "int4", "float8_e4m3fn"])
def test_argminmax(dtype: str) -> None:
    """Ties, infinities everywhere, NaN in several shards, and dimensions that do not divide."""
    x = jnp.asarray(RNG.integers(0, 3, (6, 13, 4)), dtype)
    if dtype in ("float32", "bfloat16"):
        x = x.at[0].set(-jnp.inf).at[1].set(jnp.inf).at[2, 5].set(jnp.nan).at[2, 11].set(jnp.nan)
    if dtype == "float8_e4m3fn":
        x = x.at[0].set(jnp.finfo(dtype).min).at[1].set(jnp.finfo(dtype).max)
    if dtype == "int32":
        x = x.at[0].set(-(2**31)).at[1].set(2**31 - 1)
    check_together("argmax", [(lambda x: jnp.argmax(x, 1), (x,))])
    check_together("argmin", [(lambda x: jnp.argmin(x, 1), (x,))])
