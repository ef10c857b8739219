"""The planner of a command line: `hardware=v5e,memory=16GiB`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardy_py.cli.errors import CommandError
from shardy_py.cli.quantity import quantity

if TYPE_CHECKING:
    from shardy_py.planner.options import Planner

_FIELDS = {
    "hardware": "hardware",
    "memory": "memory_bytes",
    "seconds": "time_limit_s",
    "gap": "gap",
    "overlap": "overlap",
    "constraints": "constraints",
}
"""Key on the command line -> field of `Planner`."""


def planner_of(text: str) -> Planner:
    """The planner that a text describes.

    Args:
        text: Keys and values, `hardware=v5e,memory=16GiB,seconds=10,gap=0.01,constraints=false`.

    Raises:
        CommandError: A key is unknown, or a value is none of its kind.
    """
    from shardy_py.planner.options import Planner

    fields: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals or key not in _FIELDS:
            keys = ", ".join(f"{each}=..." for each in _FIELDS)
            raise CommandError(f"{part!r} says nothing about a planner", where="--planner", fix=f"use {keys}")
        if key == "hardware":
            fields[key] = value
        elif key == "constraints":
            fields[key] = _boolean(part, value)
        elif key == "memory":
            fields[_FIELDS[key]] = quantity(value, "--planner")
        else:
            fields[_FIELDS[key]] = _number(part, value)
    if "hardware" not in fields:
        raise CommandError("a planner without hardware", where="--planner", fix="say what to plan for, --planner hardware=h100")
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
