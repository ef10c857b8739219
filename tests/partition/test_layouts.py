"""Layouts: axes in parts of prime size, dealt out to the factors of dimensions."""

from __future__ import annotations

from shardy_py.dialect import AxisRef, Mesh
from shardy_py.dialect.axis import sort_and_merge
from shardy_py.partition.layouts import Layout, all_axes, from_factors, layout_of, parts, to_factors

MESH = Mesh([("x", 2), ("y", 4)])


def layout(*dims: str) -> Layout:
    return tuple(tuple(p for name in dim for p in parts(AxisRef(name), MESH)) for dim in dims)


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
