"""`jax.checking_leaks`, with which users look for leaked tracers in their own code, finds none of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardy_py as sp

X = np.random.default_rng(0).standard_normal((16, 8)).astype("float32") / 4
PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "no loop": lambda x: jnp.tanh(x) + jnp.sum(x),
    "scan": lambda x: lax.scan(lambda c, w: (jnp.tanh(c * w), jnp.sum(c)), x, jnp.arange(3.0)),
    "uneven, in a loop": lambda x: lax.fori_loop(0, 3, lambda i, c: jnp.roll(c, 1, 0) + jnp.cumsum(c, 0), x[:13]),
    "loop in a loop": lambda x: lax.while_loop(
        lambda c: c[1] < 2, lambda c: (lax.fori_loop(0, 2, lambda i, y: jnp.tanh(y), c[0]), c[1] + 1), (x, 0)
    )[0],
    "mapped loop": lambda x: jax.vmap(lambda row: lax.while_loop(lambda c: c.sum() < 5, lambda c: c + 1, row))(x),
    "branches in a loop": lambda x: lax.scan(
        lambda c, i: (lax.cond(i > 1, lambda c: jnp.sort(c, 0), lambda c: c * 2, c), c.sum()), x, jnp.arange(3)
    ),
    "random numbers in a loop": lambda x: lax.scan(
        lambda c, k: (c + jax.random.normal(k, c.shape), None), x, jax.random.split(jax.random.key(0), 3)
    )[0],
    "gradient of a scan": lambda x: jax.grad(lambda x: lax.scan(lambda c, w: (jnp.tanh(c * w), None), x, jnp.arange(3.0))[0].sum())(x),
    "computed again": lambda x: jax.grad(lambda x: jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(x).sum())(x),
    "derivatives of their own": lambda x: jax.nn.relu(x) + jax.nn.silu(x),
    "callback in a loop": lambda x: lax.fori_loop(
        0, 2, lambda i, c: c + jax.pure_callback(lambda a: np.asarray(a) * 2, jax.ShapeDtypeStruct((), x.dtype), c.sum()), x
    ),
}


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_no_tracer_outlives_its_trace(program: str, lowering: str) -> None:
    with jax.checking_leaks():
        step = sp.auto_shard(PROGRAMS[program], mesh={"data": 8}, in_shardings=P("data"), lowering=lowering)
        step.lower(X)
        jax.jit(step).lower(X)


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
def test_calls_that_are_checked_give_the_numbers(lowering: str) -> None:
    fun = PROGRAMS["scan"]
    with jax.checking_leaks():
        step = sp.auto_shard(fun, mesh={"data": 8}, in_shardings=P("data"), lowering=lowering)
        results = step(X), jax.jit(step)(X)
    for got in results:
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(jax.jit(fun)(X)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
