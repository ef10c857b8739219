"""Attributes of ops read from MLIR: the attribute text that MLIR keeps is edited along with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardy_py.ir import Op
from shardy_py.ir.attribute_text import MLIR_TEXT_KEY, AttributeText, split_entries


def set_arrays(op: Op, arrays: Mapping[str, Sequence[int]]) -> None:
    """Changes attributes of an op that are arrays of integers."""
    op.attributes = with_arrays(op.attributes, arrays)


def with_arrays(attributes: Mapping[str, Any], arrays: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """The attributes of an op with new arrays of integers for some of them."""
    texts = {name: f"array<i64: {', '.join(map(str, values))}>" if values else "array<i64>" for name, values in arrays.items()}
    return with_kept(attributes, texts, {name: tuple(values) for name, values in arrays.items()})


def with_kept(attributes: Mapping[str, Any], texts: Mapping[str, str], values: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The attributes of an op with new `values`; in the text of an op read from MLIR, `texts` replace or join the entries of that name."""
    changed = {**attributes, **(values or {})}
    mlir_text = attributes.get(MLIR_TEXT_KEY)
    if mlir_text is not None:
        entries = {name: text or "unit" for name, _, text in (entry.partition(" = ") for entry in split_entries(mlir_text[1:-1]))}
        changed[MLIR_TEXT_KEY] = AttributeText(f"{{{', '.join(f'{name} = {text}' for name, text in {**entries, **texts}.items())}}}")
    return changed
