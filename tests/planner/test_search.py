"""Planned functions: numbers, certificates, budgets, prices, files and mesh shapes."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.api import planning
from shardy_py.api.planning import searched
from shardy_py.api.tracing import TracedCall
from shardy_py.plan.checks.table import KINDS, WEIGHED
from shardy_py.plan.memory.analysis import ERROR
from shardy_py.plan.search import MODEL_BOUND, Search
from shardy_py.planner.meshes import ShapeSearch
from shardy_py.planner.search import Searcher
from shardy_py.rules.traits import CONSTRAINTS
from tests.planner.test_model import PROGRAMS, f32, i32

SMALL = {"x": 2, "y": 4}


def values(name: str) -> tuple[Any, ...]:
    draw = np.random.default_rng(0)

    def value(struct: jax.ShapeDtypeStruct) -> jax.Array:
        floating = jnp.issubdtype(struct.dtype, jnp.floating)
        return jnp.asarray(draw.normal(size=struct.shape) if floating else draw.integers(0, 2, struct.shape), struct.dtype)

    return jax.tree.map(value, PROGRAMS[name][1])


def planner(**options: Any) -> sp.Planner:
    return sp.Planner(**{"hardware": "h100", **options})


def step(w: Any, x: jax.Array) -> Any:
    loss, grads = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w["in"]) @ w["out"]))(w)
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, grads), loss


STEP = ({"in": f32(512, 2048), "out": f32(2048, 512)}, f32(4096, 512))


@pytest.mark.parametrize(
    ("name", "lowering"), [*((name, "shard_map") for name in PROGRAMS), ("scanned layers", "jit"), ("shared constants", "jit")]
)
def test_a_planned_function_gives_the_numbers_of_the_unsharded_one(name: str, lowering: str) -> None:
    function, arguments = PROGRAMS[name][0], values(name)
    planned = sp.auto_shard(function, mesh=SMALL, planner=planner(), lowering=lowering)
    for result, expected in zip(jax.tree.leaves(planned(*arguments)), jax.tree.leaves(jax.jit(function)(*arguments)), strict=True):
        np.testing.assert_allclose(result, expected, rtol=2e-4, atol=1e-4 * max(1.0, float(jnp.max(jnp.abs(expected)))))


def test_a_search_says_how_good_its_plan_is() -> None:
    plan = sp.auto_shard(step, mesh={"x": 8}, planner=planner(), donate_argnums=0).plan(*STEP)
    search, cost_analysis = plan.search, plan.cost_analysis("h100")
    assert search is not None
    assert cost_analysis.step_seconds is not None
    assert search.objective_seconds == cost_analysis.step_seconds.high
    assert search.lower_bound_seconds <= search.objective_seconds
    assert search.gap == pytest.approx(1 - search.lower_bound_seconds / search.objective_seconds)
    assert search.gap <= 0.01
    assert search.status == "optimal"
    assert search.peak_bytes == plan.memory_analysis("h100").peak_memory_in_bytes
    assert search.margin_bytes == math.ceil(ERROR * search.peak_bytes)
    assert search.alternatives
    for alternative in search.alternatives:
        assert alternative.objective_seconds >= search.objective_seconds * (1 - 1e-9)
        made = alternative.plan().cost_analysis("h100").step_seconds
        assert made.high == pytest.approx(alternative.objective_seconds, rel=1e-9)
    for leaf in plan.donation:
        assert leaf.output is not None
        assert plan.inputs[leaf.input].sharding == plan.outputs[leaf.output].sharding
    assert search.headline in str(plan).replace("\n  ", " ")


def test_data_are_cut_where_that_costs_less_than_the_gap() -> None:
    """Rows of a table that is cut along its columns are read by all devices; gathering their numbers takes longer than feeding them."""

    def embedded(table: jax.Array, w: jax.Array, rows: jax.Array) -> Any:
        grads = jax.grad(lambda table: jnp.mean(jnp.tanh(table[rows] @ w)))(table)
        return table - 0.1 * grads

    def sharding(gap: float) -> str:
        specs = P(None, "x"), P("x"), None
        sharded = sp.auto_shard(embedded, mesh={"x": 8}, planner=planner(gap=gap, resident="w"), in_shardings=specs, donate_argnums=0)
        plan = sharded.plan(f32(4096, 4096), f32(4096, 4096), i32(8192))
        assert plan.search is not None
        assert plan.search.gap <= gap
        return str(plan.inputs[2])

    assert sharding(0.0) == "rows: int32[8192]"
    assert sharding(0.02) == "rows: int32[8192@x]"


def test_no_assignment_is_cheaper() -> None:
    """All assignments of a small program, priced one by one."""
    plan = sp.auto_shard(lambda x, w: jnp.tanh(x @ w), mesh={"x": 4}, planner=planner(gap=0)).plan(f32(64, 32), f32(32, 16))
    search = plan.search
    assert search is not None
    assert search.objective_seconds == pytest.approx(least_seconds(plan), rel=1e-9)
    assert search.lower_bound_seconds == pytest.approx(search.objective_seconds, rel=1e-6)


def test_branches_are_cut_alike_and_the_bound_is_below_the_longest() -> None:
    """Whole, the first branch takes longest; as the plan cuts it, the second one does."""
    branches = [lambda x: jnp.sort(jnp.sin(x), 0), lambda x: jnp.sort(x.reshape(-1)).reshape(x.shape)]
    plan = sp.auto_shard(lambda at, x: lax.switch(at, branches, x), mesh={"x": 4}, planner=planner(gap=0)).plan(i32(), f32(1 << 16, 512))
    search = plan.search
    assert search is not None
    assert not plan.outputs[0].sharding.is_fully_replicated
    assert least_seconds(plan) == pytest.approx(search.lower_bound_seconds, rel=1e-6)
    assert search.lower_bound_seconds <= search.objective_seconds


def least_seconds(plan: sp.Plan) -> float:
    model = plan.search.pricer.searcher.model  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    sizes = model.problem.strategies
    assert 2 < len(sizes) <= 12
    return min(model.seconds(assignment) for assignment in itertools.product(*map(range, sizes)))


def test_annotations_stay() -> None:
    specs = ({"in": P(None, "y"), "out": None}, P("x", None))
    plan = sp.auto_shard(step, mesh=SMALL, planner=planner(), in_shardings=specs).plan(*STEP)
    assert plan.input_shardings[0]["in"].spec == P(None, "y")
    assert plan.input_shardings[1].spec == P("x")
    assert "in_shardings" in str(plan.explain(plan.inputs[0], "y"))


def test_the_order_of_the_axes_of_an_annotation_stays() -> None:
    planned = sp.auto_shard(step, mesh=SMALL, planner=planner(), in_shardings=(None, P(("y", "x"))))
    stated = planned.plan(*STEP).inputs[-1].sharding
    assert stated is not None
    assert [str(axis) for axis in stated.dims[0].axes] == ['"y"', '"x"']


def test_constraints_stay() -> None:
    def constrained(x: jax.Array) -> jax.Array:
        return sp.with_sharding_constraint(jnp.sin(x), P("y", "x")) * 2

    plan = sp.auto_shard(constrained, mesh=SMALL, planner=planner()).plan(f32(64, 64))
    (constraint,) = [op for op in plan.program.walk() if op.name in CONSTRAINTS]
    assert str(constraint.result.sharding) == '#sdy.sharding<@mesh, [{"y"}, {"x"}]>'


def grouped(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    a, b = sp.sharding_group(a, b)
    return jnp.sort(a, axis=1), jnp.sort(b, axis=0)


@pytest.mark.parametrize("place", ["function", "jit", "scan"])
def test_groups_stay(place: str) -> None:
    """Members lie alike, though each alone is best cut along the dimension that it is not sorted along."""

    def scanned(a: jax.Array, b: jax.Array) -> Any:
        return lax.scan(lambda pair, _: (grouped(*pair), None), (a, b), None, length=2)[0]

    fun = {"function": grouped, "jit": jax.jit(grouped), "scan": scanned}[place]
    shapes = (f32(1024, 1024), f32(1024, 1024))
    plan = sp.auto_shard(fun, mesh={"x": 8}, planner=planner()).plan(*shapes)
    free = sp.auto_shard(lambda a, b: (jnp.sort(a, axis=1), jnp.sort(b, axis=0)), mesh={"x": 8}, planner=planner())
    if place == "scan":
        (loop,) = [op for op in plan.program.walk() if op.name == "stablehlo.while"]
        one, other = [argument.sharding for argument in loop.regions[1].arguments if argument.type.rank == 2]
        assert one == other
    else:
        assert plan.inputs[0].sharding == plan.inputs[1].sharding
    one, other = (value.sharding for value in free.plan(*shapes).inputs)
    assert one != other


def test_a_plan_keeps_its_budget() -> None:
    generous = sp.auto_shard(step, mesh={"x": 8}, planner=planner(), donate_argnums=0).plan(*STEP)
    assert generous.search is not None
    assert generous.search.budget_bytes == planner(memory_bytes="80GB").budget == 80 * 10**9
    budget = int(generous.search.peak_bytes * 0.8)
    tight = sp.auto_shard(step, mesh={"x": 8}, planner=planner(memory_bytes=budget), donate_argnums=0).plan(*STEP)
    assert tight.search is not None
    assert tight.memory_analysis("h100").peak_memory_in_bytes <= budget
    assert tight.search.objective_seconds >= generous.search.objective_seconds * (1 - 1e-9)


def test_prices_of_decisions() -> None:
    plan = sp.auto_shard(step, mesh={"x": 8}, planner=planner(), in_shardings=(None, P())).plan(*STEP)
    assert plan.search is not None
    for value in plan.inputs[:2]:
        assert value.sharding is not None
        spec = [tuple(axis.name for axis in dim.axes) for dim in value.sharding.dims]
        assert plan.search.price(value.path, spec).seconds == pytest.approx(0, abs=1e-3 * plan.search.objective_seconds)
    (price,) = plan.search.price_of_annotations()
    assert price.path == "x"
    free = sp.auto_shard(step, mesh={"x": 8}, planner=planner()).plan(*STEP)
    assert free.search is not None
    assert price.seconds == pytest.approx(plan.search.objective_seconds - free.search.objective_seconds, rel=1e-6)
    assert price.seconds >= price.lower_bound_seconds >= 0
    wrong: list[tuple[str, Any, str]] = [
        ("w", P("x"), "no value 'w'"),
        ("x", P("x"), "dimension 0 of x cannot be 'x' in this search"),
        ("x", P("z"), "unknown mesh axis 'z'"),
        ("x", P("x", "x"), "mesh axis 'x' is used twice"),
        ("x", P(None, None, None), "has more dimensions than x"),
        ("x", "x", "'x' is not a PartitionSpec"),
    ]
    for path, spec, words in wrong:
        with pytest.raises(sp.ShardyError, match=words) as caught:
            plan.search.price(path, spec)
        assert caught.value.where == f"plan.search.price({path!r}, {spec!r})"
        assert caught.value.fix


def test_templates_of_the_user() -> None:
    specs = ({"in": P(None, "x"), "out": P("x")}, P("y"))
    chosen = planner(templates={"by columns": specs, "rows alone": (None, P(("x", "y")))})
    plan = sp.auto_shard(step, mesh=SMALL, planner=chosen, donate_argnums=0).plan(*STEP)
    assert plan.search is not None
    alternatives = {alternative.name: alternative for alternative in plan.search.alternatives}
    assert {"whole", "by columns", "rows alone"} <= alternatives.keys()
    columns = alternatives["by columns"]
    assert columns.objective_seconds >= plan.search.objective_seconds * (1 - 1e-9)
    assert dict(columns.inputs) == {"w['in']": "P(None, 'x')", "w['out']": "P('x')", "x": "P('y')"}
    assert alternatives["rows alone"].inputs["x"] == "P(('x', 'y'))"


def test_alternatives_next_to_the_plan() -> None:
    plan = sp.auto_shard(step, mesh=SMALL, planner=planner(), donate_argnums=0).plan(*STEP)
    assert plan.search is not None
    searcher = plan.search.pricer.searcher  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    names = {template.name for template in searcher.templates}
    near = [alternative for alternative in plan.search.alternatives if alternative.name not in names]
    assert 1 <= len(near) <= 3
    for alternative in near:
        other = alternative.plan()
        assert alternative.objective_seconds >= plan.search.objective_seconds
        assert other.cost_analysis("h100").step_seconds.high == pytest.approx(alternative.objective_seconds, rel=1e-9)
        assert [value.sharding for value in other.values] != [value.sharding for value in plan.values]
        assert " as P(" in alternative.name
    assert all(constraint.spec for constraint in near[0].constraints)
    (stored, *_) = sp.Plan.from_json(plan.to_json()).search.alternatives  # pyright: ignore[reportOptionalMemberAccess]
    with pytest.raises(ValueError, match="plan again to get its constraints"):
        _ = stored.constraints


def mixed(w: Any, moment: Any, x: jax.Array) -> Any:
    """A step whose parameters are read in another precision, as data flow through two products."""

    def loss(w: Any) -> jax.Array:
        half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), w)
        return jnp.mean((jnp.tanh(x @ half["in"]) @ half["out"]).astype(jnp.float32))

    moment = jax.tree.map(lambda m, g: 0.9 * m + g, moment, jax.grad(loss)(w))
    return jax.tree.map(lambda p, m: p - 0.1 * m, w, moment), moment


def test_no_template_is_cheaper_where_there_is_no_time() -> None:
    """Templates are priced as all values follow their arguments; data parallel needs no search."""
    arguments = (STEP[0], STEP[0], jax.ShapeDtypeStruct((1 << 16, 512), jnp.bfloat16))
    plan = sp.auto_shard(mixed, mesh={"x": 8}, planner=planner(time_limit_s=0), donate_argnums=(0, 1)).plan(*arguments)
    search = plan.search
    assert search is not None
    searcher = search.pricer.searcher  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    prices = {template.name: searcher.model.seconds(searcher.start(template)) for template in searcher.templates}
    names = ["whole", "data parallel over x", "fully sharded over x", "optimizer state sharded over x", "tensor parallel over x"]
    assert list(prices) == names
    assert search.objective_seconds <= min(prices.values())
    assert prices["data parallel over x"] < 0.2 * prices["whole"]
    assert plan.input_shardings[2].spec == P("x")


def test_templates_are_finished_beside_a_plan_far_from_the_bound() -> None:
    plan = sp.auto_shard(step, mesh={"x": 8}, planner=planner(time_limit_s=1000), donate_argnums=0).plan(*STEP)
    prices = plan.search.pricer  # pyright: ignore[reportOptionalMemberAccess]
    searcher: Searcher = prices.searcher  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    starts = set(map(searcher.start_of, searcher.templates))
    possible = {start for start in starts if math.isfinite(searcher.model.seconds(start))}
    assert not possible <= {each.assignment for each in searcher.finished}
    searcher.cheapest(prices.best, 0.0)  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    assert possible <= {each.assignment for each in searcher.finished}


def layers(w: Any, x: jax.Array) -> Any:
    """A step of eight scanned layers, each of a product that widens and one that narrows."""

    def loss(w: Any) -> jax.Array:
        return jnp.mean(lax.scan(jax.checkpoint(lambda x, w: (x + jnp.tanh(x @ w["up"]) @ w["down"], None)), x, w)[0] ** 2)

    return jax.tree.map(lambda w, g: w - 0.1 * g, w, jax.grad(loss)(w))


LAYERS = {"up": f32(8, 256, 1024), "down": f32(8, 1024, 256)}, f32(1 << 14, 256)


def test_templates_cut_features_over_some_axes_and_parameters_over_the_others() -> None:
    plan = sp.auto_shard(layers, mesh=SMALL, planner=planner(), donate_argnums=0).plan(*LAYERS)
    assert plan.search is not None
    inputs = {alternative.name: alternative.inputs for alternative in plan.search.alternatives}
    assert inputs["data parallel over x, tensor parallel over y"] == {
        "w['down']": "P(None, 'y')", "w['up']": "P(None, None, 'y')", "x": "P('x')",
    }  # fmt: skip
    assert inputs["fully sharded over y, tensor parallel over x"] == {
        "w['down']": "P(None, 'x', 'y')", "w['up']": "P(None, 'y', 'x')", "x": "P('y')",
    }  # fmt: skip


def test_fully_sharded_templates_leave_whole_what_multiplies_the_stream() -> None:
    """A layer that is computed again reads its gain as the stream lies: its axis would be the stream's, and the batch would have none."""

    @jax.checkpoint
    def layer(x: jax.Array, w: Any) -> jax.Array:
        scaled = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True)) * w["gain"]
        return x + jnp.tanh(scaled @ w["up"]) @ w["down"]

    def stepped(w: Any, x: jax.Array) -> Any:
        grads = jax.grad(lambda w: jnp.mean(functools.reduce(layer, w, x) ** 2))(w)
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, grads)

    weights = [{"gain": f32(256), "up": f32(256, 1024), "down": f32(1024, 256)}] * 4
    plan = sp.auto_shard(stepped, mesh={"x": 8}, planner=planner(), donate_argnums=0).plan(weights, f32(1 << 14, 256))
    searcher = plan.search.pricer.searcher  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    prices = {template.name: searcher.model.seconds(searcher.start(template)) for template in searcher.templates}
    assert prices["fully sharded over x"] < 2 * prices["data parallel over x"]


def test_templates_of_inference_cut_the_cache_and_tensors_of_parameters() -> None:
    def decoded(w: Any, cache: jax.Array, x: jax.Array, at: jax.Array) -> tuple[jax.Array, jax.Array]:
        cache = jax.lax.dynamic_update_slice(cache, (x @ w["key"]).reshape(16, 1, 8, 32), (0, at, 0, 0))
        scores = jnp.einsum("bhk,bshk->bhs", (x @ w["query"]).reshape(16, 8, 32), cache)
        x = x + jnp.einsum("bhs,bshk->bhk", scores, cache).reshape(16, 256) @ w["out"]
        return x + jax.nn.relu(x @ w["up"]) @ w["down"], cache

    w = {"key": f32(64, 256), "query": f32(64, 256), "out": f32(256, 64), "up": f32(64, 256), "down": f32(256, 64)}
    arguments = w, f32(16, 128, 8, 32), f32(16, 64), jax.ShapeDtypeStruct((), jnp.int32)
    plan = sp.auto_shard(decoded, mesh=SMALL, planner=planner(), donate_argnums=1).plan(*arguments)
    assert plan.search is not None
    inputs = {alternative.name: alternative.inputs for alternative in plan.search.alternatives}
    assert inputs["data parallel over x, tensor parallel over y"] == {
        "w['down']": "P('y')", "w['key']": "P(None, 'y')", "w['out']": "P('y')", "w['query']": "P(None, 'y')", "w['up']": "P(None, 'y')",
        "cache": "P('x', None, 'y')", "x": "P('x')", "at": "P()",
    }  # fmt: skip


def expert_step(w: Any, x: jax.Array) -> Any:
    def loss(w: Any) -> jax.Array:
        chosen = jax.nn.one_hot(jnp.argmax(x @ w["router"], -1), 4)
        place = (jnp.cumsum(chosen, 1) - 1) * chosen
        dispatch = chosen[..., None] * jax.nn.one_hot(place.astype(jnp.int32), 64)
        queued = jnp.einsum("btec,btd->ebcd", dispatch, x)
        answered = jnp.einsum("ebcf,efd->ebcd", jax.nn.relu(jnp.einsum("ebcd,edf->ebcf", queued, w["up"])), w["down"])
        return jnp.mean(jnp.einsum("btec,ebcd->btd", dispatch, answered) ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, w, jax.grad(loss)(w))


EXPERTS = ({"router": f32(256, 4), "up": f32(4, 256, 1024), "down": f32(4, 1024, 256)}, f32(16, 128, 256))


@pytest.mark.slow
def test_experts_lie_over_some_axes_and_tokens_over_all() -> None:
    plan = sp.auto_shard(expert_step, mesh={"x": 2, "y": 2}, planner=planner(time_limit_s=60), donate_argnums=0).plan(*EXPERTS)
    assert plan.search is not None
    inputs = {alternative.name: alternative.inputs for alternative in plan.search.alternatives}
    assert inputs["experts over y, the rest fully sharded"] == {
        "w['down']": "P('y', 'x')", "w['router']": "P(('x', 'y'))", "w['up']": "P('y', None, 'x')", "x": "P(('x', 'y'))",
    }  # fmt: skip


def test_a_space_that_is_too_large_has_what_templates_do() -> None:
    mesh = {"x": 2, "y": 2, "z": 2}
    plan = sp.auto_shard(expert_step, mesh=mesh, planner=planner(time_limit_s=0.001), donate_argnums=0).plan(*EXPERTS)
    assert plan.search is not None
    assert "strategies that templates have" in str(plan.search.space["ops"])


def test_stacks_of_layers_stay_cut() -> None:
    """Layers are gathered one by one where they are used, and no plan of the space gathers all of them in front of the loop."""
    pins = {"up": P(None, "x"), "down": P(None, None, "x")}, P("x")
    plan = sp.auto_shard(layers, mesh={"x": 8}, planner=planner(), in_shardings=pins, donate_argnums=0).plan(*LAYERS)
    assert max(each.collective.operand_bytes for each in plan.cost_analysis("h100").collectives) <= 1 << 20
    assert plan.search is not None
    assert plan.search.gap <= 0.01


def test_state_that_is_not_donated_comes_out_as_it_goes_in() -> None:
    arguments = (STEP[0], STEP[0], jax.ShapeDtypeStruct((4096, 512), jnp.bfloat16))
    plan = sp.auto_shard(mixed, mesh={"x": 8}, planner=planner(time_limit_s=0)).plan(*arguments)
    assert plan.search is not None
    assert plan.search.space["not donated"].startswith("4 arguments")
    assert not plan.donation
    for one, other in zip(plan.inputs, plan.outputs):
        assert one.path.split("[")[-1] == other.path.split("[")[-1]
        assert one.sharding == other.sharding
    unnamed = sp.auto_shard(lambda x: (jnp.sin(x),), mesh={"x": 8}, planner=planner(time_limit_s=0)).plan(f32(8, 8))
    assert unnamed.search is not None
    assert "not donated" not in unnamed.search.space


def test_a_template_is_the_plan_where_there_is_no_time() -> None:
    """A plan is not worse than its templates even if nothing is searched."""
    best = sp.auto_shard(step, mesh=SMALL, planner=planner(), donate_argnums=0).plan(*STEP)
    hurried = planner(time_limit_s=0, templates={"best": jax.tree.map(lambda s: s.spec, best.input_shardings)})
    plan = sp.auto_shard(step, mesh=SMALL, planner=hurried, donate_argnums=0).plan(*STEP)
    assert plan.search is not None
    (template,) = [alternative for alternative in plan.search.alternatives if alternative.name == "best"]
    assert plan.search.objective_seconds <= template.objective_seconds * (1 + 1e-9)


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ((None, P("x", "x")), "mesh axis 'x' is used twice"),
        ((None, P("z")), "unknown mesh axis 'z'"),
        (({"in": P("x")}, None), "is not a prefix"),
        ((None, P(None, "y")), "this search has no such plan"),
        ((None, None, None), "one entry per positional argument"),
        ({"y": P()}, "names 'y', which is not an argument"),
    ],
)
def test_templates_that_do_not_fit(specs: Any, words: str) -> None:
    with pytest.raises(sp.ShardyError, match=words) as caught:
        sp.auto_shard(step, mesh=SMALL, planner=planner(templates={"mine": specs}), in_shardings=(None, P("x", None))).plan(*STEP)
    assert "mine" in caught.value.what
    assert "Planner(templates=...)" in (caught.value.where or "")
    assert caught.value.fix


def test_overlapped_steps() -> None:
    plan = sp.auto_shard(step, mesh={"x": 8}, planner=planner(overlap=0.5), donate_argnums=0).plan(*STEP)
    search, seconds = plan.search, plan.cost_analysis("h100").step_seconds
    assert search is not None
    assert seconds is not None
    assert search.objective_seconds == pytest.approx((seconds.low + seconds.high) / 2)
    assert 0 < search.lower_bound_seconds <= search.objective_seconds


def test_findings_of_choices_are_notes() -> None:
    """Rows that are resident lie whole beside a cut matrix, since that costs least; a plan of annotations is warned of what lies whole."""
    shapes = {"in": f32(4096, 16384), "out": f32(16384, 4096)}, f32(8192, 4096)
    chosen = sp.auto_shard(step, mesh={"x": 8}, planner=planner(resident="*"), donate_argnums=0).plan(*shapes)
    annotated = sp.auto_shard(step, mesh={"x": 8}, in_shardings=(None, P("x")), donate_argnums=0).plan(*shapes)
    assert {finding.severity for finding in annotated.findings if finding.kind in WEIGHED} == {"warning"}
    weighed = [finding for finding in chosen.findings if finding.kind in WEIGHED]
    assert {finding.severity for finding in weighed} == {"info"}
    assert all(finding.message.endswith("; the planner weighed it") and not finding.fix for finding in weighed)
    assert set(KINDS) >= WEIGHED


def test_ops_without_a_rule_are_named_with_their_seconds() -> None:
    def called(x: jax.Array) -> jax.Array:
        return jnp.tanh(jax.pure_callback(lambda x: x, x, jnp.sin(x)))

    plan = sp.auto_shard(called, mesh=SMALL, planner=planner()).plan(f32(4096, 512))
    assert plan.search is not None
    assert re.fullmatch(r"run whole: pure_callback .* of the step", str(plan.search.space["ops without a rule"]))


def test_a_bound_of_nothing_is_none() -> None:
    search = Search("h100", 2e-3, 1e-12, 0, None, "time_limit")
    assert search.bound_text == "no lower bound yet (time_limit; a longer time_limit_s helps)"
    assert "time_limit_s" not in dataclasses.replace(search, status="work_limit").headline
    assert "at least 1 ms in the space searched (50.0% gap" in dataclasses.replace(search, lower_bound_seconds=1e-3).headline


def test_a_region_below_the_bound_of_single_ops_says_so() -> None:
    plain = Search("h100", 1.9e-3, 1.9e-3, 0, None, "optimal")
    assert "(0.0% gap, optimal)" in plain.headline
    below = dataclasses.replace(plain, space={MODEL_BOUND: "2 ms"})
    assert "below 2 ms, the least in the space searched by prices of single ops (optimal)" in below.headline


def test_a_stored_plan_keeps_its_search() -> None:
    plan = sp.auto_shard(step, mesh={"x": 8}, planner=planner(), donate_argnums=0).plan(*STEP)
    stored = sp.Plan.from_json(plan.to_json())
    assert plan.search is not None
    assert stored.search is not None
    assert stored.search.headline == plan.search.headline
    assert str(stored.search) == str(plan.search)
    assert [a.peak_bytes for a in stored.search.alternatives] == [a.peak_bytes for a in plan.search.alternatives]
    assert stored.cost_analysis("h100").step_seconds == plan.cost_analysis("h100").step_seconds
    assert stored.to_json() == plan.to_json()
    with pytest.raises(ValueError, match="read from a file"):
        stored.search.price("x", P())


def test_explanations_name_the_planner() -> None:
    plan = sp.auto_shard(step, mesh={"x": 8}, planner=planner()).plan(*STEP)
    cut = next(v for v in plan.inputs if v.sharding is not None and not v.sharding.is_fully_replicated)
    assert "chosen by the planner" in str(plan.explain(cut))
    for kind in ("input", "intermediate", "output"):
        value = next(v for v in plan.values if v.kind == kind and v.sharding is not None and not v.sharding.is_fully_replicated)
        assert re.search(r"chosen by the planner: (\S+ \w+ less than|it costs nothing beside) whole", str(plan.explain(value)))
    whole = next(v for v in plan.values if v.shape and (v.sharding is None or v.sharding.is_fully_replicated))
    assert "the planner leaves it whole" in str(plan.explain(whole))


def test_an_explanation_of_what_lies_as_an_annotation() -> None:
    def constrained(x: jax.Array) -> jax.Array:
        return sp.with_sharding_constraint(jnp.sin(x), P("y", P.UNCONSTRAINED)) * 2

    plan = sp.auto_shard(constrained, mesh=SMALL, planner=planner()).plan(f32(64, 64))
    for value in plan.values:
        if value.sharding is not None and not value.sharding.is_fully_replicated:
            assert "planner" in str(plan.explain(value))


@pytest.mark.slow
def test_the_shape_of_a_mesh_is_chosen() -> None:
    planned = sp.auto_shard(step, mesh=8, planner=planner(time_limit_s=60))
    plan = planned.plan(*STEP)
    assert math.prod(plan.mesh.shape.values()) == 8
    one = sp.auto_shard(step, mesh={"x": 8}, planner=planner()).plan(*STEP)
    assert plan.search is not None
    assert one.search is not None
    assert plan.search.objective_seconds <= one.search.objective_seconds * (1 + 1e-6)
    assert plan.search.lower_bound_seconds <= one.search.objective_seconds * (1 + 1e-6)
    assert "(axis0=" in plan.search.space["other mesh shapes"]
    loss = planned(*jax.tree.map(lambda s: jnp.ones(s.shape, s.dtype), STEP))[1]
    assert np.isfinite(loss)


def test_all_mesh_shapes_share_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []
    spent: list[float] = []

    def spied(searcher: Searcher, traced: TracedCall, *, runs: bool) -> Any:
        limits.append(searcher.planner.time_limit_s)
        spent.append(traced.request.settings.spent)
        return searched(searcher, traced, runs=runs)

    monkeypatch.setattr(planning, "searched", spied)
    planned = sp.auto_shard(lambda x: jnp.sin(x), mesh=8, planner=planner(time_limit_s=60))
    planned.plan(f32(64, 64))
    planned.plan(f32(128, 64))
    *shapes, first, later = limits
    assert shapes == [15, 15, 15]
    assert (first, later) == (60, 60)
    assert spent[0] <= spent[-2], "the plan of the best shape has what is left of the limit"
    assert spent[-2] > 0
    assert spent[-1] == 0, "and one of a later call all of it"


def test_results_of_an_fft_are_cut_apart_from_its_operand() -> None:
    """It runs on a whole operand: to cut its result costs nothing, to gather an operand that is cut costs much."""

    def spectrum(x: jax.Array) -> jax.Array:
        return jnp.exp(jnp.abs(jnp.fft.fft(jnp.sin(x))))

    x = f32(2048, 4096)
    cost = sp.auto_shard(spectrum, mesh={"x": 8}, planner=planner()).plan(x).cost_analysis("h100")
    written = {op.primitive: op.bytes_accessed for op in cost.ops}
    assert not cost.collectives
    assert written["sin"] == 4 * math.prod(x.shape)
    assert written["exp"] == written["sin"] / 8


def test_the_bound_is_of_all_mesh_shapes() -> None:
    """Another shape may have plans below the bound of the best one, where its search ended with a gap."""
    one = Search("v5e", 1.0, 0.995, 0, None, "optimal")
    shapes = ShapeSearch({(8,): (1.01, 0.5), (2, 4): (1.0, 0.995), (4, 2): None})
    assert shapes.best == (2, 4)
    every = shapes.of_all_shapes(one, gap=0.01)
    assert every.lower_bound_seconds == 0.5
    assert every.status == "time_limit"
    assert every.space["other mesh shapes"] == "(axis0=8) 1.01 s, (axis0=4, axis1=2) none fits"
    assert shapes.of_all_shapes(one, gap=0.6).status == "optimal"


def test_plans_of_meshes_without_devices_are_for_the_hardware() -> None:
    """Of a mapping too, whatever devices JAX has started; the plan that runs is for these."""

    def sine(mesh: Any, hardware: str, **options: Any) -> Any:
        return sp.auto_shard(jnp.sin, mesh=mesh, planner=planner(hardware=hardware), lowering="shard_map", options=sp.Options(**options))

    def platform(mesh: Any, hardware: str, **options: Any) -> str:
        return sine(mesh, hardware, **options).plan(f32(8, 8)).platform

    abstract = jax.sharding.AbstractMesh((4,), ("x",))
    assert [platform(abstract, hardware) for hardware in ("v5e", "h100")] == ["tpu", "cuda"]
    assert platform(abstract, "v5e", platform="rocm") == "rocm"
    assert platform(jax.make_mesh((4,), ("x",)), "v5e") == "cpu"
    assert [platform({"x": count}, "v5e") for count in (4, 2 * jax.device_count())] == ["tpu", "tpu"]
    planned = sine({"x": 4}, "v5e")
    np.testing.assert_allclose(planned(np.ones((8, 8), np.float32)), np.sin(1.0), rtol=1e-6)
    assert planned._last.plan.platform == "cpu"
    assert planned.lower(f32(8, 8)).compile() is not None


def test_a_step_shorter_than_latencies_says_so() -> None:
    small = jax.tree.map(lambda leaf: f32(*(n // 8 for n in leaf.shape)), STEP)
    plan = sp.auto_shard(step, mesh={"x": 8}, planner=planner(), donate_argnums=0).plan(*small)
    assert plan.search is not None
    assert plan.search.headline.endswith("nothing is sharded")
    (finding,) = [each for each in plan.findings if each.kind == "unused-axis"]
    assert finding.severity == "info"
    assert "Planner(hardware=...)" in finding.fix
    sentence = (
        r"nothing is sharded: .* us on one device; the cheapest sharded plan that was finished, .* over x, .* us, .* us of it latency of "
        r".*; no plan in the space searched takes less than on one device"
    )
    assert re.match(sentence, finding.message)
    assert plan.search.lower_bound_seconds == plan.search.objective_seconds
    assert sp.Plan.from_json(plan.to_json()).findings == plan.findings
    one = sp.auto_shard(step, mesh={"x": 1}, planner=planner(), donate_argnums=0).plan(*small).cost_analysis("h100").step_seconds
    assert one is not None
    assert one.high == pytest.approx(plan.search.objective_seconds)
