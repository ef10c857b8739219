"""Moves between layouts: what XLA's partitioner was seen to do on 8 CPU devices, and what must hold of any."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardy_py.dialect import AxisRef, Mesh
from shardy_py.dialect.axis import num_shards, sort_and_merge
from shardy_py.partition.layouts import Layout, all_axes, from_factors, layout_of, local_shape, parts, to_factors
from shardy_py.partition.routes import moves
from shardy_py.plan.collectives import received_bytes

MESH = Mesh([("x", 2), ("y", 4)])
SHAPE = (64, 32)


def layout(*dims: str) -> Layout:
    return tuple(tuple(p for name in dim for p in parts(AxisRef(name), MESH)) for dim in dims)


@pytest.mark.parametrize(
    ("source", "target", "steps"),
    [
        (("", ""), ("x", "y"), []),
        (("x", ""), ("xy", ""), []),
        (("x", ""), ("", ""), [("all_gather", 2, 1024)]),
        (("xy", ""), ("x", ""), [("all_gather", 4, 256)]),
        (("xy", ""), ("y", ""), [("collective_permute", 8, 256), ("all_gather", 2, 256)]),
        (("x", ""), ("", "x"), [("all_to_all", 2, 1024)]),
        (("xy", ""), ("x", "y"), [("all_to_all", 4, 256)]),
        (("x", ""), ("y", ""), [("collective_permute", 8, 512)]),
        (("xy", ""), ("yx", ""), [("collective_permute", 8, 256)]),
        (("", "y"), ("", "x"), [("collective_permute", 8, 512), ("all_gather", 2, 512)]),
        (("xy", ""), ("", "y"), [("all_gather", 8, 256)]),  # no way but through the whole value
        (("x", ""), ("", "y"), [("all_gather", 2, 1024)]),
        (("x", "y"), ("y", ""), [("all_gather", 2, 256), ("all_to_all", 4, 512)]),
        (("", "x"), ("xy", ""), [("all_to_all", 2, 256), ("collective_permute", 8, 256)]),
    ],
)
def test_what_xla_does(source: tuple[str, str], target: tuple[str, str], steps: list[tuple[str, int, int]]) -> None:
    found = moves(SHAPE, layout(*source), layout(*target), MESH)
    assert [(m.kind, num_shards(m.axes, MESH) if m.axes else MESH.size, m.elements) for m in found] == steps


def _layouts() -> st.SearchStrategy[Layout]:
    def make(dims: list[int], order: list[str]) -> Layout:
        made = ["", ""]
        for name, dim in zip(order, dims):
            if dim < 2:
                made[dim] += name
        return layout(*made)

    return st.builds(make, st.lists(st.integers(0, 2), min_size=2, max_size=2), st.permutations(["x", "y"]))


@given(_layouts(), _layouts())
def test_nothing_moves_only_where_every_device_has_its_piece(source: Layout, target: Layout) -> None:
    found = moves(SHAPE, source, target, MESH)
    slicing = all(kept[: len(dim)] == dim for dim, kept in zip(source, target))
    assert (not found) == slicing


@given(_layouts(), _layouts())
def test_a_route_never_brings_more_than_the_whole_value(source: Layout, target: Layout) -> None:
    total = 0
    for m in moves(SHAPE, source, target, MESH):
        group = num_shards(m.axes, MESH) if m.axes else MESH.size
        total += received_bytes(m.kind, group, m.elements * 4)
    assert total <= 4 * SHAPE[0] * SHAPE[1] + 4 * math.prod(local_shape(SHAPE, source, MESH))


def test_parts_are_primes_and_come_together_again() -> None:
    assert len(parts(AxisRef("x"), Mesh([("x", 12)]))) == 3
    assert parts(AxisRef("x"), MESH) == (AxisRef("x"),)
    assert sort_and_merge(parts(AxisRef("y"), MESH), MESH) == (AxisRef("y"),)
    assert parts(AxisRef("y", 2, 2), MESH) == (AxisRef("y", 2, 2),)


def test_factors_of_a_split_dimension() -> None:
    """A reshape of 8 into (2, 4): the axes of the 8 are dealt out to both."""
    sizes = (2, 4)
    dealt = to_factors([[0, 1]], layout("xy"), sizes, MESH)
    assert dealt == {0: parts(AxisRef("x"), MESH), 1: parts(AxisRef("y"), MESH)}
    assert from_factors([[0, 1]], [dealt[0], dealt[1]], sizes, MESH) == layout("xy")
    assert from_factors([[0, 1]], [(), dealt[1]], sizes, MESH) == ((),)  # the minor one alone cannot be written
    assert all_axes(layout_of(None, 2, MESH)) == ()
