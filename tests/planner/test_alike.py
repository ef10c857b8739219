"""Layers that are written out one after the other share their classes, and lose nothing by it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shardy_py as sp
from shardy_py.partition.price import Machine
from shardy_py.planner.assignment import solve
from shardy_py.planner.inlined import inlined
from shardy_py.planner.model import model_of
from shardy_py.planner.op_tables import OpTables
from shardy_py.planner.search import Searcher
from shardy_py.planner.space import Annotations, resolutions, spaces_of
from tests.planner.test_model import FREE_LINKS, Case, drawn, f32, is_near, seconds

DEPTH = 4


def residual(ws: Any, x: jax.Array) -> jax.Array:
    x = x * ws["gain"]  # so that the first layer has a gradient to hand on, as the others
    for w in ws["layers"]:
        x = x + jnp.tanh(x @ w["in"]) @ w["out"]
    return x


def chain(ws: Any, x: jax.Array) -> jax.Array:
    for w in ws:
        x = jnp.tanh(x @ w)
    return x


def stepped(forward: Callable[[Any, jax.Array], jax.Array]) -> Callable[[Any, jax.Array], Any]:
    def step(ws: Any, x: jax.Array) -> Any:
        grads = jax.grad(lambda ws: jnp.mean(forward(ws, x) ** 2))(ws)
        return jax.tree.map(lambda w, g: w - 0.1 * g, ws, grads)

    return step


STEP, CHAIN = stepped(residual), stepped(chain)
LAYERS = ({"gain": f32(256), "layers": [{"in": f32(256, 1024), "out": f32(1024, 256)}] * DEPTH}, f32(512, 256))
SQUARES = ([f32(256, 256)] * DEPTH, f32(512, 256))


def case(function: Callable[..., Any], args: Any, *, layers: bool) -> Case:
    plan = sp.auto_shard(function, mesh={"x": 2, "y": 4}, lowering="jit", donate_argnums=0).plan(*args)
    alike = tuple((d.input, d.output) for d in plan.donation if d.output is not None)
    program, copies = inlined(plan.program)
    resolution = resolutions(plan.mesh)[0 if layers else 1]
    assert resolution.layers is layers
    stated = Annotations((None,) * len(plan.inputs), (None,) * len(plan.outputs), alike)
    space = spaces_of(program, plan.mesh, stated)(resolution)
    model = model_of(OpTables(program, Machine(plan.mesh, FREE_LINKS)), space, feeding=plan.feeding)
    return Case(plan, program, copies, model)


@pytest.fixture(scope="module")
def shared() -> Case:
    return case(STEP, LAYERS, layers=False)


@pytest.fixture(scope="module")
def full() -> Case:
    return case(STEP, LAYERS, layers=True)


def test_layers_around_a_residual_stream_share_classes(shared: Case) -> None:
    classes, arguments = shared.model.space.classes, shared.program.main.arguments
    for role in range(2):
        assert len({classes[arguments[1 + 2 * layer + role]] for layer in range(DEPTH)}) == 1
    assert classes[arguments[1]] != classes[arguments[2]]


def test_an_assignment_of_shared_classes_costs_about_what_its_region_costs(shared: Case) -> None:
    choose = random.Random(0)
    for _ in range(4):
        assignment = drawn(shared.model, choose)
        priced = shared.model.seconds(assignment)
        assert is_near(priced, seconds(shared, assignment))


def test_the_best_of_all_plans_is_one_of_alike_layers(shared: Case, full: Case) -> None:
    few, all_ = (solve(each.model.problem, gap=1e-6) for each in (shared, full))
    assert len(shared.model.problem.tables) < len(full.model.problem.tables)
    assert few.cost + shared.model.constant == pytest.approx(all_.cost + full.model.constant, rel=1e-5)


def test_alike_layers_need_their_moves_as_one(shared: Case, full: Case) -> None:
    assert 2 * len(shared.model.problem.moves) < len(full.model.problem.moves)


def test_layers_of_a_chain_stay_apart() -> None:
    chain = case(CHAIN, SQUARES, layers=False)
    classes, arguments = chain.model.space.classes, chain.program.main.arguments
    assert len({classes[arguments[layer]] for layer in range(DEPTH)}) == DEPTH


def test_the_search_says_that_layers_are_alike_and_prices_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardy_py.planner.search.LARGE", 1)
    planner = sp.Planner(hardware="h100")
    plan = sp.auto_shard(STEP, mesh={"x": 8}, planner=planner, donate_argnums=0).plan(*LAYERS)
    search = plan.search
    assert search is not None
    assert "alike layers" in search.space
    searcher: Searcher = search.pricer.searcher  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    assert not searcher.space.resolution.layers
    own = plan.inputs[1].sharding
    assert own is not None
    spec = [tuple(axis.name for axis in dim.axes) or None for dim in own.dims]
    assert search.price(plan.inputs[1].path, spec).seconds == pytest.approx(0, abs=1e-6)
    other = jax.sharding.PartitionSpec("x") if spec[0] is None else jax.sharding.PartitionSpec()
    one = search.price(plan.inputs[1].path, other).seconds
    assert -1e-9 <= one < search.objective_seconds
    assert [a.name for a in search.alternatives]
