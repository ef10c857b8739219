from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from shardy_py.cli.errors import CommandError
from shardy_py.cli.targets import parse_argument, parse_arguments

SIZES = {"data": 2, "x": 2, "y": 1}
MESH = AbstractMesh(tuple(SIZES.values()), tuple(SIZES), axis_types=(AxisType.Auto,) * len(SIZES))


def array(dtype: str, *shape: int, spec: PartitionSpec | None = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=None if spec is None else NamedSharding(MESH, spec))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("float32[8,128]", array("float32", 8, 128)),
        ("f32[]", array("float32")),
        (" bf16[ 8 , 2 ] ", array("bfloat16", 8, 2)),
        ("i8[3]", array("int8", 3)),
        ("u32[2]", array("uint32", 2)),
        ("bool[2]", array("bool", 2)),
        ("float8_e4m3fn[2]", array("float8_e4m3fn", 2)),
        ("f32[8@data,4@(x,y),2]", array("float32", 8, 4, 2, spec=PartitionSpec("data", ("x", "y"), None))),
        ("{'w': f32[8], 'b': None}", {"w": array("float32", 8), "b": None}),
        ('{"w": [f32[8], (f32[2], 3)]}', {"w": [array("float32", 8), (array("float32", 2), 3)]}),
        ("()", ()),
        ("(1,)", (1,)),
        ("(1)", 1),
        ("{}", {}),
        ("[1, 2,]", [1, 2]),
        ("-1.5e3", -1500.0),
        ("True", True),
        (r"'a\'b'", "a'b"),
    ],
)
def test_values(text: str, value: Any) -> None:
    assert parse_argument(text, SIZES) == value


def test_names() -> None:
    assert parse_arguments(["1", "b=2", "c='x=y'"]) == ((1,), {"b": 2, "c": "x=y"})


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["f32[8"], "no type and no value"),
        (["f32[8] 3"], "no type and no value"),
        (["f32[a]"], "'a' is not a dimension"),
        (["f32[8@]"], "no type and no value"),
        (["f32[True]"], "'True' is not a dimension"),
        (["f32[8@z]"], "there is no --mesh"),
        (["word[8]"], "unknown element type 'word'"),
        (["{'a': 1, 'a': 2}"], "stands twice"),
        (["{**{'a': 1}}"], "stands twice"),
        (["{[]: 1}"], "no type and no value"),
        (["[1 2]"], "no type and no value"),
        ([""], "no type and no value"),
        (["__import__('os')"], "no type and no value"),
        (["[" * 600 + "]" * 600], "no type and no value"),
        ([r"'\:'"], "no type and no value"),
        ([r"{'\x1': 2}"], "no type and no value"),
        (["a=1", "2"], "stands behind one that has"),
        (["a=1", "a=2"], "given twice"),
    ],
)
def test_mistakes(texts: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        parse_arguments(texts)


@given(st.text(alphabet="f32[](){}@,:'\"\\a1 -=.", max_size=24))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse_argument(text)
    except CommandError as error:
        assert "--args" in str(error)  # noqa: PT017
