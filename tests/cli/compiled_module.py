"""Functions whose compiled programs are as planned, or not, for `check --compile`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

import shardy_py as sp

MESH = {"data": 4, "model": 2}


@sp.auto_shard(mesh=MESH, in_shardings=(P(None, "model"), P("data")), out_shardings=P(None, "model"), donate_argnums=0)
def as_planned(w: Any, x: Any) -> Any:
    return w - (x.T @ jnp.tanh(x @ w)) * 0.1


@sp.auto_shard(mesh=MESH, in_shardings=P("data"))
def folded(x: Any) -> Any:
    """A sum over devices that the compiler finds to be multiplied by zero."""
    mesh = jax.sharding.get_abstract_mesh()
    return x + jax.shard_map(lambda x: lax.psum(x, "data") * 0, mesh=mesh, in_specs=P("data"), out_specs=P())(x)[0]


@sp.auto_shard(mesh=MESH, in_shardings=P("data"), donate_argnums=0)
def in_vain(x: Any) -> Any:
    return x.astype(jnp.bfloat16)
