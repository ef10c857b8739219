"""Plan.cost_analysis: totals, ranges, shares, and what must hold of them."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.cost.hardware import HardwareError
from shardy_py.cost.hardware_table import hardware
from shardy_py.cost.links import LinkError, Links
from shardy_py.facade import Plan
from shardy_py.plan.collectives import Collective, axes_of
from shardy_py.plan.cost_analysis import Range, count_text, seconds_text

F32 = jnp.float32


def struct(*shape: int, dtype: Any = F32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def loss(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    with jax.named_scope("mlp"):
        hidden = jax.nn.relu(x @ params["up"])
        return jnp.mean((hidden @ params["down"]) ** 2)


def step(params: dict[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, x))


def make(lowering: Any = "jit", data: int = 2, model: int = 4) -> Plan:
    specs = ({"up": P(None, "model"), "down": P("model")}, P("data"))
    args = {"up": struct(256, 512), "down": struct(512, 256)}, struct(64, 256)
    return sp.auto_shard(step, mesh={"data": data, "model": model}, in_shardings=specs, lowering=lowering).plan(*args)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make()


def test_totals(plan: Plan) -> None:
    cost = plan.cost_analysis("h100")
    forward = 2 * 2 * 64 * 256 * 512
    products = sum(op.flops for op in cost.ops if op.primitive == "dot_general")
    assert products == (forward + 2 * forward - forward // 2) / 8  # no gradient of x
    assert cost.flops == sum(op.flops for op in cost.ops) > products
    assert cost.communicated_bytes == sum(c.total_bytes or 0 for c in plan.collectives)
    assert cost.bytes_accessed == sum(op.bytes_accessed for op in cost.ops)
    assert cost.compute_seconds == pytest.approx(sum(op.seconds or 0 for op in cost.ops))
    assert cost.exact
    assert cost.unknown == ()


def test_without_hardware_there_are_no_seconds(plan: Plan) -> None:
    cost = plan.cost_analysis()
    assert cost.flops > 0
    assert cost.communicated_bytes > 0
    assert cost.hardware is cost.compute_seconds is cost.communication_seconds is cost.step_seconds is cost.exposed_seconds is None
    assert "optimal_seconds" not in cost
    assert " s\n" not in cost.as_text()


def test_names_of_jax(plan: Plan) -> None:
    """Of `jax.stages.Compiled.cost_analysis`: our flops are close to its, which XLA counts after its own simplifications."""
    cost = plan.cost_analysis("h100")
    assert list(cost) == ["flops", "transcendentals", "bytes accessed", "communicated bytes", "optimal_seconds"]
    assert cost["flops"] == cost.flops
    assert dict(cost)["bytes accessed"] == cost.bytes_accessed
    assert cost.get("utilization") is None
    specs = ({"up": P(None, "model"), "down": P("model")}, P("data"))
    compiled = sp.auto_shard(step, mesh={"data": 2, "model": 4}, in_shardings=specs, lowering="jit")
    found = compiled.lower({"up": struct(256, 512), "down": struct(512, 256)}, struct(64, 256)).compile().cost_analysis()
    assert cost["flops"] == pytest.approx(found["flops"], rel=0.05)


def test_ranges(plan: Plan) -> None:
    cost = plan.cost_analysis("h100")
    assert cost.compute_seconds is not None
    assert cost.communication_seconds is not None
    assert cost.step_seconds is not None
    assert cost.exposed_seconds is not None
    assert cost.feeding_seconds is not None
    assert cost.step_seconds.high == pytest.approx(cost.compute_seconds + cost.communication_seconds + cost.feeding_seconds / 8)
    assert max(cost.compute_seconds, cost.communication_seconds / 2) <= cost.step_seconds.low <= cost.step_seconds.high
    assert cost.exposed_seconds.high == pytest.approx(cost.communication_seconds)
    assert 0 <= cost.exposed_seconds.low <= cost.exposed_seconds.high


def test_what_waits_cannot_be_overlapped() -> None:
    """Two products in a row with a sum in between: all of the sum is exposed. Independent ones hide it."""

    def chain(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
        return sp.with_sharding_constraint(a @ b, P()) @ c

    big = struct(2048, 2048)
    specs = (P(None, "x"), P("x"), P(None, "x"))
    cost = sp.auto_shard(chain, mesh={"x": 8}, in_shardings=specs, lowering="jit").plan(big, big, big).cost_analysis("h100")
    assert cost.step_seconds is not None
    assert cost.step_seconds.low == pytest.approx(cost.step_seconds.high)

    def beside(a: jax.Array, b: jax.Array, c: jax.Array) -> tuple[jax.Array, jax.Array]:
        return sp.with_sharding_constraint(a @ b, P()), c @ c.T

    specs = (P(None, "x"), P("x"), P())
    cost = (
        sp.auto_shard(beside, mesh={"x": 8}, in_shardings=specs, lowering="jit").plan(big, big, struct(16384, 16384)).cost_analysis("h100")
    )
    assert cost.exposed_seconds is not None
    assert cost.exposed_seconds.low == 0 < cost.exposed_seconds.high


def test_weights_of_a_scan_can_be_fetched_ahead() -> None:
    def layers(x: jax.Array, ws: jax.Array) -> jax.Array:
        return lax.scan(lambda c, w: (sp.with_sharding_constraint(jnp.tanh(c @ w), P("x")), None), x, ws)[0]

    plan = sp.auto_shard(layers, mesh={"x": 8}, in_shardings=(P("x"), P(None, "x"))).plan(struct(65536, 1024), struct(12, 1024, 1024))
    assert [(c.kind, c.trips) for c in plan.collectives] == [("all_gather", 12)]
    cost = plan.cost_analysis("h100")
    assert cost.exposed_seconds is not None
    assert cost.exposed_seconds.low == 0


def test_shares(plan: Plan) -> None:
    cost = plan.cost_analysis("v5e")
    for shares in (cost.by_op, cost.by_line, cost.by_module):
        assert sum(s.flops for s in shares) == pytest.approx(cost.flops)
        assert sum(s.communicated_bytes for s in shares) == cost.communicated_bytes
        assert sum(s.compute_seconds or 0 for s in shares) == pytest.approx(cost.compute_seconds)
        assert [s.seconds for s in shares] == sorted((s.seconds for s in shares), reverse=True)
    assert max(cost.by_op, key=lambda s: s.flops).name == "dot_general"
    assert {s.name for s in cost.by_axis} == {"data", "model"}
    assert sum(s.communicated_bytes for s in cost.by_axis) == cost.communicated_bytes
    mlp = next(s for s in cost.by_module if s.name == "mlp")
    assert mlp.flops > 0.9 * cost.flops
    assert mlp.communicated_bytes > 0


def same_line(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    def dense(x: jax.Array, w: jax.Array) -> jax.Array:
        return x @ w

    for scope in ("first", "second"):
        with jax.named_scope(scope):
            x = dense(dense(x, params["up"]), params["down"])
    with jax.named_scope("blocks"):
        return lax.scan(lambda x, w: (layer(x, w), None), x, params["layers"])[0]


def layer(x: jax.Array, w: jax.Array) -> jax.Array:
    with jax.named_scope("layer"):
        return jnp.tanh(x @ w)


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
def test_collectives_of_one_line_belong_to_their_modules(lowering: Any) -> None:
    specs = ({"up": P(None, "model"), "down": P("model"), "layers": P(None, "model")}, P("data"))
    args = {"up": struct(64, 128), "down": struct(128, 64), "layers": struct(6, 64, 64)}, struct(32, 64)
    plan = sp.auto_shard(same_line, mesh={"data": 2, "model": 4}, in_shardings=specs, lowering=lowering).plan(*args)
    shares = {s.name: s.communicated_bytes for s in plan.cost_analysis().by_module}
    assert shares["second"] > 0
    assert {c.module for c in plan.collectives if c.trips == 6} == {"blocks/layer"}
    assert Plan.from_json(plan.to_json()).collectives == plan.collectives
    assert "(model)" in plan.as_text(where="second")


def test_links(plan: Plan) -> None:
    near = plan.cost_analysis("h100").communication_seconds
    far = plan.cost_analysis("h100", links={"data": "dcn"}).communication_seconds
    own = plan.cost_analysis("h100", links={"data": Links("ring", 1e6)}).communication_seconds
    assert near is not None
    assert far is not None
    assert own is not None
    assert near < far < own
    assert plan.cost_analysis("h100", {"data": "dcn"}).collectives[-1].links == ("dcn",)


def test_errors(plan: Plan) -> None:
    with pytest.raises(HardwareError, match="known are v4"):
        plan.cost_analysis("h300")
    with pytest.raises(LinkError, match="unknown mesh axis 'rows'"):
        plan.cost_analysis("h100", {"rows": "dcn"})
    with pytest.raises(HardwareError, match="links without hardware"):
        plan.cost_analysis(links={"data": "dcn"})
    with pytest.raises(TypeError):
        plan.cost_analysis(7)  # type: ignore[arg-type]


def test_both_lowerings() -> None:
    explicit = make("shard_map")
    cost = explicit.cost_analysis("h100")
    assert [c.collective for c in cost.collectives] == list(explicit.collectives)
    assert cost.step_seconds is not None
    assert cost.step_seconds.low <= cost.step_seconds.high


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
@pytest.mark.parametrize("rows", [8, 64, 4096])  # with few rows a region gathers activations, so that devices compute more to send less
def test_operations_are_those_of_what_runs(lowering: Any, rows: int) -> None:
    specs = ({"up": P(None, "model"), "down": P("model")}, P("data"))
    args = {"up": struct(256, 512), "down": struct(512, 256)}, struct(rows, 256)
    f = sp.auto_shard(step, mesh={"data": 2, "model": 4}, in_shardings=specs, lowering=lowering)
    compiled = f.lower(*args).compile().cost_analysis()
    assert f.plan(*args).cost_analysis().flops == pytest.approx(compiled["flops"], rel=0.02 if lowering == "shard_map" else 0.05)


def test_what_waits_in_a_region_cannot_be_overlapped() -> None:
    def chain(x: jax.Array, ws: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0]

    specs = (P(None, "model"), P(None, "model"))
    f = sp.auto_shard(chain, mesh={"model": 8}, in_shardings=specs, lowering="shard_map")
    cost = f.plan(struct(64, 512), struct(12, 512, 512)).cost_analysis("h100")
    waits = sum(c.seconds or 0.0 for c in cost.collectives if c.collective.trips == 12)
    assert waits > 0
    assert cost.step_seconds is not None
    assert cost.path_seconds is not None
    assert cost.step_seconds.low >= cost.path_seconds >= waits


def test_forms(plan: Plan) -> None:
    cost = plan.cost_analysis("h100")
    text = cost.as_text()
    assert text.startswith("cost of step per device, on mesh data=2, model=4 of h100\n  data=2 on nvlink, model=4 on nvlink\n")
    assert all(word in text for word in ("by mesh axis", "by op", "by module", "by source line", "share of peak"))
    assert str(cost) == repr(cost) == text
    assert max(map(len, text.splitlines())) <= 120
    assert "more" in cost.as_text(limit=2)
    found = json.loads(cost.to_json())
    assert (found["format"], found["version"]) == ("shardy_py.cost", 1)
    assert found == json.loads(json.dumps(cost.to_dict())) == json.loads(cost.to_json(indent=1))
    assert found["flops"] == cost.flops
    assert found["hardware"]["sources"]["hbm_bytes"] == "NVIDIA H100 SXM5 architecture white paper"
    assert len(found["collectives"]) == len(cost.collectives)


def test_the_same_in_every_process(plan: Plan) -> None:
    assert make().cost_analysis("v5p").as_text() == plan.cost_analysis("v5p").as_text()


def test_a_loaded_plan_costs_the_same(plan: Plan) -> None:
    loaded = Plan.from_json(plan.to_json())
    assert loaded.cost_analysis("v5p").as_text() == plan.cost_analysis("v5p").as_text()


@settings(max_examples=25, deadline=None)
@given(st.floats(1, 50), st.sampled_from(["hbm_bandwidth", "vector_flops", "fabric", "network", "flops"]))
def test_faster_hardware_takes_no_longer(factor: float, what: str) -> None:
    import dataclasses

    plan = _big()
    base = hardware("h100")
    old = getattr(base, what)
    if what in ("fabric", "network"):
        new: object = dataclasses.replace(old, bandwidth=old.bandwidth * factor)
    elif what == "flops":
        new = {dtype: rate * factor for dtype, rate in old.items()}
    else:
        new = old * factor
    slow, fast = plan.cost_analysis(base).step_seconds, plan.cost_analysis(base.with_figures(**{what: new})).step_seconds
    assert slow is not None
    assert fast is not None
    assert fast.low <= slow.low * (1 + 1e-9)
    assert fast.high <= slow.high * (1 + 1e-9)


_PLANS: dict[str, Plan] = {}


def _big() -> Plan:
    if "big" not in _PLANS:
        _PLANS["big"] = make(data=16, model=16)
    return _PLANS["big"]


def test_axes_of_collectives() -> None:
    sizes = {"x": 8, "odd name": 4, "one": 1}
    assert axes_of(Collective("all_reduce", ('"odd name"', "x:(2)4"), 16, 4), sizes) == [("odd name", 4), ("x", 4)]
    assert axes_of(Collective("all_reduce", ("x:(1)2", "x:(4)2"), 4, 4), sizes) == [("x", 4)]
    assert axes_of(Collective("collective_permute", (), 32, 4), sizes) == [("x", 8), ("odd name", 4)]


def test_texts() -> None:
    assert str(Range(1e-3, 1e-3)) == "1 ms"
    assert str(Range(0, 2)) == "0 s to 2 s"
    assert [seconds_text(s) for s in (123.4, 0.5, 2e-9)] == ["123 s", "500 ms", "2 ns"]
    assert [count_text(n) for n in (0, 999, 1.5e6, 2e18)] == ["0", "999", "1.5 M", "2 E"]
