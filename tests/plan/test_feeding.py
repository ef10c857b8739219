"""What a plan takes to come from the host in every call, and to go back to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.cost.hardware_table import hardware
from shardy_py.errors import UserError


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


PARAMS = {"up": f32(64, 128), "down": f32(128, 64)}
BATCH = {"x": f32(32, 64), "y": f32(32, 64)}


def loss(params: Any, batch: Any) -> jax.Array:
    return jnp.mean((jnp.tanh(batch["x"] @ params["up"]) @ params["down"] - batch["y"]) ** 2)


def updated(params: Any, grads: Any) -> Any:
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def step(params: Any, batch: Any) -> Any:
    value, grads = jax.value_and_grad(loss)(params, batch)
    return updated(params, grads), value


def microbatched(params: Any, batch: Any) -> Any:
    zeros = jax.tree.map(jnp.zeros_like, params)
    grads, _ = lax.scan(lambda total, each: (jax.tree.map(jnp.add, total, jax.grad(loss)(params, each)), None), zeros, batch)
    return updated(params, grads)


def accumulated(params: Any, sums: Any, batch: Any) -> Any:
    return jax.tree.map(jnp.add, sums, jax.grad(loss)(params, batch))


def bare(w: jax.Array, x: jax.Array) -> Any:
    return w - jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)


def masked(params: Any, tokens: jax.Array, mask: jax.Array, unused: jax.Array) -> Any:
    def loss(params: Any) -> jax.Array:
        return jnp.mean(params["table"][tokens] ** 2 * mask[..., None])

    return updated(params, jax.grad(loss)(params))


def with_logits(params: Any, batch: Any) -> Any:
    return updated(params, jax.grad(loss)(params, batch)), {"logits": batch["x"] @ params["up"]}


def decoded(params: Any, cache: Any, token: jax.Array) -> Any:
    keys = lax.dynamic_update_slice_in_dim(cache["keys"], token @ params["up"], 3, 0)
    return jax.nn.softmax(keys @ params["down"]), {"keys": keys}


def renamed(state: Any, x: jax.Array) -> Any:
    return {"next": updated(state["w"], jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(state["w"]))}


def with_activations(params: Any, x: jax.Array) -> Any:
    def loss(w: Any) -> Any:
        hidden = jnp.tanh(x @ w)
        return jnp.mean(hidden**2), hidden

    grads, hidden = jax.grad(loss, has_aux=True)(params["w"])
    return {"w": updated(params["w"], grads)}, {"hidden": hidden}


MICROBATCHES = {name: f32(4, *value.shape) for name, value in BATCH.items()}
LAYERS = {"layers": [f32(64, 64), f32(64, 64)]}


def layered(params: Any, x: jax.Array) -> Any:
    def loss(params: Any) -> jax.Array:
        return jnp.mean(jnp.tanh(x @ params["layers"][0]) @ params["layers"][1])

    return updated(params, jax.grad(loss)(params))


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...], list[str]]] = {
    "donated": (step, (PARAMS, BATCH), (0,), ["batch['x']", "batch['y']", "result[1]"]),
    "not donated": (step, (PARAMS, BATCH), (), ["batch['x']", "batch['y']", "result[1]"]),
    "donated with its batch": (step, (PARAMS, BATCH), (0, 1), ["batch['x']", "batch['y']", "result[1]"]),
    "microbatches": (microbatched, (PARAMS, MICROBATCHES), (0,), ["batch['x']", "batch['y']"]),
    "sums of gradients": (accumulated, (PARAMS, PARAMS, BATCH), (1,), ["batch['x']", "batch['y']"]),
    "no names": (bare, (f32(64, 64), f32(64, 64)), (), ["x"]),
    "donated, under another name": (renamed, ({"w": f32(64, 64)}, f32(32, 64)), (0,), ["x"]),
    "no name, and a named result of its type": (
        with_activations,
        ({"w": f32(64, 64)}, f32(32, 64)),
        (),
        ["x", "result[1]['hidden']"],
    ),
    "batch of a parameter's shape": (layered, (LAYERS, f32(64, 64)), (), ["x"]),
    "tokens and a mask": (
        masked,
        ({"table": f32(50, 16)}, jax.ShapeDtypeStruct((8, 4), jnp.int32), f32(8, 4), f32(99)),
        (0,),
        ["tokens", "mask"],
    ),
    "a result that is not kept": (with_logits, (PARAMS, BATCH), (0,), ["batch['x']", "batch['y']", "result[1]['logits']"]),
    "inference": (lambda params, x: jnp.tanh(x @ params["up"]), (PARAMS, f32(32, 64)), (), []),
    "decoding with a cache": (decoded, (PARAMS, {"keys": f32(16, 128)}, f32(1, 64)), (1,), []),
    "nothing replaced": (lambda params, batch: jax.grad(loss)(params, batch)["up"].sum(), (PARAMS, BATCH), (), []),
}


def fed(plan: sp.Plan) -> list[str]:
    return [*(plan.inputs[n].path for n in plan.feeding.arguments), *(plan.outputs[n].path for n in plan.feeding.results)]


@pytest.mark.parametrize("name", CASES)
def test_what_a_training_step_does_not_replace_is_fed(name: str) -> None:
    function, args, donated, paths = CASES[name]
    assert fed(sp.auto_shard(function, mesh={"x": 4}, donate_argnums=donated).plan(*args)) == paths


def test_a_device_is_fed_its_pieces() -> None:
    """Feeding is a part of the step, and may go on during the step before; without a link in the hardware it costs nothing."""
    plans = [sp.auto_shard(step, mesh={"x": 4}, in_shardings=(None, spec), donate_argnums=0).plan(PARAMS, BATCH) for spec in (P(), P("x"))]
    whole, cut = (plan.cost_analysis("v5e") for plan in plans)
    assert (whole.fed_bytes, cut.fed_bytes) == (2 * 32 * 64 * 4 + 4, 2 * 8 * 64 * 4 + 4)
    assert cut.compute_seconds is not None
    assert cut.communication_seconds is not None
    assert cut.step_seconds is not None
    assert cut.feeding_seconds == cut.fed_bytes / 1.6e10
    assert cut.step_seconds.high == cut.compute_seconds + cut.communication_seconds + cut.feeding_seconds / 8
    slow = plans[1].cost_analysis(dataclasses.replace(hardware("v5e"), host_bandwidth=1.0))
    assert slow.step_seconds is not None
    assert slow.step_seconds.low == slow.feeding_seconds == cut.fed_bytes
    assert slow.step_seconds.high == cut.fed_bytes + (cut.compute_seconds + cut.communication_seconds) / 8
    assert slow.exposed_seconds == cut.exposed_seconds
    assert plans[1].cost_analysis(dataclasses.replace(hardware("v5e"), host_bandwidth=None)).feeding_seconds == 0
    assert [line.split() for line in cut.as_text().splitlines() if "fe" in line[:6]] == [["fed", "4", "KiB"], ["feeding", "256", "ns"]]
    assert cut.to_dict()["fed_bytes"] == plans[1].cost_analysis().fed_bytes == cut.fed_bytes


def test_a_planner_is_told_what_is_fed() -> None:
    planner = sp.Planner(hardware="v5e", fed="params['up']", resident=["batch['y']", "result*", "params*"])
    plan = sp.auto_shard(step, mesh={"x": 4}, planner=planner, donate_argnums=0).plan(PARAMS, BATCH)
    assert plan.search is not None
    assert fed(plan) == ["params['up']", "batch['x']"]
    assert plan.search.space["fed"].startswith("params['up'], batch['x']: ")
    step_seconds = plan.cost_analysis("v5e").step_seconds
    assert step_seconds is not None
    assert plan.search.objective_seconds == step_seconds.high
    made = plan.search.alternatives[0].plan()
    assert fed(made) == fed(plan)
    assert made.cost_analysis("v5e").step_seconds.high == pytest.approx(plan.search.alternatives[0].objective_seconds)
    stored = sp.Plan.from_json(plan.to_json())
    assert fed(stored) == fed(plan)
    assert stored.cost_analysis("v5e").step_seconds == step_seconds


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"fed": "bacth['x']"}, r"fed has \"bacth\['x'\]\".*Planner\(fed=...\).*did you mean \"batch\['x'\]\""),
        ({"resident": ["batch*", "z"]}, "resident has 'z'"),
    ],
)
def test_what_is_fed_has_to_be_there(options: dict[str, Any], text: str) -> None:
    sharded = sp.auto_shard(step, mesh={"x": 4}, planner=sp.Planner(hardware="v5e", **options))
    with pytest.raises(UserError, match=f"(?s){text}"):
        sharded.plan(PARAMS, BATCH)
