"""Propagation goes on through ops that move no data: arguments of computations learn what their operands get last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp

X = np.random.default_rng(0).standard_normal((8, 16)).astype("float32")


def last(x: Any, length: int = 3) -> Any:
    """The last carry of a scan."""
    return lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=length)[0]


LOSSES: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: jnp.sum(last(x)),
    "mean": lambda x: jnp.mean(last(x)),
    "weighted": lambda x: jnp.sum(last(x) * jnp.arange(16.0)),
    "called": lambda x: jnp.sum(jax.jit(last)(x)),
    "two loops": lambda x: jnp.sum(last(last(x))),
    "product": lambda x: jnp.sum(lax.scan(lambda c, _: (jnp.tanh(c @ jnp.ones((16, 16))), None), x, None, length=3)[0]),
    "nested": lambda x: jnp.sum(lax.scan(lambda c, _: (last(c, 2), None), x, None, length=2)[0]),
    "checkpointed": lambda x: jnp.sum(lax.scan(jax.checkpoint(lambda c, _: (jnp.sin(jnp.tanh(c)), None)), x, None, length=3)[0]),
}


@pytest.mark.parametrize("name", LOSSES)
def test_residuals_of_a_loss_that_is_linear_in_the_last_carry_stay(name: str) -> None:
    gradient = jax.grad(LOSSES[name])
    plan = sp.auto_shard(gradient, mesh={"data": 4, "model": 2}, in_shardings=P("data")).plan(X)
    assert plan.shardy_reshards == ()
    assert plan.output_shardings.spec == P("data")
    assert "in_shardings of x" in str(plan.explain("result"))


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
def test_nothing_is_gathered(lowering: Any) -> None:
    gradient = jax.grad(LOSSES["sum"])
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    step = sp.auto_shard(gradient, mesh=mesh, in_shardings=P("data"), lowering=lowering)
    compiled = step.lower(X).compile()
    assert "all-gather" not in compiled.as_text()
    placed = jax.device_put(X, NamedSharding(mesh, P("data")))
    assert step(placed).sharding.is_equivalent_to(jax.jit(gradient)(placed).sharding, 2)
    np.testing.assert_allclose(step(placed), gradient(X), rtol=1e-5)
