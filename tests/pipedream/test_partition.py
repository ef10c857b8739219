"""Dividing graphs into stages: PipeDream's answers, better ones, and arguments that make no sense."""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardy_py.errors import ShardyError
from shardy_py.pipedream import Partition, ProfileGraph, ProfileNode, partition, read_graph
from tests.pipedream.graphs import SHARED, chain, diamond, graphs, needs_shared
from tests.pipedream.reference import Asked, evaluated, evaluated_levels, exact, exact_on_levels, pipedream

RUNS = json.loads((SHARED / "reference.json").read_text()) if SHARED.exists() else []


@st.composite
def questions(draw: st.DrawFn, levels: int = 2) -> Asked:
    count = draw(st.integers(1, levels))
    machines = tuple(draw(st.integers(1, 4 if count == 1 else 3)) for _ in range(count))
    bandwidths = tuple(draw(st.sampled_from([1e9, 1e10])) for _ in range(count))
    memory = draw(st.sampled_from([None, None, 2e7, 1e8])) if count == 1 else None
    return Asked(machines, bandwidths, draw(st.sampled_from([None, 1.0, 4.0])), draw(st.booleans()), draw(st.booleans()), memory)


def answer(graph: ProfileGraph, asked: Asked, mode: str) -> Partition | None:
    """The partition, or None if there is none."""
    try:
        return partition(graph, asked.machines, asked.bandwidths, mode, asked.compression, asked.straight, asked.fewer, asked.memory)
    except ShardyError:
        return None


def check_stages(graph: ProfileGraph, found: Partition, asked: Asked) -> None:
    stage_of = found.stage_of
    assert set(stage_of) == {node.id for node in graph.nodes}
    assert set(stage_of.values()) == set(range(len(found.stages))) == set(range(len(found.replication)))
    assert all(stage_of[a] <= stage_of[b] for a, b in graph.edges)
    total = math.prod(asked.machines)
    assert sum(found.replication) <= total
    if not asked.fewer and found.mode == "exact":
        assert sum(found.replication) == total
    if asked.straight:
        assert set(found.replication) == {1}


@settings(max_examples=150)
@given(graphs(), questions())
def test_pipedreams_mode_is_pipedreams_recurrence(graph: ProfileGraph, asked: Asked) -> None:
    found = answer(graph, asked, "pipedream")
    expected = pipedream(graph, asked)
    if found is None:
        assert math.isinf(expected) or (asked.straight and not asked.fewer) or asked.memory is not None
    else:
        assert found.pipeline_time == pytest.approx(expected, rel=1e-9, abs=1e-15)
        check_stages(graph, found, asked)


@settings(max_examples=100)
@given(graphs(most=5), questions(levels=1))
def test_exact_mode_is_as_good_as_trying_all(graph: ProfileGraph, asked: Asked) -> None:
    found = answer(graph, asked, "exact")
    expected = exact(graph, asked)
    if found is None:
        assert math.isinf(expected)
        return
    assert found.pipeline_time == pytest.approx(expected, rel=1e-9, abs=1e-15)
    assert found.gap == 0
    check_stages(graph, found, asked)
    assert evaluated(graph, dict(found.stage_of), found.replication, asked) == pytest.approx(expected, rel=1e-9, abs=1e-15)


@settings(max_examples=60)
@given(graphs(most=4), st.sampled_from([(2, 2), (3, 2), (2, 3), (2, 1, 2), (2, 2, 2)]), questions(levels=1), st.sampled_from([1e9, 1e10]))
def test_exact_mode_is_as_good_as_trying_all_on_several_levels(
    graph: ProfileGraph, machines: tuple[int, ...], one: Asked, slowest: float
) -> None:
    bandwidths = (*(1e10, 1e9)[: len(machines) - 1], slowest)
    asked = Asked(machines, bandwidths, one.compression, one.straight, one.fewer, one.memory)
    found = answer(graph, asked, "exact")
    expected = exact_on_levels(graph, asked)
    assert (found is None) == math.isinf(expected)
    if found is not None:
        assert found.pipeline_time == pytest.approx(expected, rel=1e-9, abs=1e-15)
        assert asked.memory is None or max(stage.memory_bytes for stage in found.stages) <= asked.memory or asked.fewer


@given(graphs(), questions(levels=1))
def test_exact_mode_is_never_worse(graph: ProfileGraph, asked: Asked) -> None:
    theirs, ours = answer(graph, asked, "pipedream"), answer(graph, asked, "exact")
    if theirs is not None and len(graph.sources) == 1:
        seconds = evaluated(graph, dict(theirs.stage_of), theirs.replication, asked)
        if ours is None:
            assert math.isinf(seconds)
        else:
            assert ours.pipeline_time <= seconds * (1 + 1e-9)


@settings(max_examples=60)
@given(graphs(), questions(levels=2))
def test_exact_mode_is_never_worse_on_several_levels(graph: ProfileGraph, asked: Asked) -> None:
    theirs, ours = answer(graph, asked, "pipedream"), answer(graph, asked, "exact")
    if ours is not None:
        assert evaluated_levels(graph, ours, asked) <= ours.pipeline_time * (1 + 1e-9) + 1e-15
        # With several levels PipeDream may leave machines to stages that have no nodes of their own.
        if theirs is not None and len(theirs.stages) == len(theirs.levels[-1]) and len(graph.sources) == 1:
            assert ours.pipeline_time <= evaluated_levels(graph, theirs, asked) * (1 + 1e-9)


def test_exact_mode_counts_a_tensor_once() -> None:
    graph = diamond()
    theirs = partition(graph, [2], [1e9], activation_compression=1, straight=True)
    ours = partition(graph, [2], [1e9], "exact", activation_compression=1, straight=True)
    assert theirs.pipeline_time == pytest.approx(16e-3)
    assert ours.pipeline_time == pytest.approx(6e-3)
    assert ours.stage_of == {"a": 0, "b": 0, "c": 0, "d": 1}


def test_of_equally_fast_partitions_the_bytes_count() -> None:
    sizes = (9e6, 8e6, 1e6, 8e6)
    nodes = tuple(ProfileNode(f"n{i}", "Linear", t, 0.0, (size,)) for i, (t, size) in enumerate(zip((4.0, 0.0, 0.0, 4.0), sizes)))
    graph = ProfileGraph(nodes, tuple((a.id, b.id) for a, b in itertools.pairwise(nodes)))
    assert partition(graph, [2], mode="exact", straight=True).stages[0].bytes_out == 1e6


def test_the_figures_of_a_stage() -> None:
    found = partition(chain(1.0, 1.0, 1.0, 1.0), [2], mode="exact", activation_compression=1, straight=True)
    first, last = found.stages
    assert (first.seconds, first.bytes_in, first.bytes_out, first.parameter_bytes) == (6e-3, 0.0, 4e6, 8e6)
    assert (first.in_flight, last.in_flight) == (2, 1)
    assert first.memory_bytes == 2 * 8e6 + 4 * 8e6
    assert found.pipeline_time == pytest.approx(8e-3)
    assert found.bubbles == pytest.approx((0.25, 0.25))
    assert found.single_time == pytest.approx(12e-3)
    assert found.graph["n3"].stage == 1


def test_inputs_go_first_whatever_they_cost() -> None:
    graph = chain(1.0, 1.0)
    nodes = (*graph.nodes, ProfileNode("late", "Input1", 900.0))
    found = partition(ProfileGraph(nodes, (*graph.edges, ("late", "n1"))), [2], straight=True)
    assert found.stage_of == {"n0": 0, "n1": 1, "late": 0}
    assert found.pipeline_time == pytest.approx(3e-3)


def test_what_the_first_source_never_reaches_has_a_stage_too() -> None:
    graph = ProfileGraph((*chain(1.0, 1.0).nodes, ProfileNode("alone", "ReLU", 5.0)), chain(1.0, 1.0).edges)
    assert partition(graph, [2], straight=True).stage_of["alone"] == 0
    assert partition(graph, [2], mode="exact", straight=True).pipeline_time == pytest.approx(6e-3)


@pytest.mark.parametrize("mode", ["pipedream", "exact"])
def test_more_stages_than_ops(mode: str) -> None:
    with pytest.raises(ShardyError, match="5 stages, but only 4 ops"):
        partition(diamond(), [5], mode=mode, straight=True)
    assert len(partition(diamond(), [5], mode=mode, straight=True, use_fewer_machines=True).stages) == 4


def test_a_stage_that_does_not_fit() -> None:
    graph = chain(1.0, 1.0, 1.0, 1.0)
    with pytest.raises(ShardyError, match=r"stage [01] does not fit in memory: it needs 0.048 GB .* 0.047 GB, 0.001 GB too few") as told:
        partition(graph, [2], mode="exact", straight=True, memory_bytes=4.7e7)
    assert "in flight" in str(told.value)
    assert partition(graph, [2], mode="exact", straight=True, memory_bytes=4.8e7).pipeline_time == pytest.approx(6e-3)
    with pytest.raises(ShardyError, match="does not fit in memory"):
        partition(graph, [2], memory_bytes=1.0)
    with pytest.raises(ShardyError, match=r"stage 0 does not fit in memory: .* 0.008 GB"):
        partition(graph, [2], straight=True, memory_bytes=7e6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"machines": []}, "0 levels"),
        ({"machines": [2, 2]}, "2 levels of machines, but 1 bandwidths"),
        ({"machines": [0]}, r"\[0\] are not numbers of machines"),
        ({"machines": [2.5]}, r"\[2\.5\] are not numbers of machines"),
        ({"bandwidths": [0.0]}, "bandwidths is 0"),
        ({"mode": "fast"}, "unknown mode"),
        ({"activation_compression": 0}, "activation_compression is 0"),
        ({"memory_bytes": float("nan")}, "memory_bytes is nan"),
        ({"memory_bytes": "much"}, "'much' is not a number of bytes"),
    ],
)
def test_arguments_out_of_range(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ShardyError, match=message):
        partition(diamond(), **arguments)  # pyright: ignore[reportArgumentType]


def test_one_level_needs_no_list() -> None:
    assert partition(diamond(), 2, 1e9).pipeline_time == partition(diamond(), np.array([2]), [1e9]).pipeline_time


@pytest.mark.parametrize("arguments", [{"graph": "a.txt"}, {"bandwidths": ["1e9"]}])
def test_arguments_of_another_type(arguments: dict[str, object]) -> None:
    with pytest.raises(TypeError, match="not str"):
        partition(**{"graph": diamond(), **arguments})  # pyright: ignore[reportArgumentType]


def test_memory_on_several_levels() -> None:
    graph = chain(1.0, 1.0, 1.0, 1.0)
    free = partition(graph, [2, 2], [1e10, 1e9], "exact", straight=True)
    most = max(stage.memory_bytes for stage in free.stages)
    assert most == 4 * 4e6 + 4 * 4e6
    assert partition(graph, [2, 2], [1e10, 1e9], "exact", straight=True, memory_bytes=most).stage_of == free.stage_of
    with pytest.raises(ShardyError, match="does not fit in memory"):
        partition(graph, [2, 2], [1e10, 1e9], "exact", straight=True, memory_bytes=most - 1)


def test_nothing_to_divide() -> None:
    with pytest.raises(ShardyError, match="nothing to divide"):
        partition(ProfileGraph((ProfileNode("x", "Input0"),)))


def parsed(arguments: list[str]) -> Asked:
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", nargs="+", type=int)
    parser.add_argument("-b", nargs="+", type=float)
    parser.add_argument("-s", type=float)
    parser.add_argument("--activation_compression_ratio", type=float)
    for flag in ("--straight_pipeline", "--use_fewer_machines", "--use_memory_constraint"):
        parser.add_argument(flag, action="store_true")
    given = parser.parse_args(arguments)
    memory = given.s if given.use_memory_constraint else None
    compression = given.activation_compression_ratio
    return Asked(tuple(given.n), tuple(given.b), compression, given.straight_pipeline, given.use_fewer_machines, memory)


@functools.cache
def recorded_graph(model: str) -> ProfileGraph:
    return read_graph((SHARED / "graphs" / f"{model}.txt").read_text())


@functools.cache
def as_pipedream(model: str, asked: Asked) -> Partition | None:
    """PipeDream's answer to a recorded question, which two tests look at."""
    return answer(recorded_graph(model), asked, "pipedream")


@needs_shared
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, marks=[pytest.mark.slow] * (model in ("gnmt_large", "inception_v3_compressed")))
        for model in sorted({run["model"] for run in RUNS})
    ],
)
def test_pipedreams_recorded_answers(model: str) -> None:
    for run in RUNS:
        if run["model"] == model:
            asked = parsed(run["args"])
            found = as_pipedream(model, asked)
            assert found is not None
            assert found.pipeline_time == pytest.approx(run["pipeline_time_per_stage_s"], rel=1e-9), run["config"]
            assert found.single_time == pytest.approx(run["single_stage_time_s"], rel=1e-9)
            assert sum(found.replication) == math.prod(asked.machines) or asked.fewer


@pytest.mark.slow
@needs_shared
def test_exact_mode_is_never_worse_on_recorded_runs() -> None:
    """Every second run, both stage maps by one function: bytes that cross once, on all levels, memory of 1F1B with optimizer state."""
    mended: set[str] = set()
    for run in RUNS[::2]:
        graph, asked = recorded_graph(run["model"]), parsed(run["args"])
        ours, theirs = answer(graph, asked, "exact"), as_pipedream(run["model"], asked)
        assert theirs is not None
        told = evaluated_levels(graph, theirs, asked)
        if ours is None:
            assert math.isinf(told)
            continue
        name = f"{run['model']} {run['config']}"
        seconds = evaluated_levels(graph, ours, asked)
        assert seconds == pytest.approx(ours.pipeline_time, rel=1e-9), name
        assert seconds <= told * (1 + 1e-9), name
        if ours.pipeline_time < theirs.pipeline_time * (1 - 1e-3):
            mended.add(name)
    assert len(mended) >= 3


HASHED = """
from tests.pipedream.shapes import inception
from shardy_py.pipedream import partition, read_graph
from tests.pipedream.graphs import diamond
for graph, mode in ((inception(), "exact"), (diamond(), "pipedream"), (diamond(), "exact")):
    print(sorted(partition(graph, [4], [1e9], mode, 1).stage_of.items()))
"""


@pytest.mark.slow
def test_stages_do_not_depend_on_the_hash_seed() -> None:
    printed = set()
    for seed in (0, 1):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", HASHED], capture_output=True, text=True, env=environment, timeout=120)
        assert done.returncode == 0, done.stderr
        printed.add(done.stdout)
    assert len(printed) == 1
