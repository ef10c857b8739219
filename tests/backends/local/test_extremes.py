"""Largest and smallest elements over devices are those of one device, NaN and infinities included."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from jax.sharding import AxisType, PartitionSpec

from shardy_py.backends.local.reshard import all_reduce
from shardy_py.dialect import AxisRef
from tests.backends.local.forced import same


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "int8", "uint32", "complex64", "bool"])
def test_all_reduce(dtype: str) -> None:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    with jax.enable_x64(dtype == "float64"):
        x = jnp.asarray(np.random.default_rng(0).normal(size=(8, 40)) * 3).astype(dtype)
        if jnp.issubdtype(x.dtype, jnp.floating):
            for d in range(8):
                x = x.at[d, d].set(jnp.nan).at[d, d + 8].set(-jnp.nan).at[d, d + 16].set(jnp.inf).at[d, d + 24].set(-jnp.inf)
            x = x.at[:, 32].set(-0.0).at[:, 33].set(-jnp.inf).at[:, 34].set(jnp.inf).at[:, 35].set(-1.0)

        def both(x: jnp.ndarray) -> list[jnp.ndarray]:
            return [all_reduce(x, (AxisRef("x"),), combine, "cpu")[0] for combine in ("max", "min")]

        specs = PartitionSpec("x"), PartitionSpec()
        got = jax.jit(jax.shard_map(both, mesh=mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False))(x)
        for g, w in zip(got, (jnp.max(x, 0), jnp.min(x, 0)), strict=True):
            same(g, w, 0.0, dtype)
