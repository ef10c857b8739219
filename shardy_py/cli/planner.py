"""The planner of a command line: `h100`, or `hardware=v5e,memory_bytes=16GiB`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardy_py.cli.errors import CommandError

if TYPE_CHECKING:
    from shardy_py.planner.options import Planner

_FIELDS = ("hardware", "memory_bytes", "time_limit_s", "gap", "overlap", "constraints", "annotations")
"""Fields of `Planner` that have a key."""

_OLD = {"memory": "memory_bytes", "seconds": "time_limit_s"}
"""Keys of earlier versions, which scripts have."""


def planner_of(text: str) -> Planner:
    """The planner that a text describes. Raises CommandError if a key is unknown, or a value is not of its kind.

    Args:
        text: Fields of `Planner` and their values, `hardware=v5e,memory_bytes=16GiB,time_limit_s=10,gap=0.01,constraints=false`,
            `annotations=ignore`; a name alone is the hardware.
    """
    from shardy_py.planner.options import Planner

    fields: dict[str, Any] = {}
    for part in text.split(","):
        key, _, value = part.strip().partition("=") if "=" in part else ("hardware", "=", part.strip())
        key = _OLD.get(key, key)
        if key not in _FIELDS:
            keys = ", ".join(f"{each}=..." for each in _FIELDS)
            raise CommandError(f"unknown planner option {key!r}", where="--planner", fix=f"use {keys}")
        if key in fields:
            raise CommandError(f"{key} is given twice", where=f"--planner {text}", fix="give it once")
        if key in ("hardware", "memory_bytes", "annotations"):
            fields[key] = value
        else:
            fields[key] = _boolean(part, value) if key == "constraints" else _number(part, value)
    if "hardware" not in fields:
        raise CommandError("a planner without hardware", where="--planner", fix="say what to plan for, --planner h100")
    return Planner(**fields)


def _number(part: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise CommandError(f"{part!r} has no number", where="--planner") from None


def _boolean(part: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise CommandError(f"{part!r} is neither true nor false", where="--planner", fix="use constraints=false")
    return value == "true"
