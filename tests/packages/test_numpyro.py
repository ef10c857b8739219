"""NumPyro: the gradient of a log density, and steps of Hamiltonian Monte Carlo over it."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

from tests.packages.running import check

numpyro = pytest.importorskip("numpyro", exc_type=ImportError)
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

X = jax.random.normal(jax.random.key(0), (16, 4))
Y = (X @ jnp.arange(4.0) > 0).astype(jnp.int32)


def model(x: Any, y: Any) -> None:
    weights = numpyro.sample("weights", numpyro.distributions.Normal(jnp.zeros(4), 1.0).to_event(1))
    numpyro.sample("y", numpyro.distributions.Bernoulli(logits=x @ weights), obs=y)


def test_gradient_of_a_log_density() -> None:
    from numpyro.infer.util import log_density

    def step(weights: Any, x: Any, y: Any) -> Any:
        return jax.value_and_grad(lambda w: log_density(model, (x, y), {}, {"weights": w})[0])(weights)

    check(step, (jnp.ones(4), X, Y), (None, P("data", "model"), P("data")))
