"""Distrax: distributions whose constructors look at their fields, as arguments, results and inside of a loss."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

from tests.packages.running import check

distrax = pytest.importorskip("distrax", exc_type=ImportError)
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

X = jax.random.normal(jax.random.key(0), (16, 4))


def test_variational_step() -> None:
    def step(params: Any, key: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            posterior = distrax.MultivariateNormalDiag(x @ params["mean"], jax.nn.softplus(x @ params["scale"]) + 0.1)
            prior = distrax.MultivariateNormalDiag(jnp.zeros(4), jnp.ones(4))
            sample, log_prob = posterior.sample_and_log_prob(seed=key)
            return jnp.mean(posterior.kl_divergence(prior) + log_prob - prior.log_prob(sample))

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    params = {"mean": jnp.eye(4), "scale": 0.1 * jnp.ones((4, 4))}
    check(step, (params, jax.random.key(1), X), (None, None, P("data", "model")))


def test_distributions_as_arguments_and_results() -> None:
    def step(distribution: Any, x: Any) -> Any:
        return distrax.Normal(distribution.loc * 2, distribution.scale), distribution.log_prob(x)

    check(step, (distrax.Normal(X, jnp.ones((16, 4))), X), (None, P("data")))
