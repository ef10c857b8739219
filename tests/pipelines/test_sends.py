"""Values that cross between stages, and those that their readers compute themselves."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.pipelines import building
from shardy_py.pipelines.residuals import REDUCTIONS, bound
from shardy_py.pipelines.sends import PlacedStep
from tests.pipelines.steps import data, largest_gap, params
from tests.pipelines.test_models import models


def sent(built: Any) -> list[tuple[str, str, tuple[int, ...]]]:
    """("F0 -> F1", primitive, shape) of all that crosses; to the program that reads it first."""
    made = {v: node.eqn.primitive.name for program in built.programs.values() for node in program.nodes for v in node.eqn.outvars}
    outputs = {v: key for key, program in built.programs.items() for v in program.outputs}
    found: dict[Any, Any] = {}
    for (role, t), program in built.programs.items():
        for v in program.inputs:
            if v in outputs and outputs[v][1] != t:
                from_role, s = outputs[v]
                found.setdefault((v, t), (f"{from_role}{s} -> {role}{t}".upper(), made[v], v.aval.shape))
    return list(found.values())


def normalized(h: Any, scale: Any = 1.0) -> Any:
    return (h - h.mean(-1, keepdims=True)) * jax.lax.rsqrt(h.var(-1, keepdims=True) + 1e-3) * scale


def marked(p: Any, x: Any, y: Any) -> Any:
    """The first stage ends behind a normalization; the second reads its result and its operand."""
    with sp.stage("a"):
        h = x @ p["a"]
        n = normalized(h, p["scale"])
    with sp.stage("b"):
        return jnp.mean((h + n @ p["b"] - y) ** 2)


def scaled_params() -> dict[str, Any]:
    return {**params(), "scale": jnp.linspace(0.5, 1.5, 8)}


@pytest.mark.parametrize(("stages", "ways"), [(8, 1), (4, 2)])
def test_layers_of_a_gpt_send_one_value_each_way(stages: int, ways: int) -> None:
    model = models().gpt()
    mesh = {"stage": stages, "data": ways}
    built = sp.pipeline(model.gradients, num_stages=stages, num_microbatches=8, mesh=mesh).build(model.state["params"], model.batch(0))
    wanted = {f"F{s} -> F{s + 1}" for s in range(stages - 1)} | {f"B{s + 1} -> B{s}" for s in range(stages - 1)}
    assert sorted(where for where, _, _ in sent(built)) == sorted(wanted)


@pytest.mark.parametrize(("stages", "ways"), [(8, 1), (4, 2)])
def test_stages_of_a_resnet_send_no_statistics(stages: int, ways: int) -> None:
    """A branch and what goes past it cross, which is two values; no statistics of norms, and no broadcasts of them."""
    model = models().resnet()
    mesh = {"stage": stages, "data": ways}
    built = sp.pipeline(model.gradients, num_stages=stages, num_microbatches=8, mesh=mesh).build(model.state["params"], model.batch(0))
    found = sent(built)
    assert all(len(shape) == 4 and 1 not in shape for _, _, shape in found), found
    assert all(sum(where == other for other, _, _ in found) <= 2 for where, _, _ in found)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "setting"), [("gpt", "4x2"), ("gpt-scan", "3"), ("resnet", "4x2"), ("encoder-decoder", "3")])
def test_never_more_bytes(name: str, setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stages, _, ways = setting.partition("x")
    model = models().MODELS[name]()
    mesh = {"stage": int(stages), "data": int(ways or 1)}

    def crossing() -> tuple[int, int]:
        run = sp.pipeline(model.gradients, num_stages=int(stages), num_microbatches=8, mesh=mesh)
        report = run.report(model.state["params"], model.batch(0))
        return sum(row.bytes_in for row in report.rows), len(sent(run.build(model.state["params"], model.batch(0))))

    size, count = crossing()
    monkeypatch.setattr(building, "reduce_sends", lambda split, assigned, *rest: PlacedStep(split, assigned, {}))
    size_without, count_without = crossing()
    assert size <= size_without
    assert count <= count_without


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_a_value_is_made_of_what_is_sent_anyway(schedule: str) -> None:
    run = sp.pipeline(marked, num_microbatches=4, schedule=schedule)
    built = run.build(scaled_params(), *data())
    assert sent(built) == [("B1 -> B0", "add_any", (4, 8)), ("F0 -> F1", "dot_general", (4, 8))]
    assert [node.eqn.primitive.name for node in built.programs["F", 0].nodes] == ["dot_general"], "nothing else is read there"
    assert run.verify(scaled_params(), *data()) < 1e-5


def test_a_skip_to_two_stages_is_sent_to_each_once() -> None:
    def net(p: Any, x: Any, y: Any) -> Any:
        with sp.stage("a"):
            h = x @ p["a"]
            n = normalized(h, p["scale"])
            x = n @ p["a"]
        with sp.stage("b"):
            x = jnp.tanh(x @ p["b"] + n) + h
        with sp.stage("c"):
            return jnp.mean((x @ p["c"] + n * h - y) ** 2)

    run = sp.pipeline(net, num_microbatches=4)
    built = run.build(scaled_params(), *data())
    forward = [row for row in sent(built) if row[0].startswith("F")]
    assert sorted(forward) == [
        ("F0 -> F1", "dot_general", (4, 8)), ("F0 -> F1", "dot_general", (4, 8)), ("F0 -> F2", "dot_general", (4, 8)),
        ("F1 -> F2", "add", (4, 8)),
    ]  # fmt: skip
    assert all("rsqrt" in [node.eqn.primitive.name for node in built.programs["F", s].nodes] for s in range(3))
    assert run.verify(scaled_params(), *data()) < 1e-5


def test_a_broadcast_is_made_where_it_is_read() -> None:
    def net(p: Any, x: Any, y: Any) -> Any:
        with sp.stage("a"):
            wide = jnp.broadcast_to(jnp.sum(x @ p["a"], 1, keepdims=True), (x.shape[0], 64))
        with sp.stage("b"):
            return jnp.mean((wide[:, :8] * wide[:, 8:16] @ p["b"] - y) ** 2)

    built = sp.pipeline(net, num_microbatches=4).build(params(), *data())
    assert all(size in ((4,), (4, 1)) for where, _, size in sent(built) if where == "F0 -> F1")
    assert sum(where == "F0 -> F1" for where, _, _ in sent(built)) == 1


@pytest.mark.parametrize("columns", [False, True])
def test_no_sum_over_devices_is_made_where_it_is_read(columns: bool) -> None:
    """Where devices would have to communicate for the statistics, these are sent."""
    weights = dict.fromkeys(scaled_params())
    shardings = ({**weights, "a": P(None, "data")}, None, None) if columns else (None, P("data"), P("data"))
    run = sp.pipeline(marked, num_microbatches=2, mesh={"stage": 2, "data": 2}, in_shardings=shardings)
    built = run.build(scaled_params(), *data())
    reduced = [
        node.eqn for node in built.programs["F", 1].nodes if node.eqn.primitive.name in REDUCTIONS and node.eqn.outvars[0].aval.shape
    ]
    assert bool(reduced) != columns
    assert run.verify(scaled_params(), *data()) < 1e-5


def test_products_stay_where_they_are() -> None:
    """The second stage could make the gradient of "b", as it is sent all that this takes; stages would no longer take equally long."""

    def net(p: Any, x: Any, y: Any) -> Any:
        with sp.stage("a"):
            h = x @ p["a"]
            n = normalized(h, p["scale"])
            z = n @ p["b"]
            t = jnp.tanh(z)
        with sp.stage("b"):
            return jnp.mean((h + normalized(t) @ p["c"] + t - y) ** 2)

    run = sp.pipeline(net, num_microbatches=4)
    built = run.build(scaled_params(), *data())
    assert sum(node.eqn.primitive.name == "dot_general" for node in built.programs["B", 0].nodes) == 3
    assert len(sent(built)) <= 4
    assert run.verify(scaled_params(), *data()) < 1e-5


def test_bytes_decide_before_the_number_of_values() -> None:
    """Two rows of numbers are fewer bytes than the matrix that both are made of."""

    def net(p: Any, x: Any, y: Any) -> Any:
        with sp.stage("a"):
            h = jnp.tanh(x @ p["wide"])
            low, high = jnp.min(h, 1), jnp.max(h, 1)
        with sp.stage("b"):
            return jnp.mean((x @ p["b"] * low[:, None] + high[:, None] - y) ** 2)

    wide = {"b": params()["b"], "wide": jnp.ones((8, 1024)) * jnp.linspace(-0.3, 0.2, 1024)}
    run = sp.pipeline(net, num_microbatches=4)
    found = [row for row in sent(run.build(wide, *data())) if row[0] == "F0 -> F1"]
    assert sorted(found) == [("F0 -> F1", "reduce_max", (4,)), ("F0 -> F1", "reduce_min", (4,))]
    assert run.verify(wide, *data()) < 1e-5


def test_tied_parameters_stay_right() -> None:
    def net(p: Any, x: Any, y: Any) -> Any:
        with sp.stage("a"):
            n = normalized(x @ p["a"], p["scale"])
        with sp.stage("b"):
            n = normalized(n @ p["b"] + n, p["scale"])
        with sp.stage("c"):
            return jnp.mean((normalized(n @ p["a"].T, p["scale"]) + n - y) ** 2)

    run = sp.pipeline(net, num_microbatches=4)
    got, wanted = run(scaled_params(), *data()), jax.value_and_grad(net)(scaled_params(), *data())
    assert largest_gap(got, wanted) < 1e-5


@pytest.mark.parametrize("stages", [2, 3])
def test_what_is_equal_stays_equal(stages: int) -> None:
    """The derivative of a maximum asks which operand it is; one that is made again is not equal to a maximum that is not."""

    def net(p: Any, x: Any, y: Any) -> Any:
        old = [x]
        for name in "abc":
            for _ in range(2):
                x = jax.nn.softmax(x * p["scale"])
                x = jnp.maximum(x * jnp.tanh(old[-1]), old[len(old) // 2].mean(-1, keepdims=True))
                x = jnp.maximum(normalized(x, p["scale"]), jnp.max(x, -1, keepdims=True))
                old.append(x)
            x = jnp.tanh(x @ p[name]) + old[len(old) // 2]
        return jnp.mean((x - y) ** 2)

    run = sp.pipeline(net, num_stages=stages, num_microbatches=4)
    built = run.build(scaled_params(), *data())
    maker = {v: node.eqn for node in built.split.micro.nodes for v in node.eqn.outvars}
    # A maximum of a value that is received is equal to one of its elements wherever it is taken.
    pairs, checked = [(a, b) for a, b in bound(built.split.micro.nodes) if b not in maker[a].invars], 0
    for program in built.programs.values():
        made = {v for node in program.nodes for v in node.eqn.outvars}
        for a, b in pairs:
            if a in made and (b in made or b in program.inputs):
                assert b in made
                checked += program.role == "B"
    assert checked
    got, wanted = run(scaled_params(), *data()), jax.value_and_grad(net)(scaled_params(), *data())
    assert largest_gap(got, wanted) < 1e-5


@pytest.mark.slow
def test_builds_are_alike() -> None:
    model = models().resnet(blocks=3)

    def listed() -> Any:
        built = sp.pipeline(model.gradients, num_stages=4, num_microbatches=8).build(model.state["params"], model.batch(0))
        return sent(built), [[str(node.eqn.primitive) for node in program.nodes] for program in built.programs.values()]

    assert listed() == listed()
