from __future__ import annotations

import pytest

from shardy_py.dialect import AxisRef, Mesh, TensorSharding, format_type
from shardy_py.dialect.format import format_axis


@pytest.mark.parametrize(
    ("shape", "sharding", "expected"),
    [
        ((1024, 512), '<@m, [{"data"}, {"model"}]>', "f32[1024@data,512@model]"),
        ((1024, 512), '<@m, [{"data", "model"}, {}]>', "f32[1024@(data,model),512]"),
        ((1024,), '<@m, [{"x":(1)2}]>', "f32[1024@x:(1)2]"),
        ((1024,), '<@m, [{"x":(1)2, "y"}]>', "f32[1024@(x:(1)2,y)]"),
        ((1024, 2), '<@m, [{"x", ?}p1, {?}]>', "f32[1024@x,2]"),
        ((8,), '<@m, [{"x"}], replicated={"z"}, unreduced={"y", "w":(1)2}>', "f32[8@x]{U:y,w:(1)2 R:z}"),
        ((), "<@m, []>", "f32[]"),
        ((8, 4), None, "f32[8,4]"),
        ((8,), '<@m, [{"my axis"}]>', 'f32[8@"my axis"]'),
    ],
)
def test_format_type(shape: tuple[int, ...], sharding: str | None, expected: str) -> None:
    value = None if sharding is None else TensorSharding.parse(sharding)
    assert format_type("f32", shape, value) == expected


def test_a_maximal_sharding_has_no_dimensions() -> None:
    assert format_type("f32", (8,), TensorSharding(Mesh.maximal(0), [])) == "f32[8]"


def test_format_axis() -> None:
    assert format_axis(AxisRef("x", 2, 4)) == "x:(2)4"
    assert format_axis(AxisRef("a,b")) == '"a,b"'
