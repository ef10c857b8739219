"""BlackJAX: steps of Hamiltonian Monte Carlo."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

from tests.packages.running import check

blackjax = pytest.importorskip("blackjax", exc_type=ImportError)
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def test_steps_of_a_kernel() -> None:
    x = jax.random.normal(jax.random.key(0), (16, 4))

    def chain(x: Any, key: Any) -> Any:
        density = lambda w: -jnp.sum((x @ w - 1.0) ** 2) - jnp.sum(w**2)  # noqa: E731
        kernel = blackjax.hmc(density, step_size=0.05, inverse_mass_matrix=jnp.ones(4), num_integration_steps=3)

        def step(state: Any, key: Any) -> Any:
            state, info = kernel.step(key, state)
            return state, (state.position, info.is_accepted)

        return jax.lax.scan(step, kernel.init(jnp.zeros(4)), jax.random.split(key, 4))

    check(chain, (x, jax.random.key(1)), (P("data", "model"), None), tolerance=1e-3)
