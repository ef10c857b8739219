"""Pgx: many games at once, with rules full of gathers, scatters and branches."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

from tests.packages.running import check

pgx = pytest.importorskip("pgx", exc_type=ImportError)
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("game", ["tic_tac_toe", "connect_four"])
def test_random_games(game: str) -> None:
    env = pgx.make(game)

    def play(keys: Any) -> Any:
        def turn(state: Any, key: Any) -> Any:
            logits = jnp.where(state.legal_action_mask, 0.0, -1e9)
            action = jax.vmap(jax.random.categorical)(jax.random.split(key, logits.shape[0]), logits)
            state = jax.vmap(env.step)(state, action)
            return state, (action, state.rewards)

        state, history = jax.lax.scan(turn, jax.vmap(env.init)(keys), jax.random.split(jax.random.key(7), 5))
        return state.observation, state.terminated, history

    check(play, (jax.random.split(jax.random.key(0), 8),), P("data"))
