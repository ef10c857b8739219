"""Attributes of ops as JSON: numbers, texts, lists, and values of the dialect; never code.

A value that JSON cannot express is an object with one member, named after its kind: `{"float": "nan"}`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import numpy as np

from shardy_py.dialect import (
    AllToAllParamList,
    AxisRef,
    AxisRefList,
    ListOfAxisRefLists,
    ManualAxes,
    Mesh,
    OpShardingRule,
    PropagationDirection,
    TensorSharding,
    TensorShardingPerValue,
)
from shardy_py.ir import TOKEN, OpaqueType, TensorType, Type
from shardy_py.ir.attribute_text import ELIDED, AttributeText, constant_text
from shardy_py.plan.store.codec import LIMIT, StoreError, described, integer, items, members, text

DIALECT: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        *(AllToAllParamList, AxisRef, AxisRefList, ListOfAxisRefLists, ManualAxes),
        *(Mesh, OpShardingRule, TensorSharding, TensorShardingPerValue),
    )
}
"""Values of the dialect, kept as their SDY text."""

DEEPEST = 32
"""Limit of lists in lists."""

_DIRECTIONS = PropagationDirection.__members__


class Elided(AttributeText):
    """The value of a large constant, which is not stored."""

    __slots__ = ("number",)

    number: int

    def __new__(cls, number: int) -> Elided:
        """The mark of array `number`."""
        elided = super().__new__(cls, ELIDED)
        elided.number = number
        return elided


def write_type(type_: Type) -> Any:
    """A type as JSON: `["float32", [8, 16]]`, or the text of an opaque one."""
    return [type_.dtype, list(type_.shape)] if isinstance(type_, TensorType) else type_.text


def read_type(data: Any) -> Type:
    """The inverse of `write_type`; raises StoreError for any other data."""
    if type(data) is str:
        return TOKEN if data == TOKEN.text else OpaqueType(data)
    dtype, shape = items(data, 2)
    type_ = TensorType(tuple(map(integer, items(shape))), text(dtype))
    if type_.size >= LIMIT:
        raise StoreError(f"a type of {described(type_.size)} elements", why="no array has as many")
    return type_


def stored_constant(value: Any, type_: Type, number: Callable[[Any], int]) -> Any:
    """The value of a constant as a file has it: a number, the MLIR text of a small array, or the number of a large one, left out."""
    if getattr(value, "shape", None) == ():
        try:
            return value.item() if not isinstance(value, np.ndarray | np.generic) or value.dtype.kind in "biuc" else float(value)
        except (TypeError, ValueError, RuntimeError, AttributeError):  # an array of JAX whose value is not to be had
            return Elided(number(value))
    if value is None or isinstance(value, bool | int | float | complex | str):
        return value
    written = constant_text(value, type_)
    return Elided(number(value)) if written == ELIDED else AttributeText(written)


def write(value: Any) -> Any:
    """Writes an attribute as JSON data; a value that is neither Python's nor the dialect's as the name of its class, which it prints as."""
    if value is None or type(value) in (bool, str):
        return value
    if isinstance(value, Enum):
        return {"direction" if isinstance(value, PropagationDirection) else "mlir": value.name}
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value) if abs(int(value)) < LIMIT else {"int": str(int(value))}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": str(float(value))}
    if isinstance(value, tuple):
        return [write(item) for item in value]
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, complex):
        return {"complex": [write(value.real), write(value.imag)]}
    if isinstance(value, Elided):
        return {"elided": value.number}
    if isinstance(value, list):
        return {"list": [write(item) for item in value]}
    if isinstance(value, Mapping):
        return {"dict": {str(key): write(item) for key, item in value.items()}}
    if isinstance(value, TensorType | OpaqueType):
        return {"type": write_type(value)}
    name = type(value).__name__
    if type(value) is DIALECT.get(name):
        return {"sdy": [name, str(value)]}
    return {"mlir": str(value) if isinstance(value, str) else f"<{name}>"}


def read(data: Any, depth: int = 0) -> Any:
    """The inverse of `write`, at a depth of nested lists; raises StoreError for any other data."""
    if depth > DEEPEST:
        raise StoreError(f"an attribute of more than {DEEPEST} lists in lists")
    if data is None or type(data) in (bool, str, float):
        return data
    if type(data) is int:
        return integer(data, -LIMIT)
    if type(data) is list:
        return tuple(read(item, depth + 1) for item in data)
    if type(data) is dict and len(data) == 1:
        ((tag, content),) = data.items()
        if tag in _TAGGED:
            return _TAGGED[tag](content, depth + 1)
    raise StoreError(f"expected an attribute, got {described(data)}", fix=f"an object has one member: {', '.join(_TAGGED)}")


def read_attributes(data: Any, depth: int = 0) -> dict[str, Any]:
    """Attributes by name; raises StoreError for data that are none."""
    return {name: read(value, depth) for name, value in members(data, optional=None).items()}


def _direction(data: Any, depth: int) -> PropagationDirection:
    if text(data) not in _DIRECTIONS:
        raise StoreError(f"there is no direction {described(data)}", fix=f"one of {', '.join(_DIRECTIONS)}")
    return _DIRECTIONS[data]


def _sdy(data: Any, depth: int) -> Any:
    name, content = map(text, items(data, 2))
    if name not in DIALECT:
        raise StoreError(f"the dialect has no {described(name)}", fix=f"one of {', '.join(DIALECT)}")
    return DIALECT[name].parse(content)


def _float(data: Any, depth: int) -> float:
    if data not in ("nan", "inf", "-inf"):
        raise StoreError(f"expected nan, inf or -inf, got {described(data)}")
    return float(data)


def _int(data: Any, depth: int) -> int:
    digits = text(data)
    if len(digits) > 400 or not digits.removeprefix("-").isdecimal() or not digits.isascii():
        raise StoreError(f"expected a whole number of at most 400 digits, got {described(data)}")
    return int(digits)


def _complex(data: Any, depth: int) -> complex:
    parts = [read(part, depth) for part in items(data, 2)]
    if not all(type(part) in (int, float) for part in parts):
        raise StoreError(f"expected two numbers, got {described(data)}")
    return complex(*parts)


_TAGGED: dict[str, Callable[[Any, int], Any]] = {
    "complex": _complex,
    "dict": read_attributes,
    "direction": _direction,
    "elided": lambda data, depth: Elided(integer(data)),
    "float": _float,
    "int": _int,
    "list": lambda data, depth: [read(item, depth) for item in items(data)],
    "mlir": lambda data, depth: AttributeText(text(data)),
    "sdy": _sdy,
    "type": lambda data, depth: read_type(data),
}
