"""A module with an absl flag, as training scripts have them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from absl import flags

import shardy_py as sp
from shardy_py.facade import Plan

ROWS = flags.DEFINE_integer("sample_rows", 8, "Rows.")


def planned() -> Plan:
    return sp.auto_shard(jnp.sin, mesh={"data": 2}, in_shardings=jax.P("data")).plan(jax.ShapeDtypeStruct((ROWS.value,), jnp.float32))
