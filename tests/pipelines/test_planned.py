"""Pipelines whose stages, meshes and shardings a planner chooses: numbers, prices, and what cannot be chosen."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shardy_py as sp
from shardy_py.pipelines import PipelineError
from shardy_py.pipelines.building import PipelineSearch
from shardy_py.pipelines.planned import divided
from tests.pipelines.steps import data, largest_gap, loss, params


def step(p: Any, x: Any, y: Any) -> Any:
    value, grads = jax.value_and_grad(loss)(p, x, y)
    return jax.tree.map(lambda a, g: a - 0.1 * g, p, grads), value


def marked(p: Any, x: Any, y: Any) -> Any:
    def loss(p: Any) -> Any:
        with sp.stage("first"):
            x1 = jnp.tanh(x @ p["a"])
        with sp.stage("second"):
            return jnp.mean((jnp.tanh(x1 @ p["b"]) @ p["c"] - y) ** 2)

    return jax.value_and_grad(loss)(p)


def planner(**options: Any) -> sp.Planner:
    return sp.Planner(**{"hardware": "h100", **options})


def pipelined(fun: Callable[..., Any] = step, **options: Any) -> Any:
    return sp.pipeline(fun, **{"num_microbatches": 2, "mesh": 4, "planner": planner(), **options})


def searched(run: Any, *args: Any) -> PipelineSearch:
    run.build(*(args or (params(), *data())))
    assert run.search is not None
    return run.search


CASES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "all is chosen": (step, {}),
    "meshes of two sizes": (step, {"num_microbatches": 1, "num_stages": 2, "mesh": 3}),
    "meshes are stated": (step, {"mesh": {"stage": 2, "data": 2}, "num_microbatches": 4, "donate_argnums": 0}),
    "stages are marked": (marked, {}),
    "a loss, of examples that do not divide": (loss, {"num_microbatches": 8, "num_stages": 2}),
}


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_those_of_one_device(case: str) -> None:
    fun, options = CASES[case]
    run = pipelined(fun, **options)
    p, wanted = params(), jax.value_and_grad(fun) if fun is loss else fun
    expected = wanted(p, *data())
    assert largest_gap(run(p, *data()), expected) < 1e-5
    search = run.search
    assert search.objective_seconds == min(a.objective_seconds for a in search.alternatives if a.fits)
    assert "no lower bound is known" in str(search)
    assert len(search.stages) == run.schedule.stages == options.get("num_stages", len(search.stages))
    mesh = options.get("mesh", 4)
    used = sum(math.prod(stage.mesh.values()) for stage in search.stages)
    assert used == (math.prod(mesh.values()) if isinstance(mesh, dict) else mesh)


WIDE = {k: jax.ShapeDtypeStruct((4096, 4096), jnp.float32) for k in "abc"}
ROWS = jax.ShapeDtypeStruct((8192, 4096), jnp.float32)


@pytest.mark.slow
def test_no_pipeline_without_a_planner_is_cheaper_nor_the_plan_without_a_pipeline() -> None:
    search = searched(pipelined(mesh=16, num_microbatches=4), WIDE, ROWS, ROWS)
    names = [a.name for a in search.alternatives]
    assert {"1 stage on 16 devices, batch along each mesh", "2 stages on 8 + 8 devices, batch along each mesh"} <= {*names}
    alone = sp.auto_shard(step, mesh={"data": 16}, planner=planner(), lowering="jit").plan(WIDE, ROWS, ROWS)
    assert alone.search is not None
    (one,) = [a for a in search.alternatives if a.name == "1 stage on 16 devices, the batch as a whole, planned"]
    assert search.objective_seconds <= one.objective_seconds <= 1.05 * alone.search.objective_seconds  # it runs as three programs
    assert search.objective_seconds <= min(a.objective_seconds for a in search.alternatives)


@pytest.mark.slow
def test_budgets() -> None:
    mesh = {"stage": 2, "data": 2}
    ample = searched(pipelined(mesh=mesh), WIDE, ROWS, ROWS)
    most = max(stage.memory_bytes for stage in ample.stages)
    with pytest.raises(PipelineError, match=r"(?s)no pipeline fits 1 MiB a device.*stage '.*parameters take .*more devices"):
        searched(pipelined(mesh=mesh, planner=planner(memory_bytes=1 << 20)), WIDE, ROWS, ROWS)
    within = searched(pipelined(mesh=mesh, planner=planner(memory_bytes=most)), WIDE, ROWS, ROWS)
    assert max(stage.memory_bytes for stage in within.stages) <= most == within.budget_bytes


MISTAKES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no planner": ({"planner": None}, PipelineError, r"mesh is 4, a number of devices.*planner=sp\.Planner"),
    "a name": ({"planner": "h100"}, TypeError, "pass planner=sp.Planner"),
    "templates": ({"planner": planner(templates={"rows": jax.P("data")})}, PipelineError, "the planner has templates"),
    "no devices": ({"mesh": 0}, PipelineError, "mesh is 0.*positive"),
    "shardings": ({"in_shardings": (None, jax.P("data"), None)}, PipelineError, "in_shardings is stated beside a planner"),
    "stages on a mesh": ({"virtual": 2}, PipelineError, "virtual is stated beside a planner"),
    "more stages than devices": ({"num_stages": 5}, PipelineError, "5 stages, . operations and 4 devices.*num_stages=4"),
    "no axis of stages": ({"mesh": {"data": 4}}, PipelineError, "the mesh has no axis 'stage'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    options, kind, words = MISTAKES[name]
    with pytest.raises(kind, match=f"(?s){words}"):
        pipelined(**options).build(params(), *data())


@pytest.mark.slow
def test_a_planner_keeps_stages_of_a_partition() -> None:
    p, (x, y) = params(), data()
    graph = sp.pipedream.profile(loss, p, x, y, hardware="h100", by="equation")
    partition = sp.pipedream.partition(graph, machines=2, bandwidths=1e12, mode="exact")
    run = pipelined(loss, partition=partition, mesh=None)
    assert largest_gap(run(p, x, y), jax.value_and_grad(loss)(p, x, y)) < 1e-5
    assert len(run.search.stages) == len(partition.stages)


@pytest.mark.parametrize("seed", range(5))
def test_no_division_is_faster(seed: int) -> None:
    draw = random.Random(seed)
    pieces, devices, microbatches = draw.randint(2, 4), draw.randint(2, 5), draw.randint(1, 6)
    seconds = {(size,): [draw.uniform(1, 4) / size ** draw.random() for _ in range(pieces)] for size in range(1, devices + 1)}
    for stages in range(1, min(pieces, devices) + 1):
        best = math.inf
        for cuts in itertools.combinations(range(1, pieces), stages - 1):
            ends = (0, *cuts, pieces)
            for sizes in itertools.product(range(1, devices + 1), repeat=stages):
                if sum(sizes) == devices:
                    times = [sum(seconds[n,][a:b]) for n, a, b in zip(sizes, ends, ends[1:], strict=False)]
                    best = min(best, sum(times) + (microbatches - 1) * max(times))
        best_division = divided(seconds, stages, devices, microbatches)
        assert best_division is not None
        assert best_division[0] == pytest.approx(best)
