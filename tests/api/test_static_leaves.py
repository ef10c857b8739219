"""Leaves of arguments and results that are no arrays are part of the signature."""

from __future__ import annotations

import dataclasses
import functools
import sys
from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

import shardy_py as sp

X = np.random.default_rng(0).standard_normal((8, 4)).astype("float32")
W = np.random.default_rng(1).standard_normal((4, 4)).astype("float32")
LOWERINGS = pytest.mark.parametrize("lowering", ["jit", "shard_map"])

# As equinox names its class; tests/packages has the real one.
Module = type("Module", (), {"__module__": "equinox._module._module"})


@functools.partial(jax.tree_util.register_dataclass, data_fields=["weight", "activation", "rate", "inference"], meta_fields=[])
@dataclasses.dataclass
class Layer(Module):
    weight: Any
    activation: Any
    rate: Any = 0.5
    inference: Any = True

    def __call__(self, x: Any) -> Any:
        return self.activation(x @ self.weight) * (1 if self.inference else self.rate)


class Mode:
    """A value that equals nothing but itself, and has no hash."""

    __hash__ = None  # type: ignore[assignment]


def planned(fun: Any, lowering: Any, **keywords: Any) -> Any:
    return sp.auto_shard(fun, mesh={"x": 8}, lowering=lowering, **keywords)


@LOWERINGS
def test_functions_and_strings_are_another_signature_and_numbers_are_not(lowering: Any) -> None:
    step = planned(lambda p, x: p["act"](x @ p["w"]) * p["scale"] if p["mode"] == "on" else x, lowering, in_shardings={"x": P("x")})
    params = {"w": W, "act": jnp.tanh, "mode": "on", "scale": 2.0}
    for scale in (2.0, 3.0):
        np.testing.assert_allclose(step({**params, "scale": scale}, X), np.tanh(X @ W) * scale, rtol=1e-4)
    assert step.plan_count == 1
    np.testing.assert_allclose(step({**params, "act": jnp.sin}, X), np.sin(X @ W) * 2, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(step({**params, "mode": "off"}, X), X)
    assert step.plan_count == 3
    np.testing.assert_allclose(step(params, X), np.tanh(X @ W) * 2, rtol=1e-4)
    assert step.plan_count == 3
    mode = Mode()
    assert step({**params, "other": mode}, X).shape == step({**params, "other": mode}, X).shape
    assert step.plan_count == 4
    assert [str(v).split(":")[0] for v in step.plan(params, X).inputs] == ["p['scale']", "p['w']", "x"]


@LOWERINGS
def test_types_are_static(lowering: Any) -> None:
    step = planned(lambda p, x: (x @ p["w"]).astype(p["dtype"]), lowering, in_shardings={"x": P("x")})
    assert [step({"w": W, "dtype": kind}, X).dtype for kind in (jnp.bfloat16, np.float16)] == [jnp.bfloat16, np.float16]


@LOWERINGS
def test_leaves_of_results_come_back(lowering: Any) -> None:
    init = planned(
        lambda key: {"layer": Layer(jax.random.normal(key, (8, 4)), jnp.tanh), "name": "net"}, lowering, rules=[("weight", P("x"))]
    )
    for _ in range(2):
        result = init(jax.random.key(0))
        assert (result["layer"].activation, result["layer"].rate, result["name"]) == (jnp.tanh, 0.5, "net")
        assert result["layer"].weight.sharding.spec == P("x")
    assert init.eval_shape(jax.random.key(0))["layer"].activation is jnp.tanh


@LOWERINGS
def test_modules_train(lowering: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "equinox", sys)  # whose options are static, as are numbers among them

    def train(layer: Layer, x: Any) -> Any:
        gradient = jax.grad(lambda w: jnp.mean(dataclasses.replace(layer, weight=w)(x) ** 2))(layer.weight)
        return dataclasses.replace(layer, weight=layer.weight - 0.1 * gradient), jnp.sum(gradient)

    step = planned(train, lowering, in_shardings=(None, P("x")), donate_argnums=0)
    layer, plain = Layer(jnp.asarray(W), jnp.tanh), Layer(jnp.asarray(W), jnp.tanh)
    for _ in range(3):
        layer, _ = step(layer, X)
        plain, _ = train(plain, X)
    np.testing.assert_allclose(layer.weight, plain.weight, rtol=1e-4)
    assert step.plan_count == 1
    step(dataclasses.replace(plain, weight=jnp.copy(plain.weight), inference=False), X)
    assert step.plan_count == 2
    assert step.verify(plain, X).agrees
    assert jax.jit(lambda w: step(dataclasses.replace(plain, weight=w), X)[1])(plain.weight).shape == ()
    with jax.disable_jit():
        assert step(plain, X)[0].activation is jnp.tanh


def test_trees_of_a_plan_have_none_in_their_place(tmp_path: Any) -> None:
    step = planned(lambda layer, x: (layer, layer(x)), "auto", in_shardings=(None, P("x")), rules=[("weight", P(None, "x"))])
    layer = Layer(np.ones((4, 8), np.float32), jnp.tanh, np.float32(1), "option")
    plan = step.plan(layer, X)
    assert plan.input_shardings[0].activation is plan.output_shardings[0].activation is None
    assert plan.abstract_state("layer").weight.sharding.spec == P(None, "x")
    placed, _ = plan.place((layer, X))
    assert placed.activation is jnp.tanh
    assert placed.weight.sharding.spec == P(None, "x")
    plan.save(tmp_path / "plan.json")
    assert sp.Plan.load(tmp_path / "plan.json").output_shardings[0]["activation"] is None
