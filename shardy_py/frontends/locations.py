"""Where in the user's code an equation was written."""

from __future__ import annotations

import functools

from jax.extend.source_info_util import summarize

from shardy_py.ir import Location


@functools.lru_cache(maxsize=4096)
def _summary(text: str, scope: str) -> Location:
    place, _, function = text.partition(" ")
    file, line, *_ = (*place.rsplit(":", 2), "0") if place.count(":") >= 2 else (place, "0")
    return Location(file, int(line) if line.isdigit() else 0, function.strip("()"), scope)


def locate(location: object) -> Location | None:
    """The user's file and line of a `source_info`, with its name stack."""
    if isinstance(location, Location) or location is None:
        return location
    text = summarize(location)  # pyright: ignore[reportArgumentType]
    return _summary(text, str(getattr(location, "name_stack", "")))
