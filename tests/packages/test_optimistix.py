"""Optimistix: roots, least squares and minimisation."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

from tests.packages.running import check

optimistix = pytest.importorskip("optimistix", exc_type=ImportError)
pytestmark = pytest.mark.slow


def test_roots_of_many_equations() -> None:
    def root(a: Any) -> Any:
        solver = optimistix.Newton(rtol=1e-6, atol=1e-6)
        return optimistix.root_find(lambda y, a: y**3 + y - a, solver, jnp.ones_like(a), a, max_steps=32).value

    check(lambda a: jax.vmap(root)(a), (jnp.linspace(0.5, 3.0, 16).reshape(8, 2),), P("data"))


def test_least_squares() -> None:
    x = jnp.linspace(0.0, 1.0, 16)

    def fit(x: Any, y: Any) -> Any:
        solver = optimistix.LevenbergMarquardt(rtol=1e-6, atol=1e-6)
        residuals = lambda p, data: p[0] * jnp.exp(-p[1] * data[0]) - data[1]  # noqa: E731
        return optimistix.least_squares(residuals, solver, jnp.array([1.0, 1.0]), (x, y), max_steps=64).value

    check(fit, (x, 2.0 * jnp.exp(-0.7 * x)), (P("data"), P("data")), tolerance=1e-3)
