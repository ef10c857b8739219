"""Reading and writing graph.txt."""

from __future__ import annotations

import pathlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardy_py.errors import ShardyError
from shardy_py.pipedream import ProfileGraph, ProfileNode, read_graph, write_graph
from tests.pipedream.graphs import SHARED, graphs, needs_shared

FIGURES = "forward_compute_time=1.500, backward_compute_time=2.000, activation_size=4.0, parameter_size=0.000"
TEXT = f"""node2 -- Input0 -- {FIGURES}
node1 -- LSTM(4, 8) -- forward_compute_time=3.190, backward_compute_time=5.348, activation_size=[8.0; 2.0; 2.000], parameter_size=8.000
node10 -- a -- b -- {FIGURES} -- stage_id=3
\tnode2 -- node1
\tnode1 -- node10
\tnode1 -- node10"""


def test_a_graph_comes_out_as_it_was() -> None:
    assert write_graph(read_graph(TEXT)) == TEXT
    assert write_graph(read_graph(TEXT + "\n")) == TEXT + "\n"


def test_what_pipedream_loses_is_kept() -> None:
    graph = read_graph(TEXT)
    assert graph["node1"].activations == (8.0, 2.0, 2.0)
    assert graph["node1"].activation_bytes == 12.0
    assert graph["node10"].description == "a -- b"
    assert graph["node10"].stage == 3
    assert [node.id for node in graph.nodes] == ["node2", "node1", "node10"]
    assert graph.inputs_of("node10") == ("node1", "node1")


def test_a_changed_number_is_written_and_the_others_stay() -> None:
    graph = read_graph(TEXT).with_nodes(lambda node: replace(node, forward_ms=0.1234567))
    assert "forward_compute_time=0.1234567, backward_compute_time=5.348, activation_size=[8.0; 2.0; 2.000]" in write_graph(graph)


def test_stage_ids_are_written() -> None:
    graph = read_graph(TEXT).with_stages({"node1": 0, "node2": 0, "node10": 1})
    assert write_graph(graph).count(" -- stage_id=0") == 2
    assert read_graph(write_graph(graph)).num_stages == 2


@given(graphs(), st.booleans())
def test_any_graph_survives(graph: ProfileGraph, ends_line: bool) -> None:
    text = write_graph(replace(graph, ends_line=ends_line))
    again = read_graph(text)
    assert again == graph
    assert write_graph(again) == text


def test_the_empty_graph() -> None:
    assert write_graph(read_graph("")) == ""


@needs_shared
@pytest.mark.parametrize("path", sorted(SHARED.glob("graphs/*.txt")) if SHARED.exists() else [], ids=lambda path: path.stem)
def test_pipedreams_own_files(path: pathlib.Path) -> None:
    text = path.read_text()
    assert write_graph(read_graph(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"a -- ReLU -- {FIGURES}\nb - ReLU -- {FIGURES}", "line 2"),
        (f"a -- ReLU -- {FIGURES}\n\n\ta -- a", "line 2"),
        (f"a -- ReLU -- {FIGURES}\n\ta - b", "this is not an edge"),
        (f"a -- ReLU -- {FIGURES}\n\ta -- zz", "unknown node 'zz'"),
        (f"a -- ReLU -- {FIGURES}\na -- ReLU -- {FIGURES}", "two nodes have the id 'a'"),
        ("a -- ReLU -- forward_compute_time=1, activation_size=4.0", "line 1"),
        (f"a -- ReLU -- {FIGURES}".replace("4.0", "nan"), "line 1"),
        (f"a -- ReLU -- {FIGURES}".replace("4.0", "1e999"), "activations is inf"),
        (f"a -- ReLU -- {FIGURES}".replace("4.0", "-1.0"), "not negative"),
        (f"a -- ReLU -- {FIGURES}".replace("4.0", "[]"), "line 1"),
        (f"a -- ReLU -- {FIGURES} -- stage_id=-1", "line 1"),
        (f"a -- ReLU -- {FIGURES}\r\nb -- ReLU -- {FIGURES}", "line 1"),
        (f"a -- ReLU -- {FIGURES}\n\ta -- a", "cycle"),
    ],
)
def test_malformed_text_is_told_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ShardyError, match=message):
        read_graph(text)


def test_a_cycle_is_named() -> None:
    nodes = "\n".join(f"{id} -- ReLU -- {FIGURES}" for id in "abcd")
    with pytest.raises(ShardyError, match=r"b -> c -> d -> b|c -> d -> b -> c|d -> b -> c -> d"):
        read_graph(nodes + "\n\ta -- b\n\tb -- c\n\tc -- d\n\td -- b")


def test_bytes_are_not_text() -> None:
    with pytest.raises(TypeError, match="str"):
        read_graph(b"a")  # pyright: ignore[reportArgumentType]


def test_code_in_a_description_stays_text(tmp_path: pathlib.Path) -> None:
    mark = tmp_path / "executed"
    description = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    graph = read_graph(f"a -- {description} -- {FIGURES}")
    assert graph["a"].description == description
    assert description in write_graph(graph)
    assert not mark.exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"id": ""},
        {"id": "a -- b"},
        {"id": "\ta"},
        {"id": "a\nb"},
        {"description": "a\nb"},
        {"activations": ()},
        {"forward_ms": float("nan")},
        {"parameter_bytes": -1.0},
        {"stage": -1},
    ],
)
def test_nodes_that_could_not_be_read_again(fields: dict[str, object]) -> None:
    with pytest.raises(ShardyError):
        ProfileNode(**{"id": "a", "description": "ReLU", **fields})  # pyright: ignore[reportArgumentType]
