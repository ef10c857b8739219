"""Dimension shardings as factor shardings and back."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import pytest

from shardy_py.dialect import AxisRef, DimensionSharding, TensorSharding
from shardy_py.dialect.axis import merged
from shardy_py.dialect.projection import TensorFactors, project, unproject
from tests.passes.propagation.modules import MESH, dims, rule, sharding


def shown(tensor: TensorFactors) -> dict[int, str]:
    """Factor -> its axes, `?` where open, `| axes` for what overflows."""
    out = {}
    for f, state in tensor.factors.items():
        text = " ".join(map(str, state.axes)) + ("" if state.closed else " ?")
        out[f] = (text + (" | " + " ".join(map(str, state.overflow)) if state.overflow else "")).strip()
    return out


# (sizes of the factors of the one dimension, its sharding, the factors' shardings)
PROJECTIONS = (
    ((8,), '{"a", ?}', {0: '"a" ?'}),
    ((8,), '{"a"}', {0: '"a"'}),
    ((5,), '{"c"}', {0: '"c"'}),  # uneven, which the minor-most factor may be
    ((2, 4), '{"a", "b"}', {0: '"a"', 1: '"b"'}),
    ((2, 4), '{"c", ?}', {0: '"c":(1)2 ?', 1: '"c":(2)2 ?'}),
    ((2, 2, 2), '{"c", "a"}', {0: '"c":(1)2', 1: '"c":(2)2', 2: '"a"'}),
    ((4, 4), '{"a", "b"}', {0: '"a" "b"', 1: ""}),
    ((4, 4), '{"a", ?}', {0: '"a" ?', 1: "?"}),
    ((2, 4), '{"d", ?}', {0: '? | "d"', 1: ""}),  # nothing fits: the rest overflows and what follows is closed
    ((6, 4), '{"c"}', {0: '"c":(1)2 | "c":(2)2', 1: ""}),
    ((6, 2, 2), '{"c", ?}', {0: '"c":(1)2 ? | "c":(2)2', 1: ""}),  # factors after that are not known at all
    ((6, 2), '{"a", "d", "b"}', {0: '"a" "d"', 1: '"b"'}),
    ((1, 4), '{"c"}', {0: "", 1: '"c"'}),
)


@pytest.mark.parametrize(("sizes", "dim", "expected"), PROJECTIONS)
def test_project(sizes: tuple[int, ...], dim: str, expected: dict[int, str]) -> None:
    mapping = (tuple(range(len(sizes))),)
    given = sharding(f"[{dim}]")
    tensor = project(mapping, given, sizes, MESH)
    assert shown(tensor) == expected
    assert dims(unproject(mapping, tensor, given, sizes, MESH, "mesh")) == dims(given)


def test_a_missing_sharding_is_open_unless_asked_otherwise() -> None:
    assert shown(project(((0, 1), (2,)), None, (2, 2, 2), MESH)) == {0: "?", 1: "?", 2: "?"}
    assert shown(project(((0, 1), (2,)), None, (2, 2, 2), MESH, closed_if_missing=True)) == {0: "", 1: "", 2: ""}


def test_only_the_last_factor_is_minor_most() -> None:
    tensor = project(((0, 1), (2,)), None, (2, 2, 2), MESH)
    assert [state.minor_most for state in tensor.factors.values()] == [False, True, True]


def test_replicated_and_unreduced_axes_are_blocked_and_kept() -> None:
    given = sharding('[{"a"}], replicated={"b"}, unreduced={"c"}')
    tensor = project(((0,),), given, (8,), MESH)
    assert list(map(str, tensor.blocked_axes)) == ['"b"', '"c"']
    tensor.factors[0].axes = (AxisRef("a"), AxisRef("d"))
    assert dims(unproject(((0,),), tensor, given, (8,), MESH, "mesh")) == '[{"a", "d"}], replicated={"b"}, unreduced={"c"}'


def test_priorities_are_dropped() -> None:
    given = sharding('[{"a", ?}p1]')
    assert dims(unproject(((0,),), project(((0,),), given, (8,), MESH), given, (8,), MESH, "mesh")) == '[{"a", ?}]'


def test_a_minor_factor_is_dropped_where_the_major_one_is_not_full() -> None:
    mapping, sizes = ((0, 1),), (4, 4)
    tensor = project(mapping, None, sizes, MESH)
    tensor.factors[0].axes, tensor.factors[1].axes = (AxisRef("a"),), (AxisRef("b"),)
    assert dims(unproject(mapping, tensor, None, sizes, MESH, "mesh")) == '[{"a", ?}]'
    tensor.factors[0].axes = (AxisRef("c"),)
    assert dims(unproject(mapping, tensor, None, sizes, MESH, "mesh")) == '[{"c", "b", ?}]'


def test_sub_axes_are_merged_at_the_border_of_factors() -> None:
    mapping, sizes = ((0, 1),), (2, 4)
    tensor = project(mapping, None, sizes, MESH)
    tensor.factors[0].axes, tensor.factors[1].axes = (AxisRef("c", 1, 2),), (AxisRef("c", 2, 2), AxisRef("a"))
    assert dims(unproject(mapping, tensor, None, sizes, MESH, "mesh")) == '[{"c", "a", ?}]'


def test_merged() -> None:
    assert merged((AxisRef("c", 1, 2), AxisRef("c", 2, 2), AxisRef("a")), MESH) == (AxisRef("c"), AxisRef("a"))
    assert merged((AxisRef("c", 2, 2), AxisRef("c", 1, 2)), MESH) == (AxisRef("c", 2, 2), AxisRef("c", 1, 2))


def test_sizes() -> None:
    bound = rule("([ij], [j])->([i]) {i=2, j=4}")
    assert bound.mappings == (((0, 1),), ((1,),), ((0,),))
    assert bound.tensor_sizes == (8, 4, 2)


@hypothesis.given(
    st.lists(st.sampled_from((1, 2, 3, 4, 6, 8)), min_size=1, max_size=4),
    st.permutations([AxisRef("a"), AxisRef("b"), AxisRef("d"), AxisRef("c", 1, 2), AxisRef("c", 2, 2)]),
    st.integers(0, 5),
    st.booleans(),
)
def test_round_trip(sizes: list[int], axes: list[AxisRef], count: int, closed: bool) -> None:
    """Axes that are dealt out come back as they were, whether they fit or not."""
    mapping = (tuple(range(len(sizes))),)
    given = TensorSharding("mesh", (DimensionSharding(merged(axes[:count], MESH), closed),))
    back = unproject(mapping, project(mapping, given, sizes, MESH), given, sizes, MESH, "mesh")
    assert back.dims[0].axes == given.dims[0].axes
