"""Plans in which the planner shards arguments and results alone, and values inside follow by propagation."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.planner.propagated import Outcome, Trial, Trials
from tests.planner.test_model import PROGRAMS, f32
from tests.planner.test_search import SMALL, STEP, planner, step, values


def planned(fun: Any = step, mesh: Any = None, lowering: str = "jit", **options: Any) -> Any:
    donated = 0 if fun is step else ()
    chosen = planner(constraints=False, **options)
    return sp.auto_shard(fun, mesh=SMALL if mesh is None else mesh, planner=chosen, donate_argnums=donated, lowering=lowering)


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
@pytest.mark.parametrize("name", ["scanned layers", "indexing"])
def test_numbers(name: str, lowering: str) -> None:
    function, arguments = PROGRAMS[name][0], values(name)
    results = planned(function, {"x": 8}, lowering)(*arguments)
    for result, expected in zip(jax.tree.leaves(results), jax.tree.leaves(jax.jit(function)(*arguments)), strict=True):
        np.testing.assert_allclose(result, expected, rtol=2e-4, atol=1e-4 * max(1.0, float(jnp.max(jnp.abs(expected)))))


@pytest.mark.parametrize("lowering", ["jit", "auto", "shard_map"])
def test_a_plan_is_what_propagation_gives(lowering: str) -> None:
    plan = planned(lowering=lowering).plan(*STEP)
    inputs, outputs = (jax.tree.map(lambda s: s.spec, tree) for tree in (plan.input_shardings, plan.output_shardings))
    own = sp.auto_shard(
        step, mesh=SMALL, in_shardings=inputs, out_shardings=outputs, donate_argnums=0, lowering=lowering,
        options=sp.Options(platform=plan.platform),
    ).plan(*STEP)  # fmt: skip
    assert plan.search is not None
    assert plan.search.constraints == ()
    assert plan.search.objective_seconds == plan.cost_analysis("h100").step_seconds.high == own.cost_analysis("h100").step_seconds.high
    assert plan.search.peak_bytes == plan.memory_analysis("h100").peak_memory_in_bytes
    assert [value.sharding for value in plan.values] == [value.sharding for value in own.values]
    assert all(value.given is None for value in (*plan.inputs, *plan.outputs))


@pytest.mark.slow
def test_no_template_is_cheaper_and_the_bound_holds() -> None:
    """Scanned layers of which propagation from the shardings that are best with constraints gives a step 700 times as long."""
    function, arguments = PROGRAMS["scanned layers"][:2]
    search = planned(function).plan(*arguments).search
    constrained = sp.auto_shard(function, mesh=SMALL, planner=planner()).plan(*arguments).search
    assert search is not None
    assert constrained is not None
    assert search.lower_bound_seconds <= search.objective_seconds
    assert constrained.objective_seconds <= search.objective_seconds <= 1.5 * constrained.objective_seconds
    assert {"whole", "data parallel over x and y"} <= {alternative.name for alternative in search.alternatives}
    for alternative in search.alternatives:
        assert alternative.objective_seconds >= search.objective_seconds * (1 - 1e-9)
        assert alternative.constraints == ()
        step_seconds = alternative.plan().cost_analysis("h100").step_seconds
        assert step_seconds.high == pytest.approx(alternative.objective_seconds, rel=1e-9)


def test_layouts_next_to_the_best_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each one argument, or all of one shape, lie otherwise; what comes from a template or a search has a name."""
    tried, outcome = [], Trials.outcome
    monkeypatch.setattr(Trials, "outcome", lambda self, trial: (tried.append(trial), outcome(self, trial))[1])
    monkeypatch.setattr("shardy_py.planner.propagated.TRIALS", 50)
    monkeypatch.setattr(Trials, "enough", property(lambda self: 0.0, lambda self, seconds: None), raising=False)  # no plan is
    planned(time_limit_s=1000).plan(*STEP)
    starts = {trial.assignment for trial in tried if trial.name}
    assert len({trial.assignment for trial in tried} - starts) > 3


def test_annotations_stay_and_have_prices() -> None:
    specs = ({"in": P(None, "y"), "out": None}, P("x", None))
    chosen = planner(constraints=False)
    plan = sp.auto_shard(step, mesh=SMALL, planner=chosen, in_shardings=specs, out_shardings=(None, P())).plan(*STEP)
    assert plan.search is not None
    assert plan.input_shardings[0]["in"].spec == P(None, "y")
    assert plan.input_shardings[1].spec == P("x")
    prices = plan.search.price_of_annotations()
    assert {price.path for price in prices} == {"w['in']", "x", "result[1]"}
    assert all(price.seconds >= 0 and price.seconds >= price.lower_bound_seconds for price in prices)
    price = plan.search.price("w['out']", P())
    assert price.seconds >= price.lower_bound_seconds
    inside = next(value for value in plan.values if value.kind == "intermediate" and value.shape)
    with pytest.raises(ValueError, match=r"(?s)a value inside of the function.*constraints=False"):
        plan.search.price(inside.path, P())
    assert "in_shardings" in str(plan.explain(plan.inputs[0]))
    cut = next(v for v in plan.values if v.kind == "intermediate" and v.sharding is not None and not v.sharding.is_fully_replicated)
    assert "in_shardings" in str(plan.explain(cut)) or "the planner's choice" in str(plan.explain(cut))


def test_a_stored_plan() -> None:
    plan = planned().plan(*STEP)
    stored = sp.Plan.from_json(plan.to_json())
    assert plan.search is not None
    assert stored.search is not None
    assert not stored.search.shards_values
    assert str(stored.search) == str(plan.search)
    assert stored.to_json() == plan.to_json()
    assert stored.cost_analysis("h100").step_seconds == plan.cost_analysis("h100").step_seconds


def test_a_plan_keeps_its_budget() -> None:
    free = planned(mesh={"x": 8}, resident="*").plan(*STEP)
    assert free.search is not None
    budget = int(free.search.peak_bytes * 0.9)
    plan = planned(mesh={"x": 8}, resident="*", memory_bytes=budget).plan(*STEP)
    assert plan.search is not None
    assert plan.memory_analysis("h100").peak_memory_in_bytes == plan.search.peak_bytes <= budget
    assert plan.search.objective_seconds >= free.search.objective_seconds
    with pytest.raises(sp.PlannerInfeasible, match="no plan fits 1 MiB a device"):
        planned(memory_bytes=1 << 20).plan(*STEP)


def test_a_budget_that_needs_constraints() -> None:
    """What is made of a number reaches nothing that can be cut."""

    def fun(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sort(jnp.sin(x * jnp.arange(8192.0)[:, None] + jnp.arange(8192.0)), axis=1))

    budget = 200 << 20
    constrained = sp.auto_shard(fun, mesh={"x": 8}, planner=planner(memory_bytes=budget)).plan(f32())
    assert constrained.search is not None
    with pytest.raises(sp.PlannerInfeasible, match=r"(?s)let values inside be constrained \(constraints=True\)"):
        planned(fun, {"x": 8}, memory_bytes=budget).plan(f32())


def test_no_time() -> None:
    search = planned(time_limit_s=0).plan(*STEP).search
    assert search is not None
    assert search.status == "time_limit"
    assert search.lower_bound_seconds <= search.objective_seconds


def test_the_shape_of_a_mesh_is_chosen() -> None:
    plan = planned(mesh=8, time_limit_s=3).plan(*STEP)
    assert plan.search is not None
    assert not plan.search.shards_values
    assert plan.mesh.size == 8


def test_outcomes() -> None:
    """What is nearer to the budget is better, then what is faster by more than rounding."""
    trial = Trial("", ())
    fast, slow, over = Outcome(trial, 1.0, 0), Outcome(trial, 2.0, 0), Outcome(trial, 0.5, 8)
    assert fast.is_better(slow)
    assert not slow.is_better(fast)
    assert slow.is_better(over)
    assert not over.is_better(slow)
    assert not Outcome(trial, 1.0 - 1e-9, 0).is_better(fast)


def test_the_file_says_that_values_inside_follow() -> None:
    data = json.loads(planned(lambda x: jnp.sin(x)).plan(f32(64, 64)).to_json())
    assert data["search"]["shards_values"] is False
