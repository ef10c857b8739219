"""Results of analyses have a text, and data for programs."""

from __future__ import annotations

import abc
import json
from collections.abc import Container, Iterable, Sequence
from typing import Any

from shardy_py.dialect.format import aligned

LISTED = 12
"""Rows of a table, unless another limit is passed."""


class Report(abc.ABC):
    """An analysis with a text for `print` and a JSON form."""

    __slots__ = ()

    @abc.abstractmethod
    def as_text(self, *args: Any, **options: Any) -> str:
        """The result as text."""

    @abc.abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The result as dicts, lists, strings and numbers, with a version."""

    def to_json(self, indent: int | None = None) -> str:
        """`to_dict` as JSON text.

        Args:
            indent: Spaces per level; None for one line.
        """
        return json.dumps(self.to_dict(), indent=indent)

    def __str__(self) -> str:
        return self.as_text()

    def __repr__(self) -> str:
        return self.as_text()


def table(title: str, rows: Iterable[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """The lines of a table: its title, and below it the rows with their columns aligned, some on the right; none without rows."""
    lines = [f"  {line}" for line in aligned(list(rows), right)]
    return [title, *lines] if lines else []
