"""Random profile graphs, and where PipeDream's own are."""

from __future__ import annotations

import itertools
import os
import pathlib

import pytest
from hypothesis import strategies as st

from shardy_py.pipedream import ProfileGraph, ProfileNode

SHARED = pathlib.Path(os.environ.get("SHARDY_SHARED") or pathlib.Path(__file__).resolve().parents[3] / "shared") / "data" / "pipedream"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="PipeDream's profiles are not here")


def chain(*times: float, activation: float = 4e6, parameters: float = 4e6) -> ProfileGraph:
    nodes = tuple(ProfileNode(f"n{i}", "Linear", time, 2 * time, (activation,), parameters) for i, time in enumerate(times))
    return ProfileGraph(nodes, tuple((a.id, b.id) for a, b in itertools.pairwise(nodes)))


def diamond() -> ProfileGraph:
    sizes = {"a": 8e6, "b": 2e6, "c": 1e6, "d": 4e6}
    nodes = tuple(ProfileNode(id, "Conv2d", 1.0, 1.0, (size,), 1e6) for id, size in sizes.items())
    return ProfileGraph(nodes, (("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")))


@st.composite
def graphs(draw: st.DrawFn, most: int = 7) -> ProfileGraph:
    """Graphs in which every node but the first reads one or two before it, or none."""
    size = draw(st.integers(2, most))
    nodes, edges = [], []
    for i in range(size):
        numbers = [draw(st.integers(0, 8)) for _ in range(4)]
        outputs = (numbers[2] * 1e6,) if draw(st.integers(0, 4)) else (numbers[2] * 1e6, numbers[3] * 1e6, 5e5)
        description = draw(st.sampled_from(["Linear", "Add", "__getitem__(0)", "__getitem__(2)"] if i else ["Linear"]))
        nodes.append(ProfileNode(f"n{i}", description, numbers[0] / 4, numbers[1] / 4, outputs, numbers[3] * 1e6))
        for operand in draw(st.lists(st.integers(0, i - 1), min_size=min(1, draw(st.integers(0, 3))), max_size=2)) if i else ():
            edges.append((f"n{operand}", f"n{i}"))
    order = draw(st.permutations(range(size)))
    return ProfileGraph(tuple(nodes[i] for i in order), tuple(edges))
