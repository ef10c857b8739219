"""Tables of entries by name, such as rules by op or passes by name, merged from the tables of families."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


def merge_tables(tables: Iterable[Mapping[str, T]]) -> dict[str, T]:
    """Merges tables; raises ValueError if a name is in two of them."""
    merged: dict[str, T] = {}
    for table in tables:
        for name, entry in table.items():
            if name in merged:
                raise ValueError(f"'{name}' is registered twice; remove it from one of the tables")
            merged[name] = entry
    return merged
