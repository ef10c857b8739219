"""Results of analyses have a text, and data for programs."""

from __future__ import annotations

import abc
import json
from typing import Any


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
