"""Chex: dataclasses as state, and assertions inside of the step."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

from tests.packages.running import check

chex = pytest.importorskip("chex", exc_type=ImportError)
optax = pytest.importorskip("optax", exc_type=ImportError)
pytestmark = pytest.mark.slow


def test_training_step_with_a_dataclass() -> None:
    @chex.dataclass
    class State:
        params: Any
        moments: Any
        step: Any

    optimizer = optax.adamw(1e-2)
    params = {"w": jax.random.normal(jax.random.key(0), (8, 4)), "b": jnp.zeros(4)}
    state = State(params=params, moments=optimizer.init(params), step=jnp.int32(0))

    def step(state: Any, x: Any) -> Any:
        chex.assert_shape(x, (16, 8))
        chex.assert_trees_all_equal_shapes(state.params, state.moments[0].mu)
        grads = jax.grad(lambda p: jnp.mean(jnp.tanh(x @ p["w"] + p["b"]) ** 2))(state.params)
        updates, moments = optimizer.update(grads, state.moments, state.params)
        return state.replace(params=optax.apply_updates(state.params, updates), moments=moments, step=state.step + 1)

    check(step, (state, jax.random.normal(jax.random.key(1), (16, 8))), (None, P("data")))
