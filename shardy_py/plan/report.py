"""Results of analyses have a text, and data for programs."""

from __future__ import annotations

import abc
import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

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


def html_rows(rows: Iterable[Sequence[str]], cell: str = "td") -> str:
    """Rows of a table as HTML, the cells escaped."""
    start = "<th style='text-align:left'>" if cell == "th" else f"<{cell}>"
    return "".join("<tr>" + "".join(f"{start}{escape(text)}</{cell}>" for text in row) + "</tr>" for row in rows)


def html_report(title: str, figures: Iterable[tuple[str, str]], notes: Iterable[str], tables: Iterable[tuple[str, str]]) -> str:
    """The figures of an analysis as a table, its notes, and tables to be folded out."""
    rows = "".join(f"<tr><th style='text-align:left'>{escape(name.strip())}</th><td>{escape(value)}</td></tr>" for name, value in figures)
    remarks = "".join(f"<p>{escape(note)}</p>" for note in notes)
    parts = (f"<details><summary>{escape(name)}</summary><table>{body}</table></details>" for name, body in tables)
    return f"<div><b>{escape(title)}</b><table>{rows}</table>{remarks}{''.join(parts)}</div>"
