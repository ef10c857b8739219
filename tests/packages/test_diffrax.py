"""Diffrax: adaptive solves of many initial states, and gradients through them."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

from tests.packages.running import check

diffrax = pytest.importorskip("diffrax", exc_type=ImportError)
pytestmark = pytest.mark.slow

STATES = jax.random.normal(jax.random.key(0), (8, 4))
MATRIX = -jnp.eye(4) + 0.3 * jax.random.normal(jax.random.key(1), (4, 4))


def solved(matrix: Any, state: Any) -> Any:
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: args @ y), diffrax.Tsit5(), 0.0, 1.0, 0.1, state, args=matrix, max_steps=64,
        stepsize_controller=diffrax.PIDController(rtol=1e-5, atol=1e-5), saveat=diffrax.SaveAt(ts=jnp.array([0.5, 1.0])),
    )  # fmt: skip
    return solution.ys


def test_solves_of_many_states() -> None:
    check(lambda m, y: jax.vmap(solved, (None, 0))(m, y), (MATRIX, STATES), (None, P("data")), tolerance=1e-3)


def test_gradient_step() -> None:
    def step(matrix: Any, states: Any) -> Any:
        loss = lambda m: jnp.mean(jax.vmap(solved, (None, 0))(m, states) ** 2)  # noqa: E731
        value, gradient = jax.value_and_grad(loss)(matrix)
        return matrix - 0.1 * gradient, value

    check(step, (MATRIX, STATES), (None, P("data")), tolerance=1e-3)
