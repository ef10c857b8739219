"""Shardings and rules that Shardy refuses, shardings with its words; and those it takes."""

from __future__ import annotations

import pytest

from shardy_py.dialect import DimensionSharding, Mesh, OpShardingRule, TensorSharding
from shardy_py.dialect.mesh import check_mesh
from shardy_py.dialect.verify import verify_rule, verify_sharding
from shardy_py.errors import DialectError

MAXIMAL = "a maximal sharding can only have a sharding with rank 0 and no replicated or unreduced axes."
NO_SHAPE = "non-shaped tensors can only have a sharding with rank 0 and no replicated or unreduced axes"
A8 = '<["a"=8, "b"=2]>'
A12 = '<["a"=12, "b"=2]>'
CAB = '<["c"=2, "a"=2, "b"=2]>'

# (mesh, sharding, shape, error; None where there is none)
SHARDINGS = [
    (A8, "<@mesh, []>", (), None),
    (A8, "<@mesh, [{?}, {}]>", (8, 8), None),
    (A8, '<@mesh, [{"a"}, {"b"}p1]>', (3, 0), None),
    (A8, "<@mesh, [{?}p0]>", (8,), None),
    (A8, '<@mesh, [{"a":(2)2}], replicated={"a":(1)2}, unreduced={"a":(4)2}>', (8,), None),
    (A8, '<@mesh, [{"a":(2)2, "a":(1)2}]>', (8,), None),
    (A8, '<@mesh, [{"a":(2)2, "b", "a":(4)2}]>', (8,), None),
    (A12, '<@mesh, [{"a":(1)3, "a":(4)3}]>', (8,), None),
    (CAB, '<@mesh, [{}, {}], replicated={"c", "b"}, unreduced={"a"}>', (8, 8), None),
    ('<["a"=1]>', '<@mesh, [{"a"}]>', (3,), None),
    ("<[]>", "<@mesh, [{}]>", (3,), None),
    ("<[], device_ids=[0]>", "<@mesh, []>", (3,), None),
    (A8, "<@mesh, []>", None, None),
    (A8, '<mesh<["z"=3]>, [{"z"}]>', (3,), None),
    (A8, "<@other, []>", (), "unknown mesh: @other"),
    (A8, '<@"an other", []>', (), 'unknown mesh: @"an other"'),
    ("<[], device_ids=[0]>", "<@mesh, [{}, {}]>", (8, 8), MAXIMAL),
    ("<[], device_ids=[0]>", '<@mesh, [], replicated={"x"}>', (8,), MAXIMAL),
    ("<[], device_ids=[0]>", '<@mesh, [], unreduced={"x"}>', (8,), MAXIMAL),
    (A8, "<mesh<[], device_ids=[3]>, [{}]>", (8,), MAXIMAL),
    (A8, "<@mesh, [{}]>", None, NO_SHAPE),
    (A8, '<@mesh, [], replicated={"a"}>', None, NO_SHAPE),
    (A8, '<@mesh, [], unreduced={"a"}>', None, NO_SHAPE),
    (A8, '<@mesh, [{}, {"b"}], replicated={"a"}>', (8,), "sharding doesn't match tensor rank: 2 != 1"),
    (A8, '<@mesh, [{"c"}, {}p2]>', (8,), "sharding doesn't match tensor rank: 2 != 1"),
    ("<[]>", "<@mesh, []>", (8,), "sharding doesn't match tensor rank: 0 != 1"),
    (A8, '<@mesh, [{"a"}, {}p3]>', (8, 8), "dim 1 is empty and closed but has a priority"),
    (A8, "<@mesh, [{}p1, {}]>", (8, 8), "dim 0 is empty and closed but has a priority"),
    (A8, '<@mesh, [{"c"}, {}p2]>', (8, 8), 'unknown axis name: "c"'),
    (A8, '<@mesh, [{}p2, {"c"}]>', (8, 8), "dim 0 is empty and closed but has a priority"),
    (A8, '<@mesh, [{}, {"c"}]>', (8, 8), 'unknown axis name: "c"'),
    (A8, '<@mesh, [{}, {"c":(2)2}]>', (8, 8), 'unknown axis name: "c"'),
    (A8, '<@mesh, [{}], replicated={"c"}>', (8,), 'unknown axis name: "c"'),
    (A8, '<@mesh, [{}], unreduced={"c"}>', (8,), 'unknown axis name: "c"'),
    (A8, '<@mesh, [{"é"}]>', (8,), 'unknown axis name: "é"'),
    ("<[]>", '<@mesh, [{"a"}]>', (8,), 'unknown axis name: "a"'),
    (A8, '<@mesh, [{"a"}, {"a"}]>', (8, 8), 'duplicate axis ref: "a"'),
    (A8, '<@mesh, [{"a", "b", "a"}]>', (8,), 'duplicate axis ref: "a"'),
    (A8, '<@mesh, [{"a":(2)2}], unreduced={"a":(2)2}>', (8,), 'duplicate axis ref: "a":(2)2'),
    (A8, '<@mesh, [{}], replicated={"a", "a"}>', (8,), 'duplicate axis ref: "a"'),
    (A8, '<@mesh, [{}], replicated={"a"}, unreduced={"a"}>', (8,), 'duplicate axis ref: "a"'),
    (A8, '<@mesh, [{"a":(2)2, "a":(4)2}]>', (8,), 'two consecutive sub-axes can be merged: "a":(2)2, "a":(4)2'),
    (A8, '<@mesh, [{}], replicated={"a":(2)2, "a":(4)2}>', (8,), 'two consecutive sub-axes can be merged: "a":(2)2, "a":(4)2'),
    (A8, '<@mesh, [{}], unreduced={"a":(2)2, "a":(4)4}>', (8,), 'two consecutive sub-axes can be merged: "a":(2)2, "a":(4)4'),
    (CAB, '<@mesh, [{}], replicated={"a", "b", "c"}>', (8,), "replicated axes are not ordered w.r.t. mesh"),
    (CAB, '<@mesh, [{}], unreduced={"a", "b", "c"}>', (8,), "unreduced axes are not ordered w.r.t. mesh"),
    (A8, '<@mesh, [{}], replicated={"a":(4)2, "a":(1)2}>', (8,), "replicated axes are not ordered w.r.t. mesh"),
    (A8, '<@mesh, [{"a"}], replicated={"b", "a":(2)2}>', (8,), "replicated axes are not ordered w.r.t. mesh"),
    (A8, '<@mesh, [{"a"}], replicated={"a":(2)2}>', (8,), 'both sub-axis and full-axis are used for axis name: "a"'),
    (A8, '<@mesh, [{"a":(1)2, "a"}]>', (8,), 'both sub-axis and full-axis are used for axis name: "a"'),
    (A8, '<@mesh, [{"b"}], replicated={"b":(1)1}>', (8,), 'both sub-axis and full-axis are used for axis name: "b"'),
    (A8, '<@mesh, [{"a":(-1)2}]>', (8,), 'sub-axis pre-size must be at least 1: "a":(-1)2'),
    (A8, '<@mesh, [{"a":(0)2}]>', (8,), 'sub-axis pre-size must be at least 1: "a":(0)2'),
    (A8, '<@mesh, [{"a":(1)1}]>', (8,), 'sub-axis sizes must be greater than 1: "a":(1)1'),
    (A8, '<@mesh, [{"a":(1)-2}]>', (8,), 'sub-axis sizes must be greater than 1: "a":(1)-2'),
    (A8, '<@mesh, [{"a":(3)2}]>', (8,), 'sub-axis next pre-size 6 doesn\'t divide the size of the full axis 8: "a":(3)2'),
    (A8, '<@mesh, [{"a":(1)16}]>', (8,), 'sub-axis next pre-size 16 doesn\'t divide the size of the full axis 8: "a":(1)16'),
    (A8, '<@mesh, [{"a":(1)8}]>', (8,), 'sub-axis size is equal to the full axis size: "a":(1)8'),
    (A8, '<@mesh, [{"a":(2)4}, {"b"}], replicated={"a":(1)4}>', (8, 8), 'overlapping sub-axes: "a":(1)4, "a":(2)4'),
    (A12, '<@mesh, [{"a":(1)2, "a":(1)3}]>', (8,), 'overlapping sub-axes: "a":(1)2, "a":(1)3'),
]

# (rule, operand shapes, result shapes, error; None where there is none)
RULES = [
    ("<([i])->([i]) {i=8}>", [(8,)], [(8,)], None),
    ("<([i])->([i]) {i=3}>", [(8,)], [(8,)], None),
    ("<([i])->([i]) {i=1}>", [(8,)], [(8,)], None),
    ("<([])->([])>", [()], [()], None),
    ("<([i, j])->([i]) {i=8, j=8} reduction={j} blocked_propagation={i, j}>", [(8, 8)], [(8,)], None),
    ("<([i])->([i]) {i=8}>", [(8,), (8,)], [(8,)], "one mapping for each"),
    ("<([i])->([i]) {i=8}>", [(8,)], [], "one mapping for each"),
    ("<([i])->([i], [i]) {i=8}>", [(8,)], [(8,)], "one mapping for each"),
    ("<([ii])->([i], [i]) {i=8}>", [(8,)], [(8,)], "one mapping for each"),
    ("<([i])->([i]) {i=8}>", [(8, 8)], [(8,)], "one entry for each dimension"),
    ("<([i], [i])->([i]) {i=8}>", [(8,), ()], [(8,)], "one entry for each dimension"),
    ("<([i, j])->([i]) {i=8, j=8}>", [(8, 8)], [(8, 8)], "one entry for each dimension"),
    ("<([i, ])->([i]) {i=8}>", [(8, 8)], [(8,)], "each dimension needs a factor"),
    (
        "<([i, u], [i, j])->([i, j]) {i=2, j=8}>",
        [(2, 8)] * 2,
        [(2, 8)],
        "each factor needs a size",
    ),
    ("<([i, i])->([i]) {i=8}>", [(8, 8)], [(8,)], "each factor only once"),
    ("<([i, ij])->([i]) {i=1, j=2}>", [(8, 8)], [(8,)], "each factor only once"),
    ("<([i])->([i, i]) {i=8}>", [(8,)], [(8, 8)], "each factor only once"),
    ("<([ij])->([ij]) {i=8, j=1}>", [(8,)], [(8,)], "alone in its dimension"),
    ("<([i])->([i]) {i=8, j=3, k=4}>", [(8,)], [(8,)], "a dimension that has it"),
    ("<([i])->([i]) {i=8} reduction={i}>", [(8,)], [(8,)], "cannot be in results"),
    ("<([i, j])->([i]) {i=8, j=8} need_replication={j, i}>", [(8, 8)], [(8,)], "must be sorted, without repetitions"),
    ("<([i, j])->([i]) {i=8, j=8} blocked_propagation={j, i}>", [(8, 8)], [(8,)], "must be sorted, without repetitions"),
    ("<([i, j])->([i]) {i=8, j=8} permutation={i, i}>", [(8, 8)], [(8,)], "must be sorted, without repetitions"),
    ("<([i, j])->([i]) {i=8, j=8} need_replication={z}>", [(8, 8)], [(8,)], "of factors that have a size"),
    (
        "<([i, j])->([i]) {i=8, j=8} reduction={j} need_replication={j}>",
        [(8, 8)],
        [(8,)],
        "only one of reduction",
    ),
]


@pytest.mark.parametrize(("mesh", "sharding", "shape", "what"), SHARDINGS)
def test_shardings(mesh: str, sharding: str, shape: tuple[int, ...] | None, what: str | None) -> None:
    value = TensorSharding.parse(sharding)
    meshes = {"mesh": Mesh.parse(mesh)}
    if what is None:
        verify_sharding(value, shape, meshes)
        verify_sharding(value, shape, meshes["mesh"])
        return
    with pytest.raises(DialectError) as caught:
        verify_sharding(value, shape, meshes)
    assert caught.value.what == what
    if not what.startswith("unknown mesh"):
        assert f"where: sharding {value.text(short=True)}" in str(caught.value)


def test_negative_priority() -> None:
    with pytest.raises(DialectError, match="dim 0 has a negative priority"):
        verify_sharding(TensorSharding("mesh", [DimensionSharding(["a"], True, -1)]), (8,), Mesh({"a": 2}))


def test_bound_axes() -> None:
    mesh = Mesh({"a": 2, "b": 2})
    verify_sharding(TensorSharding.parse('<@mesh, [{"b"}]>'), (8,), mesh, manual_axes=("a",))
    for text in ('<@mesh, [{"a"}]>', '<@mesh, [{}], replicated={"a"}>', '<@mesh, [{}], unreduced={"a"}>'):
        with pytest.raises(DialectError) as caught:
            verify_sharding(TensorSharding.parse(text), (8,), mesh, manual_axes=("a",))
        assert caught.value.what == 'operates on axis "a" which is already bound by a parent sdy.manual_computation op'


@pytest.mark.parametrize(("rule", "operands", "results", "why"), RULES)
def test_rules(rule: str, operands: list[tuple[int, ...]], results: list[tuple[int, ...]], why: str | None) -> None:
    value = OpShardingRule.parse(rule)
    if why is None:
        verify_rule(value, operands, results)
        return
    with pytest.raises(DialectError) as caught:
        verify_rule(value, operands, results)
    assert why in str(caught.value.why)
    assert value.text(short=True) in str(caught.value)


def test_a_mesh_is_checked_when_made() -> None:
    check_mesh(Mesh({"a": 2}).axes, (1, 0))
    with pytest.raises(DialectError, match="device id must be non-negative"):
        check_mesh((), (-1,))
