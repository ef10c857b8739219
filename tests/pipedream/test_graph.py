"""A profile graph and its nodes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given

import shardy_py as sp
from shardy_py.errors import ShardyError
from shardy_py.pipedream import ProfileGraph, ProfileNode
from tests.pipedream.graphs import chain, diamond, graphs


def reachable(graph: ProfileGraph, start: str, forward: bool) -> set[str]:
    found: set[str] = set()
    queue = [start]
    while queue:
        here = queue.pop()
        queue += [b if forward else a for a, b in graph.edges if (a if forward else b) == here]
        found.update(queue)
    return found


@given(graphs())
def test_predecessors_and_successors(graph: ProfileGraph) -> None:
    for node in graph.nodes:
        assert set(graph.predecessors(node.id)) == reachable(graph, node.id, forward=False)
        assert set(graph.successors(node.id)) == reachable(graph, node.id, forward=True)


@given(graphs())
def test_the_order_is_topological(graph: ProfileGraph) -> None:
    place = {graph.nodes[position].id: i for i, position in enumerate(graph.order)}
    assert len(place) == len(graph)
    assert all(place[a] < place[b] for a, b in graph.edges)


def test_operands_and_users() -> None:
    graph = ProfileGraph(tuple(ProfileNode(id, "Add") for id in "xyz"), (("y", "z"), ("x", "z"), ("x", "z"), ("x", "y")))
    assert graph.inputs_of("z") == ("y", "x", "x")
    assert graph.sources == ("x",)
    assert graph.sinks == ("z",)


def test_stage_graphs() -> None:
    graph = diamond().with_stages({"a": 0, "b": 0, "c": 1, "d": 1})
    first, second = graph.stage_graphs()
    assert [node.id for node in first.nodes] == ["a", "b"]
    assert first.edges == (("a", "b"),)
    assert second.edges == (("c", "d"),)


def test_a_graph_as_long_as_wanted() -> None:
    graph = chain(*[1.0] * 5000)
    assert len(graph.predecessors("n4999")) == 4999


def test_missing_stage_ids() -> None:
    graph = diamond()
    assert graph.num_stages == 0
    with pytest.raises(ShardyError, match="no node has a stage id"):
        graph.stage_graphs()
    with pytest.raises(ShardyError, match="no stage is given for 1 of 4 nodes"):
        graph.with_stages({"a": 0, "b": 0, "c": 1})
    half = ProfileGraph((*graph.with_stages(dict.fromkeys("abcd", 0)).nodes, ProfileNode("e", "ReLU")), graph.edges)
    with pytest.raises(ShardyError, match="1 of 5 nodes have no stage id"):
        half.stage_graphs()
    with pytest.raises(ShardyError, match="no node is in stage 1"):
        graph.with_stages({"a": 0, "b": 0, "c": 2, "d": 2}).stage_graphs()


def test_unknown_nodes_and_edges() -> None:
    with pytest.raises(ShardyError, match="unknown node 'q'"):
        diamond()["q"]
    with pytest.raises(ShardyError, match="unknown node 'q'"):
        ProfileGraph(diamond().nodes, (("a", "q"),))
    with pytest.raises(ShardyError, match="two nodes"):
        ProfileGraph((*diamond().nodes, ProfileNode("a", "ReLU")))


def test_partitioning_needs_no_jax() -> None:
    """Reading a profile and dividing it works on a machine without an accelerator stack."""
    source = """
import sys
sys.modules["jax"] = sys.modules["jaxlib"] = None
from shardy_py.pipedream import ProfileGraph, ProfileNode, partition
layers = tuple(ProfileNode(id, "Linear", 1.0, 2.0, (4e6,), 4e6) for id in "ab")
print(partition(ProfileGraph(layers, (("a", "b"),)), machines=[2], mode="exact", straight=True).replication)
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "(1, 1)", done.stderr


def test_former_names_go_on_working() -> None:
    for name in sp.pipedream.__all__:
        assert getattr(sp.stages, name) is getattr(sp.pipedream, name)
    assert sp.stages.schedule is sp.pipelines.schedule
    assert not hasattr(sp.stages, "Stage")
