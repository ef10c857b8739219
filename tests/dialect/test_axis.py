"""The axis algebra, against a model in which an axis is its list of binary digits, and by the laws it must keep."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardy_py.dialect import AxisRef, Mesh
from shardy_py.dialect.axis import (
    add_axis_or_merge,
    bounds,
    can_coexist,
    can_merge,
    common_prefix_of_lists,
    contains,
    greatest_common_prefix,
    is_prefix_of,
    merge,
    normalized,
    overlap,
    overlaps,
    prefix_without_overlap,
    set_difference,
    sort_and_merge,
    suffix_without_overlap,
    truncate_by_removing_overlaps,
)

BITS = 5
MESH = Mesh({"b": 2**BITS, "a": 2**BITS})

x = AxisRef("x")


def sub(pre: int, size: int, name: str = "x") -> AxisRef:
    return AxisRef(name, pre, size)


def ranged(name: str, low: int, high: int) -> AxisRef:
    """Digits `low` to `high` of a binary axis, digit 0 the most major."""
    return AxisRef(name) if (low, high) == (0, BITS) else AxisRef(name, 2**low, 2 ** (high - low))


def digits(axis: AxisRef) -> set[tuple[str, int]]:
    pre, after = bounds(axis, MESH)
    return {(axis.name, i) for i in range(int(math.log2(pre)), int(math.log2(after)))}


binary_axes = st.builds(
    lambda name, ends: ranged(name, *sorted(ends)),
    st.sampled_from("ab"),
    st.lists(st.integers(0, BITS), min_size=2, max_size=2, unique=True),
)


@st.composite
def disjoint_axes(draw: st.DrawFn) -> list[AxisRef]:
    """References that do not overlap, as a valid sharding has them, in any order."""
    kept: list[AxisRef] = []
    for axis in draw(st.lists(binary_axes, max_size=6)):
        if not any(overlaps(axis, other) for other in kept):
            kept.append(axis)
    return draw(st.permutations(kept))


DIVISORS = [d for d in range(1, 73) if 72 % d == 0]
PARTS = [x if (pre, after) == (1, 72) else sub(pre, after // pre) for pre, after in itertools.combinations(DIVISORS, 2) if after % pre == 0]
"""Every valid part of an axis of size 72."""


@given(binary_axes, binary_axes)
def test_predicates_against_digits(a: AxisRef, b: AxisRef) -> None:
    da, db = digits(a), digits(b)
    assert contains(a, b) == (da >= db)
    assert overlaps(a, b) == bool(da & db)
    assert can_coexist(a, b)
    assert is_prefix_of(a, b) == (da <= db and min(da) == min(db))
    assert can_merge(a, b) == (a.name == b.name and not a.is_full and not b.is_full and max(da)[1] + 1 == min(db)[1])


@given(binary_axes, binary_axes)
def test_parts_against_digits(a: AxisRef, b: AxisRef) -> None:
    da, db = digits(a), digits(b)
    shared = overlap(a, b)
    assert (digits(shared) if shared else set()) == da & db
    prefix = prefix_without_overlap(a, b)
    assert (digits(prefix) if prefix else set()) == ({d for d in da if d < min(db)} if da & db else da)
    suffix = suffix_without_overlap(a, b, MESH)
    assert (digits(suffix) if suffix else set()) == ({d for d in da if d > max(db)} if da & db else da)
    common = greatest_common_prefix(a, b)
    assert (digits(common) if common else set()) == (da & db if min(da) == min(db) else set())
    if can_merge(a, b):
        assert digits(merge(a, b, MESH)) == da | db
        assert merge(a, b, MESH).is_full == (len(da | db) == BITS)


@given(disjoint_axes(), disjoint_axes())
def test_set_difference_against_digits(axes: list[AxisRef], removed: list[AxisRef]) -> None:
    rest = set_difference(axes, removed, MESH)
    gone = {d for axis in removed for d in digits(axis)}
    assert [d for axis in rest for d in sorted(digits(axis))] == [d for axis in axes for d in sorted(digits(axis)) if d not in gone]


@given(disjoint_axes())
def test_sort_and_merge(axes: list[AxisRef]) -> None:
    merged = sort_and_merge(axes, MESH)
    assert [d for axis in merged for d in sorted(digits(axis))] == sorted(
        (d for axis in axes for d in digits(axis)), key=lambda d: (MESH.axis_index(d[0]), d[1])
    )
    assert not any(can_merge(a, b) for a, b in itertools.pairwise(merged))
    assert all(normalized(axis, MESH) is axis for axis in merged)


@given(disjoint_axes(), disjoint_axes())
def test_truncate_against_digits(axes: list[AxisRef], other: list[AxisRef]) -> None:
    kept = truncate_by_removing_overlaps(axes, other)
    taken = {d for axis in other for d in digits(axis)}
    expected = []
    for d in [d for axis in axes for d in sorted(digits(axis))]:
        if d in taken:
            break
        expected.append(d)
    assert [d for axis in kept for d in sorted(digits(axis))] == expected


@given(disjoint_axes(), disjoint_axes())
def test_common_prefix_of_lists(a: list[AxisRef], b: list[AxisRef]) -> None:
    common = common_prefix_of_lists(a, b)
    assert common == common_prefix_of_lists(b, a)
    assert common_prefix_of_lists(a, a) == tuple(a)
    for whole in (a, b):
        assert all(is_prefix_of(c, w) for c, w in zip(common, whole, strict=False))
        assert common[:-1] == tuple(whole[: max(len(common) - 1, 0)])


def test_laws_for_a_size_with_several_prime_factors() -> None:
    mesh = Mesh({"x": 72})
    for a, b in itertools.product(PARTS, repeat=2):
        assert contains(a, a)
        assert overlaps(a, b) == overlaps(b, a)
        assert can_coexist(a, b) == can_coexist(b, a)
        assert overlap(a, b) is overlap(b, a)
        assert greatest_common_prefix(a, b) is greatest_common_prefix(b, a)
        if contains(a, b) and can_coexist(a, b):
            assert overlap(a, b) is b
        if not can_coexist(a, b):
            for part in (overlap(a, b), prefix_without_overlap(a, b), suffix_without_overlap(a, b, mesh), greatest_common_prefix(a, b)):
                assert part is None
        assert (a < b) + (b < a) + (a is b) == 1


def test_an_axis_is_its_prefix_overlap_and_suffix() -> None:
    mesh = Mesh({"x": 72})
    for a, b in itertools.product(PARTS, repeat=2):
        if overlaps(a, b) and can_coexist(a, b):
            parts = [part for part in (prefix_without_overlap(a, b), overlap(a, b), suffix_without_overlap(a, b, mesh)) if part]
            assert sort_and_merge(parts, mesh) == (a,), (a, b)
            assert math.prod(part.size_in(mesh) for part in parts) == a.size_in(mesh)


def test_order() -> None:
    ordered = [sub(1, 2), sub(1, 4), x, sub(2, 2), sub(2, 4), sub(4, 2), AxisRef("y", 1, 2), AxisRef("y")]
    assert sorted(ordered[3:] + ordered[:3]) == ordered
    mesh = Mesh({"y": 8, "x": 8})
    assert sorted(ordered, key=lambda axis: axis.sort_key(mesh)) == ordered[-2:] + ordered[:-2]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (sub(1, 2), sub(2, 2), True),
        (sub(1, 2), sub(4, 3), True),
        (sub(1, 2), sub(3, 2), False),
        (sub(1, 4), sub(2, 4), True),
        (sub(1, 2), sub(1, 3), False),
        (sub(1, 4), sub(1, 2), True),
        (sub(1, 6), sub(2, 6), True),
        (sub(1, 6), sub(4, 3), False),
        (sub(1, 3), sub(1, 6), True),
        (sub(3, 2), x, True),
        (sub(3, 2), AxisRef("y", 2, 2), True),
    ],
)
def test_can_coexist(a: AxisRef, b: AxisRef, expected: bool) -> None:
    assert can_coexist(a, b) is expected


def test_examples() -> None:
    mesh = Mesh({"x": 8, "y": 4})
    assert overlap(sub(1, 4), sub(2, 4)) is sub(2, 2)
    assert prefix_without_overlap(x, sub(2, 2)) is sub(1, 2)
    assert suffix_without_overlap(x, sub(2, 2), mesh) is sub(4, 2)
    assert set_difference([x, AxisRef("y")], [sub(2, 2)], mesh) == (sub(1, 2), sub(4, 2), AxisRef("y"))
    assert merge(sub(1, 2), sub(2, 4), mesh) is x
    assert merge(sub(1, 2), sub(2, 2), mesh) is sub(1, 4)
    assert common_prefix_of_lists([x, AxisRef("y")], [x, sub(1, 2, "y")]) == (x, sub(1, 2, "y"))
    assert truncate_by_removing_overlaps([AxisRef("y"), x], [sub(4, 2)]) == (AxisRef("y"), sub(1, 4))
    assert sub(2, 3).next_pre_size == 6
    assert x.next_pre_size is None


def test_add_axis_or_merge() -> None:
    axes: list[AxisRef] = []
    for axis in (sub(1, 2), sub(2, 2), sub(4, 2), sub(1, 2, "y"), sub(4, 2, "y")):
        add_axis_or_merge(axes, axis, Mesh({"x": 8, "y": 8}))
    assert axes == [x, sub(1, 2, "y"), sub(4, 2, "y")]


def test_full_axes_do_not_merge() -> None:
    assert not can_merge(x, x)
    assert not can_merge(x, sub(2, 2))
    with pytest.raises(ValueError, match="cannot be merged"):
        merge(x, sub(2, 2), Mesh({"x": 8}))
