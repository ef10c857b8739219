"""Attributes of ops that were read from MLIR: they hold the text of all that MLIR knows, which changes with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardy_py.ir import Op
from shardy_py.ir.attribute_text import KEPT, AttributeText


def set_arrays(op: Op, arrays: Mapping[str, Sequence[int]]) -> None:
    """Changes attributes of an op that are arrays of integers."""
    op.attributes = with_arrays(op.attributes, arrays)


def with_arrays(attributes: Mapping[str, Any], arrays: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Attributes of an op in which some are other arrays of integers."""
    texts = {name: f"array<i64: {', '.join(map(str, values))}>" if values else "array<i64>" for name, values in arrays.items()}
    return with_kept(attributes, texts, {name: tuple(values) for name, values in arrays.items()})


def with_kept(attributes: Mapping[str, Any], texts: Mapping[str, str], values: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Attributes of an op in which some have other values.

    Args:
        attributes: Of the op; where it was read from MLIR, they hold the text of all that MLIR knows.
        texts: Name in MLIR -> text; entries that are not there yet are added.
        values: Name in the program -> value.
    """
    changed = {**attributes, **(values or {})}
    kept = attributes.get(KEPT)
    if kept is not None:
        entries = dict(_entries(kept[1:-1]))
        entries.update(texts)
        changed[KEPT] = AttributeText(f"{{{', '.join(f'{name} = {text}' for name, text in entries.items())}}}")
    return changed


def _entries(text: str) -> list[tuple[str, str]]:
    """Splits `a = 1, b = [2, 3]` at the commas outside of brackets and strings."""
    found: list[str] = []
    depth = start = 0
    quoted = False
    for i, char in enumerate(text):
        if char == '"' and text[i - 1 : i] != "\\":
            quoted = not quoted
        elif quoted:
            continue
        elif char in "<({[":
            depth += 1
        elif char in ")}]" or (char == ">" and text[i - 1 : i] != "-"):
            depth -= 1
        elif char == "," and depth == 0:
            found.append(text[start:i])
            start = i + 1
    found.append(text[start:])
    pairs = [entry.strip().partition(" = ") for entry in found if entry.strip()]
    return [(name, value or "unit") for name, _, value in pairs]
