"""MLIR text of the attributes and constants that a `Program` keeps."""

# Attributes hold anything, so what their lists hold has no type.
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import cmath
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

import numpy as np

from shardy_py.dialect import (
    AllToAllParam,
    AllToAllParamList,
    AxisRef,
    AxisRefList,
    DimensionSharding,
    ListOfAxisRefLists,
    ManualAxes,
    Mesh,
    OpShardingRule,
    TensorSharding,
    TensorShardingPerValue,
)
from shardy_py.ir.type_text import type_text
from shardy_py.ir.types import OpaqueType, TensorType, Type

ELIDED = "dense_resource<__elided__>"
"""Stands for a constant that is too long to read, or whose value is not in this process' memory."""

MLIR_TEXT_KEY = "mlir.kept"
"""Name under which an op that was read from MLIR keeps the attributes that no pass sets, as one text `{a = 1, b = 2}`."""

PROPERTIES = "mlir.properties"
"""Name under which an op of an unknown dialect keeps the text of its properties."""

RESOURCES = "mlir.resources"
"""Name under which a program keeps the data of constants that its text refers to by name, one text."""

_MOST_ELEMENTS = 16
_LONGEST_TEXT = 400
_WITH_PREFIX = (AllToAllParam, AllToAllParamList, AxisRefList, ListOfAxisRefLists, ManualAxes)
_DIALECT = (AxisRef, DimensionSharding, Mesh, OpShardingRule, TensorSharding, TensorShardingPerValue)
_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_$.]*\Z", re.ASCII)


class AttributeText(str):
    """An attribute kept as its MLIR text, as opposed to a string attribute."""

    __slots__ = ()


def attribute_text(value: Any) -> str:
    """The value of an attribute; an object that is no value of the dialect or of Python appears as the name of its class."""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, float):
        return _float(value, "float64")
    if isinstance(value, str):
        # A subclass marks text that is MLIR already.
        return _quoted(value) if type(value) is str else str(value)
    if isinstance(value, Mapping):
        return dictionary_text(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(attribute_text, value))}]"
    if isinstance(value, TensorType | OpaqueType):
        return type_text(value)
    if isinstance(value, _WITH_PREFIX):
        return value.text()
    return str(value) if isinstance(value, _DIALECT) else f"<{type(value).__name__}>"


def dictionary_text(attributes: Mapping[str, Any]) -> str:
    """`{a = 1, b = true}`, sorted by name, without those that are None."""
    return entries_text((name, attribute_text(value)) for name, value in attributes.items() if value is not None)


def entries_text(entries: Iterable[tuple[str, str]]) -> str:
    """As `dictionary_text`, of values that are texts already."""
    return f"{{{', '.join(f'{name_text(name)} = {value}' for name, value in sorted(entries))}}}"


def split_entries(text: str) -> Iterator[str]:
    """Splits at commas outside of brackets and strings, up to the first bracket that closes what is open around the text.

    Example:
        >>> list(split_entries('array<i64: 1, 2>, "a,b" }>'))
        ['array<i64: 1, 2>', '"a,b"']
    """
    depth = start = 0
    for token in _TOKEN.finditer(text):
        bracket = token[0]
        if bracket in _OPEN:
            depth += 1
        elif bracket in _CLOSE:
            depth -= 1
            if depth < 0:
                yield text[start : token.start()].strip()
                return
        elif bracket == "," and depth == 0:
            yield text[start : token.start()].strip()
            start = token.end()
    if text[start:].strip():
        yield text[start:].strip()


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|->|[<>(){}\[\],]')
_OPEN = frozenset("<({[")
_CLOSE = frozenset(">)}]")


def constant_text(value: Any, type_: Type) -> str:
    """`dense<...>` of a constant: a Python or NumPy number, a small NumPy array, or MLIR text; else `ELIDED`.

    Example:
        >>> constant_text(2.0, TensorType((), "float32"))
        'dense<2.000000e+00>'
    """
    if isinstance(value, str):
        text = str(value)
        suffix = f" : {type_text(type_)}"
        text = text[: -len(suffix)] if text.endswith(suffix) else text
        return text if len(text) <= _LONGEST_TEXT else ELIDED
    if isinstance(value, np.ndarray | np.generic):
        if value.size > _MOST_ELEMENTS:
            return ELIDED
        return f"dense<{_elements(np.asarray(value), type_.dtype)}>"
    if isinstance(value, bool | int | float | complex):
        return f"dense<{_number(value, type_.dtype)}>"
    return ELIDED


def _elements(array: np.ndarray[Any, Any], dtype: str) -> str:
    if array.ndim == 0:
        return _number(array.item() if array.dtype.kind in "biuc" else float(array), dtype)
    return f"[{', '.join(_elements(part, dtype) for part in array)}]"


def _number(value: Any, dtype: str) -> str:
    if dtype == "bool":
        return "true" if value else "false"
    if dtype.startswith(("int", "uint")):
        return str(int(value))
    if dtype.startswith("complex"):
        part = "float32" if dtype == "complex64" else "float64"
        return f"({_float(complex(value).real, part)},{_float(complex(value).imag, part)})"
    return _float(float(value), dtype)


def _float(value: float, dtype: str) -> str:
    """A float as MLIR prints it: six digits if these round-trip, else as many as the element type needs."""
    if not cmath.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    short = f"{value:.6e}"
    if dtype == "float64":
        return short if float(short) == value else f"{value:.17g}"
    with np.errstate(over="ignore"):
        return short if np.float32(short) == np.float32(value) else f"{np.float32(value):.9g}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def name_text(name: str) -> str:
    """A name as MLIR writes it, in quotes where it is no identifier."""
    return name if _BARE.match(name) else _quoted(name)
