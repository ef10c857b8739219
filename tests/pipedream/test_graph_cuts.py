"""Cuts: which there are, and what they send."""

from __future__ import annotations

import pytest
from hypothesis import given

from shardy_py.errors import ShardyError
from shardy_py.pipedream import ProfileGraph, ProfileNode, antichains, read_graph
from shardy_py.pipedream.partitions.cuts import Cuts, all_downsets, antichain, optimized_part, reached_downsets
from shardy_py.pipedream.partitions.search import lightest
from shardy_py.pipedream.profiles.graph import positions
from tests.pipedream.graphs import SHARED, chain, diamond, graphs, needs_shared
from tests.pipedream.shapes import inception


def closed(graph: ProfileGraph) -> list[int]:
    """Every non-empty closed set, by trying all sets."""
    return [mask for mask in range(1, 1 << len(graph)) if all(graph.ancestors[node] & ~mask == 0 for node in positions(mask))]


def bytes_across(graph: ProfileGraph, mask: int) -> float:
    amount = 0.0
    for node in positions(mask):
        sizes = graph.nodes[node].activations
        needed: set[int] = set()
        for user in graph.uses[node]:
            if not mask >> user & 1:
                taken = graph.nodes[user].description.removeprefix("__getitem__(").removesuffix(")")
                item = taken.isdecimal() and len(sizes) > 1 and int(taken) < len(sizes)
                needed |= {int(taken)} if item else set(range(len(sizes)))
        amount += sum(sizes[k] for k in needed)
    return amount


@given(graphs())
def test_all_closed_sets_are_found(graph: ProfileGraph) -> None:
    found = all_downsets(graph)
    assert found is not None
    assert sorted(found) == closed(graph)
    assert [mask.bit_count() for mask in found] == sorted(mask.bit_count() for mask in found)
    assert all_downsets(graph, len(found) - 1) is None


@given(graphs())
def test_pipedreams_states_are_closed(graph: ProfileGraph) -> None:
    found = reached_downsets(graph)
    assert found is not None
    assert set(found) <= set(closed(graph))
    if len(graph.sources) == 1:
        assert sorted(found) == closed(graph)


@given(graphs())
def test_bytes_count_each_tensor_once(graph: ProfileGraph) -> None:
    masks = closed(graph)
    true, doubled = Cuts(graph, masks, False).bytes, Cuts(graph, masks, True).bytes
    assert true.tolist() == [bytes_across(graph, mask) for mask in masks]
    inner = [i for i, mask in enumerate(masks) if mask.bit_count() < len(graph)]
    assert all(doubled[i] >= true[i] for i in inner)


def test_pipedream_counts_a_diamond_twice() -> None:
    graph = diamond()
    middle = graph.mask("abc")
    assert Cuts(graph, [middle], True).bytes.tolist() == [11e6]
    assert Cuts(graph, [middle], False).bytes.tolist() == [3e6]
    assert antichain(graph, middle) == ("b", "c")


@given(graphs())
def test_what_holds_what(graph: ProfileGraph) -> None:
    masks = closed(graph)
    cuts = Cuts(graph, masks, False)
    assert cuts.inside.tolist() == [[a != b and a & ~b == 0 for b in masks] for a in masks]


@given(graphs())
def test_the_lightest_cut_between_two(graph: ProfileGraph) -> None:
    masks = closed(graph)
    for node in range(len(graph)):
        for later in positions(graph.descendants[node]):
            inside = graph.ancestors[node] | 1 << node
            outside = graph.descendants[later] | 1 << later
            size, found = lightest(graph, inside, outside)
            between = [mask for mask in masks if inside & ~mask == 0 and not mask & outside]
            assert found in between
            assert size == bytes_across(graph, found) == min(bytes_across(graph, mask) for mask in between)


def test_cuts_that_explode_are_refused() -> None:
    with pytest.raises(ShardyError, match="more than 1000 cuts"):
        list(antichains(inception(), limit=1000))


def test_inputs_and_unused_items_have_no_choice() -> None:
    nodes = [ProfileNode("x", "Input0"), ProfileNode("y", "LSTM"), ProfileNode("z", "__getitem__(1)"), ProfileNode("w", "ReLU")]
    graph = ProfileGraph(tuple(nodes), (("x", "y"), ("y", "z"), ("y", "w")))
    assert [node.id for node in optimized_part(graph).nodes] == ["y", "w"]


def test_a_chain_has_as_many_cuts_as_nodes() -> None:
    assert list(antichains(chain(1.0, 1.0, 1.0))) == [("n0",), ("n1",), ("n2",)]


@needs_shared
@pytest.mark.parametrize(("name", "states"), [("alexnet", 22), ("vgg16", 40), ("resnet18", 100), ("resnet50", 240), ("gnmt", 99)])
def test_pipedreams_states_are_as_many_as_it_says(name: str, states: int) -> None:
    found = reached_downsets(optimized_part(read_graph((SHARED / "graphs" / f"{name}.txt").read_text())))
    assert found is not None
    assert len(found) == states
