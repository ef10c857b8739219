"""Branches as single nodes."""

from __future__ import annotations

import pytest
from hypothesis import given

from shardy_py.errors import ShardyError
from shardy_py.pipedream import ProfileGraph, compress_branches, is_series_parallel
from tests.pipedream.graphs import chain, diamond, graphs
from tests.pipedream.shapes import inception, nasnet


def test_inception_gets_as_small_as_pipedream_makes_it() -> None:
    compressed = compress_branches(inception())
    assert len(compressed.graph) == 92
    assert is_series_parallel(inception())
    assert is_series_parallel(compressed.graph)


def test_nasnet_is_not_series_parallel() -> None:
    assert not is_series_parallel(nasnet(1))
    assert len(compress_branches(nasnet(1)).graph) < len(nasnet(1)) / 2


@given(graphs())
def test_nothing_is_lost(graph: ProfileGraph) -> None:
    compressed = compress_branches(graph)
    assert sorted(id for ids in compressed.members.values() for id in ids) == sorted(node.id for node in graph.nodes)
    for what in ("forward_ms", "backward_ms", "parameter_bytes"):
        assert sum(getattr(n, what) for n in compressed.graph.nodes) == pytest.approx(sum(getattr(n, what) for n in graph.nodes))


def test_stages_are_expanded() -> None:
    graph = compress_branches(inception())
    stages = graph.expand({node.id: i % 3 for i, node in enumerate(graph.graph.nodes)})
    assert set(stages) == {node.id for node in inception().nodes}
    with pytest.raises(ShardyError, match="no stage is given"):
        graph.expand({})


def test_small_graphs() -> None:
    assert is_series_parallel(diamond())
    assert is_series_parallel(chain(1.0, 1.0, 1.0))
    assert compress_branches(chain(1.0, 1.0, 1.0)).graph == chain(1.0, 1.0, 1.0)
