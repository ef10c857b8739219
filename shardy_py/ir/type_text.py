"""MLIR text of types, and the shape that the text of a type without a static shape implies."""

from __future__ import annotations

import functools
import re

from shardy_py.ir.types import TensorType, Type

ELEMENTS = {
    "bool": "i1",
    "bfloat16": "bf16",
    "complex64": "complex<f32>",
    "complex128": "complex<f64>",
    **{f"int{n}": f"i{n}" for n in (2, 4, 8, 16, 32, 64)},
    **{f"uint{n}": f"ui{n}" for n in (1, 2, 4, 8, 16, 32, 64)},
    **{f"float{n}": f"f{n}" for n in (16, 32, 64)},
    "float4_e2m1fn": "f4E2M1FN",
    "float6_e2m3fn": "f6E2M3FN",
    "float6_e3m2fn": "f6E3M2FN",
    "float8_e3m4": "f8E3M4",
    "float8_e4m3": "f8E4M3",
    "float8_e4m3fn": "f8E4M3FN",
    "float8_e4m3fnuz": "f8E4M3FNUZ",
    "float8_e4m3b11fnuz": "f8E4M3B11FNUZ",
    "float8_e5m2": "f8E5M2",
    "float8_e5m2fnuz": "f8E5M2FNUZ",
    "float8_e8m0fnu": "f8E8M0FNU",
}
"""Element types in JAX's spelling -> in MLIR's."""

_TENSOR = re.compile(r"tensor<(?:(?:\d+|\?|\*)x)*")

UNKNOWN = -1
"""Stands for a dimension size that is not known."""


def type_text(type_: Type) -> str:
    """The MLIR text of a type.

    Example:
        >>> type_text(TensorType((8, 16), "float32"))
        'tensor<8x16xf32>'
    """
    if isinstance(type_, TensorType):
        sizes = "".join(f"{'?' if n < 0 else n}x" for n in type_.shape)
        return f"tensor<{sizes}{ELEMENTS.get(type_.dtype, type_.dtype)}>"
    text = str(type_)
    return "!stablehlo.token" if text == "token" else text


def element_text(type_: Type) -> str:
    """The element type as MLIR writes it; the whole type where it has none."""
    if isinstance(type_, TensorType):
        return ELEMENTS.get(type_.dtype, type_.dtype)
    text = type_text(type_)
    return _TENSOR.sub("", text)[:-1] if text.startswith("tensor<") else text


def shape_of(type_: Type) -> tuple[int, ...] | None:
    """The shape that a sharding of a value must fit, None for a value without one; a tuple of one tensor counts as that tensor.

    Raises ValueError if no value of this type can have a sharding; the message says why, in Shardy's words.
    """
    return type_.shape if isinstance(type_, TensorType) else _opaque_shape(str(type_))


@functools.lru_cache(maxsize=1024)
def _opaque_shape(text: str) -> tuple[int, ...] | None:
    if text.startswith("tuple<"):
        items = _items(text[len("tuple<") : -1])
        if len(items) != 1:
            raise ValueError("ops can only have a sharding for a tuple of size 1")
        return _opaque_shape(items[0])
    if not text.startswith("tensor<"):
        return None
    if text.startswith("tensor<*"):
        raise ValueError("only ranked tensors can have a sharding")
    sizes: list[int] = []
    for part in text[len("tensor<") :].split("x"):
        if part != "?" and not part.isdigit():
            break
        sizes.append(UNKNOWN if part == "?" else int(part))
    return tuple(sizes)


def _items(text: str) -> list[str]:
    """Splits at the commas that are not inside brackets."""
    items: list[str] = []
    depth = start = 0
    for i, char in enumerate(text):
        if char in "<(":
            depth += 1
        elif char in ">)" and text[i - 1] != "-":
            depth -= 1
        elif char == "," and depth == 0:
            items.append(text[start:i].strip())
            start = i + 1
    return [*items, text[start:].strip()] if text else []
