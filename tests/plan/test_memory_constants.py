"""Numbers that are known before a program runs take part in no estimate."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType

import shardy_py as sp
from shardy_py.ir import Op
from shardy_py.ir.types import TensorType
from shardy_py.plan.memory.xla.constants import chosen, folded

MESH = AbstractMesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


class _Op:
    """As much of an op as is looked at."""

    def __init__(self, name: str, dtype: str, primitive: str = "") -> None:
        self.name, self.primitive, self.operands = name, primitive, [None] * 3
        self.result = type("Result", (), {"type": TensorType((4,), dtype)})()


def op(name: str, dtype: str, primitive: str = "") -> Op:
    return _Op(name, dtype, primitive)  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize(
    ("name", "dtype", "primitive", "operands", "number"),
    [
        ("stablehlo.add", "uint8", "", (250, 10), 4),
        ("stablehlo.add", "int8", "", (100, 100), -56),
        ("stablehlo.multiply", "uint32", "", (None, 0), 0),
        ("stablehlo.multiply", "float32", "", (None, 0.0), None),
        ("stablehlo.add", "int32", "", (None, 1), None),
        ("stablehlo.add", "float32", "", (1.0, 2.0), None),
        ("stablehlo.remainder", "uint32", "", (65536, 9), 7),
        ("stablehlo.remainder", "uint32", "", (1, 0), None),
        ("stablehlo.compare", "bool", "ge", (2.0, 1), True),
        ("stablehlo.compare", "bool", "other", (2.0, 1), None),
        ("stablehlo.and", "bool", "", (True, False), False),
        ("stablehlo.convert", "uint8", "", (257,), 1),
        ("stablehlo.convert", "bool", "", (3,), True),
        ("stablehlo.broadcast_in_dim", "float32", "", (3.5,), 3.5),
    ],
)
def test_folded(name: str, dtype: str, primitive: str, operands: tuple[float | None, ...], number: float | None) -> None:
    assert folded(op(name, dtype, primitive), operands) == number


def test_chosen() -> None:
    assert chosen(op("stablehlo.select", "float32"), (True, None, None)) == 1
    assert chosen(op("stablehlo.select", "float32"), (False, None, None)) == 2
    assert chosen(op("stablehlo.select", "float32"), (None, 1, 1)) is None
    assert chosen(op("stablehlo.add", "int32"), (1, 1)) is None
    assert chosen(op("stablehlo.multiply", "float32"), (1.0, None)) == 1
    assert chosen(op("stablehlo.multiply", "float32"), (None, 1)) == 0
    assert chosen(op("stablehlo.multiply", "float32"), (None, 2.0)) is None


def test_what_is_never_chosen_takes_no_memory() -> None:
    def f(x: jax.Array) -> jax.Array:
        more = jnp.sin(x) @ jnp.cos(x) @ x
        return jnp.where(jnp.full(x.shape, 3) > jnp.full(x.shape, 2), x + 1, more)

    plan = sp.auto_shard(f, mesh=MESH).plan(jax.ShapeDtypeStruct((64, 64), "float32"))
    assert plan.memory_analysis().temp_size_in_bytes == 0
