"""Lineax: solves by factorisation and by iteration, and their gradients."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

from tests.packages.running import check

lineax = pytest.importorskip("lineax", exc_type=ImportError)
pytestmark = pytest.mark.slow

MATRIX = 4 * jnp.eye(8) + jax.random.normal(jax.random.key(0), (8, 8)) / 4
VECTOR = jax.random.normal(jax.random.key(1), (8,))


def test_solve_and_gradient() -> None:
    def step(matrix: Any, vector: Any) -> Any:
        def loss(matrix: Any) -> Any:
            return jnp.sum(lineax.linear_solve(lineax.MatrixLinearOperator(matrix), vector).value ** 2)

        return jax.value_and_grad(loss)(matrix)

    check(step, (MATRIX, VECTOR), (P("data", "model"), P("data")))


def test_conjugate_gradients() -> None:
    def step(matrix: Any, vector: Any) -> Any:
        operator = lineax.MatrixLinearOperator(matrix @ matrix.T, lineax.positive_semidefinite_tag)
        return lineax.linear_solve(operator, vector, lineax.CG(rtol=1e-6, atol=1e-6)).value

    check(step, (MATRIX, VECTOR), (P("data", "model"), P()), tolerance=1e-3)
