"""Plans that run as a region of local arrays: priced, bounded and kept within the budget as they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import shardy_py as sp
from shardy_py.backends.compiled_text import collectives_in
from shardy_py.plan.compiled import differences
from shardy_py.planner.op_tables import reduced_shares
from tests.planner.test_model import PROGRAMS, f32
from tests.planner.test_search import STEP, planner, step
from tests.random_numbers import QUICK, SLOW_CHIPS


def planned(function: Callable[..., Any], arguments: Any, sizes: dict[str, int] | None = None, **options: Any) -> sp.Plan:
    """A plan as a region on devices that there are not."""
    mesh = jax.sharding.AbstractMesh(tuple((sizes or {"x": 8}).values()), tuple(sizes or {"x": 8}))
    donated = 0 if function is step else ()
    chosen = sp.auto_shard(function, mesh=mesh, planner=planner(**options), lowering="shard_map", donate_argnums=donated)
    return chosen.plan(*arguments)


def heads(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    """Some products of one value, whose cotangent is a sum of products; summed for a gain, and handed on."""
    hidden = jnp.tanh(x @ weights[0]) * weights[1]
    return jnp.sum(jnp.tanh(hidden @ weights[2]) * jnp.tanh(hidden @ weights[3]) * jnp.tanh(hidden @ weights[4]))


def gains(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    """The same, the cotangent of which is read for the gain alone."""
    hidden = x * weights[1]
    return jnp.sum(jnp.tanh(hidden @ weights[2]) * jnp.tanh(hidden @ weights[3]) * jnp.tanh(hidden @ weights[4]))


WEIGHTS = [f32(256, 256), f32(256), *3 * (f32(256, 8192),)]


@pytest.mark.parametrize(("function", "share"), [(heads, 1 / 3), (gains, 1 / (3 * 16))])
def test_partial_sums_are_reduced_once_and_where_they_are_fewest(function: Callable[..., Any], share: float) -> None:
    arguments = WEIGHTS, f32(16, 256)
    base = sp.auto_shard(jax.grad(function), mesh={"x": 4}, lowering="jit").plan(*arguments)
    shares = list(reduced_shares(base.program).values())
    assert [each for each in shares if each < 1] == pytest.approx(3 * [share])


def test_a_plan_puts_reductions_off_as_its_region_does() -> None:
    plan = planned(jax.grad(heads), (WEIGHTS, f32(16, 256)), {"x": 4}, hardware="v5p")
    sums = [each for each in plan.collectives if each.operand_bytes == 16 * 256 * 4]
    assert len(sums) <= 1
    assert plan.search is not None
    assert plan.search.lower_bound_seconds <= plan.search.objective_seconds


def test_an_equation_that_is_imported_as_its_operand_is_planned() -> None:
    def copied(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.array(x @ w, copy=True) + lax.stop_gradient(x @ w) + lax.stop_gradient(jnp.sum(x, axis=1, keepdims=True))

    plan = planned(copied, (f32(512, 256), f32(256, 128)), {"x": 2, "y": 4}, hardware=SLOW_CHIPS[0])
    assert plan.search is not None


@pytest.mark.slow
def test_an_equation_that_is_imported_as_several_ops_is_planned() -> None:
    """On TPUs the last op of an eigendecomposition puts its results in order, by a gather of two operands."""
    plan = planned(jnp.linalg.eigh, (f32(1024, 1024),), {"x": 2, "y": 4}, hardware="v5e")
    assert plan.search is not None


@pytest.mark.parametrize("share", [0.999, 0.8])
def test_the_peak_of_a_region_keeps_the_budget(share: float) -> None:
    generous = planned(step, STEP, memory_bytes=float("inf"), time_limit_s=120)
    peak = generous.memory_analysis(hardware="h100").peak_memory_in_bytes
    tight = planned(step, STEP, memory_bytes=share * peak, time_limit_s=120)
    assert tight.memory_analysis(hardware="h100").peak_memory_in_bytes <= share * peak
    assert tight.search is not None
    assert generous.search is not None
    assert tight.search.peak_bytes == tight.memory_analysis(hardware="h100").peak_memory_in_bytes
    assert tight.search.objective_seconds >= generous.search.objective_seconds * (1 - generous.search.gap)


def test_no_template_runs_faster_than_the_plan() -> None:
    search = planned(step, STEP, {"x": 2, "y": 4}).search
    assert search is not None
    assert search.alternatives
    for each in search.alternatives:
        seconds = each.plan().cost_analysis("h100").step_seconds.high
        assert each.objective_seconds == pytest.approx(seconds, rel=1e-9)
        assert seconds >= search.objective_seconds or not each.fits


@pytest.mark.parametrize("name", ["training step", "scanned layers", "indexing"])
def test_the_compiled_program_moves_what_the_plan_says(name: str) -> None:
    function, arguments, donated = PROGRAMS[name]
    chip = SLOW_CHIPS[0]
    chosen = sp.auto_shard(
        function, mesh={"x": 2, "y": 4}, planner=planner(hardware=chip), lowering="shard_map", donate_argnums=donated or None
    )
    traced = chosen.trace(*arguments)
    plan = traced.plan()
    compiled = collectives_in(traced.lower().compile(compiler_options=QUICK).as_text())
    assert not differences(plan.collectives, compiled)
    moved = sum(each.total_bytes or 0 for each in compiled)
    assert moved
    assert moved == pytest.approx(sum(each.bytes for each in plan.cost_analysis(chip).collectives), rel=0.02)


@pytest.mark.parametrize(("hardware", "links"), [("v5e", None), ("h100", {"x": "network"})])
def test_a_region_runs_the_strategies_that_the_model_prices(hardware: str, links: dict[str, str] | None) -> None:
    weights = {"in": jax.ShapeDtypeStruct((1024, 4096), jnp.bfloat16), "out": jax.ShapeDtypeStruct((4096, 1024), jnp.bfloat16)}
    options = planner(hardware=hardware, links=links)
    fun = sp.auto_shard(step, mesh=jax.sharding.AbstractMesh((2, 4), ("x", "y")), planner=options, lowering="shard_map", donate_argnums=0)
    plan = fun.plan(weights, jax.ShapeDtypeStruct((8192, 1024), jnp.bfloat16))
    seconds = plan.cost_analysis(hardware, links=links).step_seconds
    assert plan.search is not None
    assert seconds is not None
    assert plan.search.objective_seconds == pytest.approx(seconds.high, rel=1e-9)
    assert plan.search.gap < 0.03
    assert "objective of the model" in plan.search.space


def test_auto_runs_a_planned_step_as_a_region() -> None:
    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.mean(lax.scan(lambda x, w: (jax.nn.relu(x @ w), None), x, weights)[0] ** 2)

    plan = sp.auto_shard(jax.grad(loss), mesh={"x": 8}, planner=planner()).plan(f32(4, 2048, 2048), f32(4096, 2048))
    assert (plan.lowering, [f for f in plan.findings if f.kind == "jit-lowering"]) == ("shard_map", [])


def test_sums_of_small_floats_are_priced_as_accelerators_send_them() -> None:
    args = {k: jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16) for k in ("in", "out")}, jax.ShapeDtypeStruct((1 << 16, 1024), jnp.bfloat16)
    mesh = jax.sharding.AbstractMesh((8,), ("x",))
    jit, region = (
        sp.auto_shard(step, mesh=mesh, planner=planner(hardware="v5e"), lowering=lowering).plan(*args).search.objective_seconds  # type: ignore[union-attr]
        for lowering in ("jit", "shard_map")
    )
    assert region <= 1.01 * jit
