"""Equinox: a training step of modules with static fields, and its checkpointed loop."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from tests.documents import ROOT, blocks, run_python
from tests.packages.running import LOWERINGS, MESH, check

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


def test_a_step_under_filter_jit_is_checked_as_it_is() -> None:
    model = eqx.nn.MLP(64, 64, 256, 1, key=jax.random.key(0))

    @eqx.filter_jit(donate="all")
    def step(model: Any, x: Any) -> Any:
        gradients = eqx.filter_grad(lambda model: jnp.mean(jax.vmap(model)(x) ** 2))(model)
        return jax.tree.map(lambda p, g: p - 0.1 * g if g is not None else p, model, gradients, is_leaf=lambda x: x is None)

    report = sp.check(step, model, jax.ShapeDtypeStruct((512, 64), jnp.float32), mesh={"data": 8}, hardware="v5e")
    assert report.plan.donation
    assert all(donated.aliased for donated in report.plan.donation if donated.path.startswith("model"))
    assert report.memory.fits


def test_gradient_through_a_checkpointed_loop() -> None:
    internal = pytest.importorskip("equinox.internal", exc_type=ImportError)

    def step(x: Any) -> Any:
        def loss(x: Any) -> Any:
            body = lambda c: (c[0] + 1, jnp.sin(c[1]) * 1.1)  # noqa: E731
            return jnp.sum(internal.while_loop(lambda c: c[0] < 5, body, (0, x), kind="checkpointed", max_steps=8)[1] ** 2)

        return jax.value_and_grad(loss)(x)

    check(step, (X,), P("data", "model"))


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_whole_modules_are_arguments_and_results(lowering: Any) -> None:
    class Net(eqx.Module):
        mlp: Any
        dropout: Any
        name: str

        def __call__(self, x: Any) -> Any:
            return self.dropout(self.mlp(x)) if self.name == "net" else x

    optimizer = optax.adam(1e-2)
    net = Net(eqx.nn.MLP(8, 8, 32, 2, key=jax.random.key(0)), eqx.nn.Dropout(0.1, inference=True), "net")

    @eqx.filter_value_and_grad
    def loss(net: Any, x: Any) -> Any:
        return jnp.mean((jax.vmap(net)(x) - x) ** 2)

    def step(net: Any, state: Any, x: Any) -> Any:
        value, grads = loss(net, x)
        updates, state = optimizer.update(grads, state)
        return eqx.apply_updates(net, updates), state, value

    state = optimizer.init(eqx.filter(net, eqx.is_array))
    planned = sp.auto_shard(step, mesh=MESH, in_shardings={"x": P("data")}, lowering=lowering)
    ours, theirs = (net, state), (net, state)
    for _ in range(3):
        *ours, value = planned(*ours, X)
        *theirs, expected = eqx.filter_jit(step)(*theirs, X)
        assert abs(value - expected) < 1e-4
    assert planned.plan_count == 1
    assert ours[0].mlp.activation is net.mlp.activation
    assert abs(eqx.filter_jit(planned)(*ours, X)[2] - planned(*ours, X)[2]) < 1e-4


def test_the_guide() -> None:
    document = ROOT / "docs" / "guides" / "equinox.md"
    assert [printed.strip() for printed in run_python(document)] == [(e.expected or "").strip() for e in blocks(document, "python")]
