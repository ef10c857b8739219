"""Plans are compared value by value, whatever else was edited."""

from __future__ import annotations

import json
from typing import Any

import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.facade import Plan
from shardy_py.plan.diff import partners
from tests.plan.store.programs import f32, training

MESH = {"data": 2, "model": 4}
SPEC = {"up": P(None, "model"), "down": None}


def mlp(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w["up"]) @ w["down"]


def model(params: Any, x: Any) -> Any:
    for w in params:
        x = x + mlp(x, w)
    return jnp.mean(x**2)


def edited(params: Any, x: Any) -> Any:
    """The same on other lines, with other numbers of values, and a new op between."""
    scale = jnp.float32(2) * 3

    for w in params:
        x = x + mlp(
            jnp.sin(x),
            w,
        )

    return jnp.mean(x**2) * scale


def plan_of(function: Any = model, specs: Any = (SPEC, SPEC), mesh: dict[str, int] = MESH, **options: Any) -> Plan:
    params = [{"up": f32(16, 32), "down": f32(32, 16)} for _ in specs]
    step = sp.auto_shard(function, mesh=mesh, in_shardings=(list(specs), P("data")), **options)
    return step.plan(params, f32(8, 16))


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
def test_no_difference(lowering: str) -> None:
    plan = plan_of(lowering=lowering)
    for other in (plan_of(lowering=lowering), Plan.from_json(plan.to_json())):
        diff = plan.diff(other)
        assert not diff
        assert str(diff) == "no difference: plan of model"
        assert repr(diff) == "<PlanDiff: no difference>"


def test_another_sharding() -> None:
    other = {"up": P("data", "model"), "down": None}
    diff = plan_of().diff(plan_of(specs=(SPEC, other)))
    assert diff
    (change,) = (c for c in diff.values if c.kind == "input")
    assert (change.sign, change.path) == ("changed", "params[1]['up']")
    assert (change.before, change.after) == ("float32[16,32@model]", "float32[16@data,32@model]")
    assert (change.bytes_before, change.bytes_after) == (16 * 32, 16 * 16)
    assert [c for c in diff.collectives if c.axes == "data" and not c.count_before]
    assert diff.bytes[1] > diff.bytes[0]
    assert sum(c.bytes_after - c.bytes_before for c in diff.collectives) == diff.bytes[1] - diff.bytes[0]
    assert "  ~ params[1]['up']  float32[16,32@model] -> float32[16@data,32@model]" in str(diff).splitlines()


def test_searches_of_a_planner() -> None:
    def planned(hardware: str) -> Plan:
        planner = sp.Planner(hardware=hardware)
        return sp.auto_shard(mlp, mesh={"x": 8}, planner=planner, lowering="jit").plan(
            f32(8192, 4096), {"up": f32(4096, 64), "down": f32(64, 4096)}
        )

    first, second = planned("h100"), planned("v5e")
    assert first.search is not None
    assert second.search is not None
    for before, after in ((first, second), (Plan.from_json(first.to_json()), Plan.from_json(second.to_json()))):
        text = str(before.diff(after))
        assert f"planner - {first.search.headline}\nplanner + {second.search.headline}" in text
        assert before.diff(after).to_dict()["searches"] == (first.search.headline, second.search.headline)
    assert "planner" not in str(first.diff(planned("h100")))


def test_an_edit_is_an_edit_only() -> None:
    """New values are new; all others are found again on their new lines."""
    before, after = plan_of(), plan_of(edited)
    diff = before.diff(after)
    assert {c.sign for c in diff.values} == {"added"}
    assert {c.primitive for c in diff.values} == {"sin", "mul"}
    assert not diff.reshards
    assert not diff.collectives
    back = after.diff(before)
    assert {c.sign for c in back.values} == {"removed"}
    assert [c.path for c in back.values] == [c.path for c in diff.values]


def test_a_layer_less() -> None:
    diff = plan_of(specs=(SPEC,) * 3).diff(plan_of(specs=(SPEC,) * 2))
    assert {c.sign for c in diff.values} == {"removed"}
    assert [c.path for c in diff.values if c.kind == "input"] == ["params[2]['down']", "params[2]['up']"]
    assert sum(c.primitive == "tanh" for c in diff.values) == 1
    assert {c.sign for c in diff.reshards} == {"removed"}


def test_another_mesh_and_other_shapes() -> None:
    diff = plan_of().diff(plan_of(mesh={"data": 4, "model": 2}))
    assert diff.meshes == ("data=2, model=4", "data=4, model=2")
    assert not diff.values
    assert all(c.count_before == c.count_after for c in diff.collectives)
    assert "mesh  data=2, model=4 -> data=4, model=2" in str(diff)
    wide = sp.auto_shard(model, mesh=MESH, in_shardings=([SPEC], P("data"))).plan([{"up": f32(16, 64), "down": f32(64, 16)}], f32(8, 16))
    diff = plan_of(specs=(SPEC,)).diff(wide)
    assert {c.sign for c in diff.values} == {"changed"}


def test_values_are_paired_once() -> None:
    plan = training()
    found = partners(plan, plan)
    assert found == list(range(len(plan.values)))
    other = plan_of()
    found = [j for j in partners(plan, other) if j >= 0]
    assert len(found) == len(set(found))
    assert partners(plan, Plan.from_json(plan.to_json())) == list(range(len(plan.values)))


def test_findings_that_are_new_and_gone() -> None:
    x = f32(2048, 2048)
    plain = sp.auto_shard(lambda x: (x * 2).sum(), mesh=MESH, in_shardings=P("data", "model")).plan(x)
    donated = sp.auto_shard(lambda x: (x * 2).sum(), mesh=MESH, in_shardings=P("data", "model"), donate_argnums=0).plan(x)
    diff = plain.diff(donated)
    assert [f.kind for f in diff.new_findings] == ["refused-donation"]
    assert diff.gone_findings == ()
    assert "  + warning: refused-donation" in str(diff)
    assert [f.kind for f in donated.diff(plain).gone_findings] == ["refused-donation"]


def test_long_lists_are_cut() -> None:
    diff = plan_of(specs=(SPEC,) * 20).diff(plan_of(specs=(SPEC,)))
    text = diff.as_text(limit=1)
    assert any(line.startswith("  ... and ") for line in text.splitlines())
    assert "\n  - params[1..19]['up']    float32[16,32@model]\n" in diff.as_text()
    assert "..." not in diff.as_text(limit=None)


def test_json() -> None:
    diff = plan_of().diff(plan_of(mesh={"data": 4, "model": 2}))
    data = json.loads(diff.to_json())
    assert data == json.loads(json.dumps(diff.to_dict())) == json.loads(diff.to_json(indent=1))
    assert (data["format"], data["version"]) == ("shardy_py.diff", 1)
    assert data["meshes"] == list(diff.meshes)
    assert len(data["reshards"]) == len(diff.reshards)
    assert diff.to_json() == plan_of().diff(plan_of(mesh={"data": 4, "model": 2})).to_json()


def test_what_is_no_plan() -> None:
    with pytest.raises(TypeError, match=r"diff takes a plan, got a str; Plan\.load reads one"):
        plan_of().diff("plan.json")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="from_json takes the text of to_json, got a dict"):
        Plan.from_json({})  # pyright: ignore[reportArgumentType]


def test_equal_layers_keep_their_order() -> None:
    """Of equal layers whose shardings differ, those stay paired that did not change."""
    other = {"up": P("data", "model"), "down": None}
    diff = plan_of(specs=(SPEC, other, SPEC)).diff(plan_of(specs=(SPEC, other, SPEC)))
    assert not diff
