"""Texts of the attributes of an op in generic form: those it was read with, and those that passes set.

`WRITERS`, at the foot, says how the attributes are written that `frontends.mlir_text.MODELLED` takes out of the kept text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shardy_py.dialect import ManualAxes, TensorShardingPerValue
from shardy_py.dialect.collectives import AXES_OF
from shardy_py.errors import ShardyError
from shardy_py.frontends.mlir_text import PROPERTIES
from shardy_py.ir import Op
from shardy_py.ir.attribute_text import MLIR_TEXT_KEY, AttributeText, attribute_text, name_text
from shardy_py.ir.type_text import type_text

_PLACED = frozenset((MLIR_TEXT_KEY, PROPERTIES))

Writer = Callable[[Op], list[str]]


def op_entries(op: Op) -> list[str]:
    """`name = value` of all attributes of an op but the shardings of its results and its rule."""
    attributes = op.attributes
    writer = WRITERS.get(op.name)
    entries = writer(op) if writer is not None else []
    if not attributes:
        return entries
    mlir_text = attributes.get(MLIR_TEXT_KEY)
    if mlir_text is not None:
        entries.append(mlir_text[1:-1])
    elif writer is None:
        entries += [f"{name} = {_typed(value)}" for name, value in attributes.items() if "." not in name and value is not None]
    for name, value in attributes.items():
        if "." in name and name not in _PLACED and value is not None:
            entries.append(f"{name} = {attribute_text(value)}")
    return entries


def _typed(value: Any) -> str:
    """An attribute of an op that was not read from MLIR; integers are as wide as StableHLO has them."""
    if isinstance(value, bool | AttributeText):
        return attribute_text(value)
    if isinstance(value, int):
        return f"{value} : i64"
    if isinstance(value, tuple | list) and all(type(each) is int for each in value):
        return f"array<i64: {', '.join(map(str, value))}>" if value else "array<i64>"
    return attribute_text(value)


def _callee(op: Op) -> list[str]:
    return [f"callee = @{name_text(op.attributes['callee'])}"]


def _constant(op: Op) -> list[str]:
    value = op.attributes.get("value")
    if not isinstance(value, str):
        raise ShardyError(
            "the value of a constant is not held as MLIR text",
            where=op.name,
            fix="write programs that were read with from_mlir(module, keep=True)",
        )
    suffix = type_text(op.results[0].type)
    return [f"value = {value}" if value.endswith(suffix) else f"value = {value} : {suffix}"]


def _computation(op: Op) -> list[str]:
    attributes = op.attributes
    entries = [
        f"{name} = {TensorShardingPerValue(attributes[name])}"
        for name in ("in_shardings", "out_shardings")
        if attributes.get(name) is not None
    ]
    if "name" in attributes:
        entries.append(f"name = {attribute_text(str(attributes['name']))}")
    if "manual_axes" in attributes:
        entries.append(f"manual_axes = {attribute_text(ManualAxes(tuple(attributes['manual_axes'])))}")
    return entries


def _group(op: Op) -> list[str]:
    return [f"group_id = {op.attributes['group_id']} : i64"]


def _barrier(op: Op) -> list[str]:
    return [f"allowed_direction = {int(op.attributes['allowed_direction'])} : i32"]


def _collective(attribute: str) -> Writer:
    def write(op: Op) -> list[str]:
        entries = [f"{attribute} = {attribute_text(op.attributes[attribute])}"]
        if op.attributes.get("reduction_op"):
            entries.append(f"reduction_op = {op.attributes['reduction_op']} : i32")
        return entries

    return write


WRITERS: Mapping[str, Writer] = {
    "func.call": _callee,
    **{name: _collective(attribute) for name, attribute in AXES_OF.items()},
    "sdy.constant": _constant,
    "sdy.manual_computation": _computation,
    "sdy.named_computation": _computation,
    "sdy.propagation_barrier": _barrier,
    "sdy.sharding_group": _group,
    "stablehlo.constant": _constant,
}
"""Name of an op -> what writes the attributes that passes may have set."""
