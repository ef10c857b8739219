"""Equinox: a training step of modules with static fields, and its checkpointed loop."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from tests.documents import ROOT, blocks, run_python
from tests.packages.running import check

eqx = pytest.importorskip("equinox", exc_type=ImportError)
optax = pytest.importorskip("optax", exc_type=ImportError)
pytestmark = pytest.mark.slow

X, Y = jax.random.normal(jax.random.key(1), (16, 8)), jax.random.normal(jax.random.key(2), (16, 4))


def test_training_step() -> None:
    model = eqx.nn.MLP(8, 4, 32, 2, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_array)
    optimizer = optax.adam(1e-2)

    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        def loss(params: Any) -> Any:
            return jnp.mean((jax.vmap(eqx.combine(params, static))(x) - y) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state)
        return eqx.apply_updates(params, updates), state, value

    check(step, (params, optimizer.init(params), X, Y), (None, None, P("data"), P("data")))


def test_modules_as_arguments_and_results() -> None:
    layer = eqx.nn.Linear(8, 8, key=jax.random.key(0))

    def step(layer: Any, x: Any) -> Any:
        return eqx.tree_at(lambda m: m.weight, layer, layer.weight * 2), jax.vmap(layer)(x)

    check(step, (layer, X), (None, P("data", "model")))


def test_gradient_through_a_checkpointed_loop() -> None:
    internal = pytest.importorskip("equinox.internal", exc_type=ImportError)

    def step(x: Any) -> Any:
        def loss(x: Any) -> Any:
            body = lambda c: (c[0] + 1, jnp.sin(c[1]) * 1.1)  # noqa: E731
            return jnp.sum(internal.while_loop(lambda c: c[0] < 5, body, (0, x), kind="checkpointed", max_steps=8)[1] ** 2)

        return jax.value_and_grad(loss)(x)

    check(step, (X,), P("data", "model"))


def test_a_module_with_functions_says_how_to_take_it_apart() -> None:
    model = eqx.nn.MLP(8, 4, 32, 2, key=jax.random.key(0))
    with pytest.raises(TypeError, match=r"arrays, rest = eqx.partition\(model, eqx.is_array\)"):
        sp.auto_shard(lambda model, x: jax.vmap(model)(x), mesh={"data": 8}).plan(model, X)


def test_the_guide() -> None:
    document = ROOT / "docs" / "guides" / "equinox.md"
    assert [printed.strip() for printed in run_python(document)] == [(e.expected or "").strip() for e in blocks(document, "python")]
