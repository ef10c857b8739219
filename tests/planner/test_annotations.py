"""Constraints of the user's inside of a planned function: kept with their price, as a hint, or left out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from tests.planner.test_model import f32
from tests.planner.test_search import planner

Constrain = Callable[[jax.Array], jax.Array]
PARAMS = {"up": f32(4, 512, 2048), "down": f32(4, 2048, 512)}
X = f32(16384, 512)


def same(x: jax.Array) -> jax.Array:
    return x


def whole(x: jax.Array) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, P(None, None))


def harmless(x: jax.Array) -> jax.Array:
    return sp.with_sharding_constraint(x, P(P.UNCONSTRAINED, P.UNCONSTRAINED))


@functools.cache
def step(hidden: Constrain, residual: Constrain) -> Callable[..., Any]:
    """A training step of scanned layers that are checkpointed, with constraints on two activations."""

    def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        return residual(x + hidden(jax.nn.relu(x @ w["up"])) @ w["down"]), None

    def step(params: Any, x: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            return jnp.mean(jax.lax.scan(jax.checkpoint(layer), x, params)[0] ** 2)

        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))

    return step


@functools.cache
def planned(hidden: Constrain, residual: Constrain, **options: Any) -> sp.Plan:
    function = step(hidden, residual)
    return sp.auto_shard(function, mesh={"x": 8}, planner=planner(**options), donate_argnums=0).plan(PARAMS, X)


def searched(plan: sp.Plan) -> Any:
    assert plan.search is not None
    return plan.search


def costly(plan: sp.Plan) -> list[sp.Finding]:
    return [finding for finding in plan.findings if finding.kind == "costly-constraint"]


@pytest.mark.slow
def test_constraints_that_cost_much_are_a_warning_with_their_lines() -> None:
    free, plan = searched(planned(same, same)).objective_seconds, planned(whole, whole)
    (finding,) = costly(plan)
    assert finding.severity == "warning"
    line = f"test_annotations.py:{whole.__code__.co_firstlineno + 1}"
    assert finding.location.endswith(line)
    together, dearest = searched(plan).constraint_prices
    assert searched(plan).objective_seconds - together.seconds == pytest.approx(free, rel=0.05)
    assert dearest.path.endswith(line)
    assert "Planner(annotations=" in finding.fix
    (price,) = searched(plan).price_of_annotations()
    assert price.path == dearest.path
    assert price.seconds == pytest.approx(together.seconds, rel=0.05)
    assert costly(sp.Plan.from_json(plan.to_json())) == [finding]


def test_of_many_lines_the_one_that_costs_is_named() -> None:
    by_rows = lambda x: sp.with_sharding_constraint(x, P("x"))  # noqa: E731
    (finding,) = costly(planned(lambda x: harmless(whole(by_rows(x))), lambda x: harmless(by_rows(x))))
    assert finding.message.count("alone") == 1
    assert finding.location.endswith(f":{whole.__code__.co_firstlineno + 1}")


def test_open_dimensions_are_the_planners() -> None:
    plan = planned(harmless, harmless)
    assert not costly(plan)
    assert searched(plan).objective_seconds == pytest.approx(searched(planned(same, same)).objective_seconds, rel=1e-3)


@pytest.mark.parametrize("constraints", [True, False])
def test_ignored_constraints_are_left_out(constraints: bool) -> None:
    inside = {} if constraints else {"constraints": False}
    plan, free = planned(whole, whole, annotations="ignore", **inside), planned(same, same, **inside)
    assert searched(plan).objective_seconds == searched(free).objective_seconds
    assert [str(value) for value in plan.inputs] == [str(value) for value in free.inputs]
    assert not costly(plan)
    assert costly(planned(whole, whole, **inside))


def test_a_stored_plan_without_constraints_is_given_back() -> None:
    plan = planned(whole, whole, annotations="ignore")
    stored = sp.Plan.from_json(plan.to_json())
    again = sp.auto_shard(step(whole, whole), mesh={"x": 8}, in_shardings=stored, donate_argnums=0, lowering="jit").plan(PARAMS, X)
    step_again = again.cost_analysis("h100").step_seconds
    assert step_again is not None
    assert step_again.high <= 1.15 * searched(plan).objective_seconds  # a region that follows propagation


def test_a_hint_is_where_the_search_starts() -> None:
    plan = planned(whole, whole, annotations="hint")
    assert searched(plan).objective_seconds == pytest.approx(searched(planned(same, same)).objective_seconds, rel=1e-3)
    hints = [each for each in searched(plan).alternatives if each.name == "constraints as written"]
    assert [each.objective_seconds > searched(plan).objective_seconds for each in hints] == [True]


@pytest.mark.parametrize("annotations", ["hint", "ignore"])
def test_numbers_are_those_of_the_function(annotations: str) -> None:
    draw = np.random.default_rng(0)
    params = {name: jnp.asarray(draw.normal(size=(2, *shape)), jnp.float32) for name, shape in (("up", (16, 32)), ("down", (32, 16)))}
    x = jnp.asarray(draw.normal(size=(64, 16)), jnp.float32)
    planned_step = sp.auto_shard(step(whole, whole), mesh={"x": 8}, planner=planner(annotations=annotations))
    expected = jax.jit(step(same, same))(params, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), planned_step(params, x), expected)
