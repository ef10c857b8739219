from __future__ import annotations

import pickle

import pytest

from shardy_py.dialect import AxisRef, DimensionSharding, Mesh, TensorSharding, TensorShardingPerValue
from shardy_py.dialect.axis import reduced_like, reduction_of
from shardy_py.errors import DialectError, ParseError

MESH = Mesh({"x": 4, "y": 2, "z": 8})


def parse(text: str) -> TensorSharding:
    return TensorSharding.parse(text)


def test_dimension_properties() -> None:
    dim = DimensionSharding.parse('{"x", "z":(2)2, ?}p1')
    assert not dim.is_empty
    assert dim.is_open
    assert not dim.is_closed
    assert dim.priority == 1
    assert dim.shards(MESH) == 8
    assert str(dim.closed()) == '{"x", "z":(2)2}p1'
    assert dim.closed().closed() is dim.closed()
    assert str(dim.without_priority()) == '{"x", "z":(2)2, ?}'
    assert str(dim.sharded("y")) == '{"x", "z":(2)2, "y", ?}p1'
    assert str(dim.sharded(AxisRef("y", 1, 2))) == '{"x", "z":(2)2, "y":(1)2, ?}p1'
    assert str(dim.with_axes([])) == "{?}p1"


@pytest.mark.parametrize(
    ("text", "has_axes", "replicated", "closed", "open_"),
    [
        ("<@m, []>", False, True, True, True),
        ("<@m, [{}]>", False, True, True, False),
        ("<@m, [{?}]>", False, True, False, True),
        ("<@m, [{?}, {}]>", False, True, False, False),
        ('<@m, [{"x"}]>', True, False, True, False),
        ('<@m, [{"x", ?}, {?}]>', True, False, False, True),
        ('<@m, [{}], replicated={"x"}>', True, True, True, False),
        ('<@m, [{}], unreduced={"x"}>', True, True, True, False),
    ],
)
def test_derived_properties(text: str, has_axes: bool, replicated: bool, closed: bool, open_: bool) -> None:
    sharding = parse(text)
    assert sharding.has_axes is has_axes
    assert sharding.is_fully_replicated is replicated
    assert sharding.is_fully_closed is closed
    assert sharding.is_fully_open is open_
    assert sharding.rank == len(sharding.dims)


def test_open_and_closed() -> None:
    assert str(TensorSharding.open("m", 2)) == "#sdy.sharding<@m, [{?}, {?}]>"
    assert str(TensorSharding.closed(MESH, 1)) == '#sdy.sharding<mesh<["x"=4, "y"=2, "z"=8]>, [{}]>'
    assert TensorSharding.closed("m", 0) is TensorSharding.open("m", 0)


def test_sequences_and_strings_stand_for_closed_dimensions() -> None:
    assert TensorSharding("m", [["x", AxisRef("y")], ()]) is parse('<@m, [{"x", "y"}, {}]>')


def test_axes() -> None:
    sharding = parse('<@m, [{"x"}, {}, {"z":(1)2, "y"}], replicated={"z":(2)2}, unreduced={"w"}>')
    assert list(map(str, sharding.dim_axes())) == ['"x"', '"z":(1)2', '"y"']
    assert list(map(str, sharding.all_axes())) == ['"x"', '"z":(1)2', '"y"', '"z":(2)2', '"w"']


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("<@m, [{}]>", None, True),
        ("<@m, [{}]>", "<@n, [{?}]>", True),
        ("<@m, [{}]>", "<@n, [{}, {}]>", True),
        ('<@m, [{"x"}]>', None, False),
        ('<@m, [{"x"}]>', '<@m, [{"x", ?}p2]>', True),
        ('<@m, [{"x"}]>', '<@n, [{"x"}]>', False),
        ('<@m, [{"x"}]>', '<@m, [{"y"}]>', False),
        ('<@m, [{"x", "y"}]>', '<@m, [{"y", "x"}]>', False),
        ('<@m, [{"x"}]>', '<@m, [{"x"}, {}]>', False),
        ('<@m, [{"x"}], replicated={"y"}>', '<@m, [{"x"}]>', True),
        ('<@m, [{"x"}], unreduced={"y"}>', '<@m, [{"x"}]>', True),
        ('<@m, [{}], replicated={"y"}>', None, True),
        ('<@m, [{"x":(1)2}]>', '<@m, [{"x"}]>', False),
    ],
)
def test_is_equivalent(a: str, b: str | None, expected: bool) -> None:
    first, second = parse(a), None if b is None else parse(b)
    assert first.is_equivalent(second) is expected
    if second is not None:
        assert second.is_equivalent(first) is expected


def test_parts_of_a_maximum_are_not_parts_of_a_sum() -> None:
    text = '<@m, [{}], unreduced=max{"x", "y"}>'
    sharding, summed = parse(text), parse(text.replace("max", ""))
    assert str(sharding) == f"#sdy.sharding{text}"
    assert sharding.unreduced != summed.unreduced
    assert summed.unreduced != sharding.unreduced
    assert sharding is parse(text) is pickle.loads(pickle.dumps(sharding)) is sharding.closed_like()
    assert sharding is not summed
    assert reduction_of(reduced_like(summed.unreduced[:1], sharding.unreduced)) == "max"
    assert reduction_of(reduced_like(sharding.unreduced, summed.unreduced)) == "sum"
    with pytest.raises(ParseError, match=r"expected '\{'"):
        parse('<@m, [{}], replicated=max{"x"}>')


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda s: s.closed_like(), '<@m, [{"x"}p1, {}], unreduced={"z"}>'),
        (lambda s: s.fully_closed_like(), "<@m, [{}, {}]>"),
        (lambda s: s.fully_open_like(), "<@m, [{?}, {?}]>"),
        (lambda s: s.without_priorities(), '<@m, [{"x", ?}, {}], replicated={"y"}, unreduced={"z"}>'),
        (lambda s: s.with_mesh("n"), '<@n, [{"x", ?}p1, {}], replicated={"y"}, unreduced={"z"}>'),
        (lambda s: s.sharded(1, "w"), '<@m, [{"x", ?}p1, {"w"}], replicated={"y"}, unreduced={"z"}>'),
    ],
)
def test_changed(change, expected: str) -> None:
    assert change(parse('<@m, [{"x", ?}p1, {}], replicated={"y"}, unreduced={"z"}>')).text(short=True) == expected


def test_local_shape() -> None:
    sharding = parse('<@m, [{"x"}, {}, {"z":(2)2, "y"}]>')
    assert sharding.shards(MESH) == (4, 1, 4)
    assert sharding.local_shape((8, 3, 16), MESH) == (2, 3, 4)
    assert sharding.local_shape((9, 3, 0), MESH) == (3, 3, 0)
    assert sharding.with_mesh(MESH).local_shape((8, 3, 16)) == (2, 3, 4)
    with pytest.raises(DialectError, match="dimension size 9 is not divisible by the sharded size 4"):
        sharding.local_shape((9, 3, 16), MESH, allow_uneven=False)
    with pytest.raises(DialectError, match="sharding doesn't match tensor rank: 3 != 1"):
        sharding.local_shape((9,), MESH)
    with pytest.raises(DialectError, match="pass mesh="):
        sharding.local_shape((8, 3, 16))


def test_mesh_in() -> None:
    assert parse("<@m, []>").mesh_in({"m": MESH}) is MESH
    assert TensorSharding.closed(MESH, 0).mesh_in({}) is MESH
    with pytest.raises(DialectError, match='unknown mesh: @"a b"') as caught:
        parse('<@"a b", []>').mesh_in({"m": MESH})
    assert "@m" in str(caught.value)


def test_per_value() -> None:
    one, two = parse('<@m, [{"x"}]>'), parse("<@m, []>")
    both = TensorShardingPerValue([one, two])
    assert len(both) == 2
    assert both[1] is two
    assert list(both) == [one, two]
    assert both.text() == '#sdy.sharding_per_value<[<@m, [{"x"}]>, <@m, []>]>'
    assert both.text(short=True) == '[<@m, [{"x"}]>, <@m, []>]'
