"""Graphs with too many cuts to try them all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardy_py.pipedream import ProfileGraph, ProfileNode, partition
from shardy_py.pipedream.partitions.cuts import all_downsets
from shardy_py.pipedream.partitions.levels import Machines, Rules
from shardy_py.pipedream.partitions.search import lower_bound, near, promising, search
from tests.pipedream import reference
from tests.pipedream.graphs import graphs
from tests.pipedream.shapes import inception, nasnet
from tests.pipedream.test_partition import Asked, check_stages, questions


@pytest.mark.parametrize(("graph", "size"), [(inception(), 326), (nasnet(6, 10), 1251)], ids=["inception", "nasnet"])
def test_the_shapes_are_as_large_as_the_models(graph: ProfileGraph, size: int) -> None:
    assert len(graph) == size
    assert all_downsets(graph, 10_000) is None


@pytest.mark.parametrize("mode", ["pipedream", "exact"])
@pytest.mark.parametrize(("straight", "most"), [(False, 0.03), (True, 0.03)])
def test_inception_is_nearly_as_fast_as_can_be(mode: str, straight: bool, most: float) -> None:
    found = partition(inception(), [4], [1e9], mode, 1, straight)
    check_stages(inception(), found, Asked((4,), (1e9,), straight=straight))
    assert 0 <= found.gap <= most
    assert "none can be below" in found.as_text()


@pytest.mark.parametrize(
    ("graph", "machines"), [(nasnet(1), (4,)), (inception(), (8,)), (inception(), (2, 2))], ids=["nasnet", "inception", "two levels"]
)
def test_exact_mode_is_never_worse_either(graph: ProfileGraph, machines: tuple[int, ...]) -> None:
    asked = reference.Asked(machines, (1e10, 1e9)[-len(machines) :], 1)
    theirs, ours = (partition(graph, machines, asked.bandwidths, mode, 1) for mode in ("pipedream", "exact"))
    seconds = reference.evaluated_levels(graph, ours, asked)
    assert seconds == pytest.approx(ours.pipeline_time, rel=1e-9)
    assert seconds <= reference.evaluated_levels(graph, theirs, asked) * (1 + 1e-9)


def test_several_levels_and_memory() -> None:
    found = partition(inception(), [2, 2], [1e10, 1e9], "exact", 1)
    assert found.gap < 0.05
    assert sum(found.replication) == 4
    assert [len(level) for level in found.levels] == [len(found.levels[0]), len(found.stages)]
    tight = partition(inception(), [4], [1e9], "exact", 1, memory_bytes=8e9)
    assert max(stage.memory_bytes for stage in tight.stages) <= 8e9


@pytest.mark.slow
@pytest.mark.parametrize(("machines", "most"), [((8, 2), 0.25)])
def test_memory_of_a_large_graph(machines: tuple[int, ...], most: float) -> None:
    found = partition(nasnet(6, 10), machines, [1e10, 1e9][-len(machines) :], "exact", 1, memory_bytes=16e9)
    assert max(stage.memory_bytes for stage in found.stages) <= 16e9
    assert 0 < found.gap <= most


@given(graphs(most=6), questions(levels=2), st.sampled_from([None, 5e7, 2e8]))
def test_no_partition_is_below_the_bound(graph: ProfileGraph, asked: Asked, memory: float | None) -> None:
    rules = Rules(True, asked.compression, asked.straight, asked.fewer, memory)
    machines = Machines(asked.machines, asked.bandwidths)
    low = lower_bound(graph, rules, machines)
    found, _ = search(graph, rules, machines)
    assert low <= found.seconds * (1 + 1e-9)


@given(graphs())
def test_families_hold_closed_sets(graph: ProfileGraph) -> None:
    downsets = all_downsets(graph)
    assert downsets is not None
    assert set(promising(graph, transfers=True)) <= set(downsets)
    assert set(near(graph, downsets[:2], 50)) <= set(downsets)


@pytest.mark.slow
def test_pipedreams_levels_promise_too_much() -> None:
    """With several levels PipeDream takes the work between two cuts neither of which holds the other for their difference."""
    nodes = [ProfileNode("s", "Embedding", 0.1, 0.2, (4e6,), 1e6)]
    edges = []
    for branch in "ab":
        for i in range(38):
            nodes.append(ProfileNode(f"{branch}{i}", "LSTM", 1 + i * 7 % 5, 2 + i * 3 % 4, (4e6 + 1e5 * (i % 3),), 3e7))
            edges.append((f"{branch}{i - 1}" if i else "s", f"{branch}{i}"))
    graph = ProfileGraph((*nodes, ProfileNode("t", "Classifier", 1.0, 1.0)), (*edges, ("a37", "t"), ("b37", "t")))
    theirs, ours = (partition(graph, [2, 2], [1e10, 1e9], mode, 1) for mode in ("pipedream", "exact"))
    true = max(stage.seconds / stage.replication for stage in theirs.stages)
    assert theirs.pipeline_time < true
    assert max(stage.seconds / stage.replication for stage in ours.stages) <= ours.pipeline_time * (1 + 1e-9) < true
