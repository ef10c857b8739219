"""Shardings, rules and manual axes that Shardy refuses, with its words; and those it takes."""

from __future__ import annotations

import pytest

from shardy_py.dialect import DimensionSharding, Mesh, OpShardingRule, TensorSharding, TensorShardingPerValue
from shardy_py.dialect.mesh import check_mesh
from shardy_py.dialect.verify import verify_manual_axes, verify_rule, verify_sharding, verify_shardings
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
    ("<([i])->([i]) {i=8}>", [(8,), (8,)], [(8,)], "number of operands and mappings must match: 2 != 1"),
    ("<([i])->([i]) {i=8}>", [(8,)], [], "number of results and mappings must match: 0 != 1"),
    ("<([i])->([i], [i]) {i=8}>", [(8,)], [(8,)], "number of results and mappings must match: 1 != 2"),
    ("<([ii])->([i], [i]) {i=8}>", [(8,)], [(8,)], "operand - cannot reuse factors for the same tensor value"),
    ("<([i])->([i]) {i=8}>", [(8, 8)], [(8,)], "operand - mapping rank must match: 1 != 2"),
    ("<([i], [i])->([i]) {i=8}>", [(8,), ()], [(8,)], "operand 1 - mapping rank must match: 1 != 0"),
    ("<([i, j])->([i]) {i=8, j=8}>", [(8, 8)], [(8, 8)], "result - mapping rank must match: 1 != 2"),
    ("<([i, ])->([i]) {i=8}>", [(8, 8)], [(8,)], "operand - dim mapping must have at least one factor"),
    (
        "<([i, u], [i, j])->([i, j]) {i=2, j=8}>",
        [(2, 8)] * 2,
        [(2, 8)],
        "operand 0 - expecting factor indices to be within 0<=...<num_factors; received: 12, num_factors: 2",
    ),
    ("<([i, i])->([i]) {i=8}>", [(8, 8)], [(8,)], "operand - cannot reuse factors for the same tensor value"),
    ("<([i, ij])->([i]) {i=1, j=2}>", [(8, 8)], [(8,)], "operand - cannot reuse factors for the same tensor value"),
    ("<([i])->([i, i]) {i=8}>", [(8,)], [(8, 8)], "result - cannot reuse factors for the same tensor value"),
    ("<([ij])->([ij]) {i=8, j=1}>", [(8,)], [(8,)], "operand - dim mapping can't have a factor of size 1 if there are multiple factors"),
    ("<([i])->([i]) {i=8, j=3, k=4}>", [(8,)], [(8,)], "has factor j=3 that isn't used in operand and result mappings"),
    ("<([i])->([i]) {i=8} reduction={i}>", [(8,)], [(8,)], "reduction factor cannot be in result mappings"),
    ("<([i, j])->([i]) {i=8, j=8} need_replication={j, i}>", [(8, 8)], [(8,)], "indices of special factors must be sorted"),
    ("<([i, j])->([i]) {i=8, j=8} blocked_propagation={j, i}>", [(8, 8)], [(8,)], "indices of special factors must be sorted"),
    ("<([i, j])->([i]) {i=8, j=8} permutation={i, i}>", [(8, 8)], [(8,)], "indices of special factors must be unique"),
    ("<([i, j])->([i]) {i=8, j=8} need_replication={z}>", [(8, 8)], [(8,)], "index must be less than 2, got: 17"),
    (
        "<([i, j])->([i]) {i=8, j=8} reduction={j} need_replication={j}>",
        [(8, 8)],
        [(8,)],
        "a factor can only be in one of the reduction, need replication, or permutation factor sets",
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


def test_shardings_of_values() -> None:
    mesh = Mesh({"a": 2})
    parse = TensorShardingPerValue.parse
    verify_shardings(parse('[<@mesh, [{"a"}]>, <@mesh, []>]'), [(8,), ()], mesh)
    verify_shardings(parse("[<@mesh, []>]"), [], mesh)
    verify_shardings([], [], mesh)
    for text, shapes, what in [
        ('[<@mesh, [{"a"}]>, <@mesh, []>]', [(8,)], "result shardings don't match number of values: 2 shardings vs 1 values"),
        ('[<@mesh, [{"a"}]>]', [], "result shardings don't match number of values: 1 shardings vs 0 values"),
        ("[<@mesh, [{}]>]", [], f"result 0 - {MAXIMAL}"),
        ('[<@mesh, [{"c"}]>]', [(8,)], 'result - unknown axis name: "c"'),
        ('[<@mesh, [{}]>, <@mesh, [{"c"}]>]', [(8,), (8,)], 'result 1 - unknown axis name: "c"'),
    ]:
        with pytest.raises(DialectError) as caught:
            verify_shardings(parse(text), shapes, mesh)
        assert caught.value.what == what
    with pytest.raises(DialectError, match="in_shardings - unknown mesh: @unknown_mesh"):
        verify_shardings(parse("[<@unknown_mesh, []>]"), [()], {"mesh": mesh}, what="in_shardings")


@pytest.mark.parametrize(("rule", "operands", "results", "what"), RULES)
def test_rules(rule: str, operands: list[tuple[int, ...]], results: list[tuple[int, ...]], what: str | None) -> None:
    value = OpShardingRule.parse(rule)
    if what is None:
        verify_rule(value, operands, results)
        return
    with pytest.raises(DialectError) as caught:
        verify_rule(value, operands, results)
    assert caught.value.what == what
    assert value.text(short=True) in str(caught.value)


# (sharding, global shape, local shape, manual axes, error)
MANUAL = [
    ('<@mesh, [{"a"}, {"b", ?}]>', (16, 32), (8, 32), ("a",), None),
    ('<@mesh, [{"a", "b"}, {}]>', (16, 32), (8, 32), ("a",), None),
    ('<@mesh, [{}, {}], replicated={"a"}>', (16, 32), (16, 32), ("a",), None),
    ('<@mesh, [{"a", "b"}, {}]>', (16, 32), (4, 32), ("a", "b"), None),
    ('<@mesh, [{"a"}, {}]>', (16, 32), (8, 32), ("a", "c"), 'unknown manual axis: "c"'),
    (
        '<@mesh, [{}, {"a", "b"}]>',
        (16, 32),
        (16, 16),
        ("b",),
        (
            "operand sharding at index 0 must have all manual axes come before free axes in its dimension sharding at index 1. "
            'Saw manual axis "b" after free axis "a"'
        ),
    ),
    (
        '<@mesh, [{"a"}, {}]>',
        (7, 32),
        (4, 32),
        ("a",),
        "operand dimension size 7 is not divisible by the manual axes size 2",
    ),
    (
        '<@mesh, [{"a"}, {}]>',
        (16, 32),
        (16, 32),
        ("a",),
        (
            "operand shape, corresponding sharding, and region operand shape at index 0 must match. "
            "Expected local shape (8, 32), actual local shape (16, 32)"
        ),
    ),
]


@pytest.mark.parametrize(("sharding", "outer", "inner", "manual_axes", "what"), MANUAL)
def test_manual_axes(sharding: str, outer: tuple[int, ...], inner: tuple[int, ...], manual_axes: tuple[str, ...], what: str | None) -> None:
    value, mesh = TensorSharding.parse(sharding), Mesh({"a": 2, "b": 2})
    if what is None:
        verify_manual_axes([value], [outer], [inner], manual_axes, mesh)
        return
    with pytest.raises(DialectError) as caught:
        verify_manual_axes([value], [outer], [inner], manual_axes, mesh)
    assert caught.value.what == what


def test_manual_computation_with_other_numbers_of_values() -> None:
    with pytest.raises(DialectError) as caught:
        verify_manual_axes([TensorSharding.closed("mesh", 0)], [()], [(), ()], (), Mesh({"a": 2}), what="result")
    assert caught.value.what == "number of op results and region results must match. Op has 1 op results and 2 region results"


def test_a_mesh_is_checked_when_made() -> None:
    check_mesh(Mesh({"a": 2}).axes, (1, 0))
    with pytest.raises(DialectError, match="device id must be non-negative"):
        check_mesh((), (-1,))
