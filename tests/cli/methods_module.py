"""Methods for the tests of the command line."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import shardy_py as sp


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Network:
    weights: Any

    @sp.auto_shard(mesh={"data": 2, "model": 4}, in_shardings=(P(None, "model"), P("data")))
    def step(self, x: Any) -> Any:
        return x @ self.weights

    def plain(self, x: Any) -> Any:
        return x @ self.weights


network = Network(jnp.ones((16, 16)))
