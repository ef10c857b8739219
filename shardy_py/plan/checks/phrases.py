"""Phrases that the messages of several checks have in common."""

from __future__ import annotations

from shardy_py.plan.values import PlannedValue


def annotation_of(value: PlannedValue) -> str:
    """The arguments of `auto_shard` that can say how an input or an output is cut."""
    return "in_shardings or rules" if value.kind == "input" else "out_shardings"


def more_text(count: int, which: str) -> str:
    """The end of a message about the first of several values; empty for a single one.

    Example:
        >>> more_text(3, "of this line"), more_text(1, "like it")
        ('; 2 more of this line', '')
    """
    return f"; {count - 1} more {which}" if count > 1 else ""
