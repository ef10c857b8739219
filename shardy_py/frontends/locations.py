"""Where in the user's code an equation was written."""

from __future__ import annotations

import functools
import re

from jax.extend.source_info_util import summarize

from shardy_py.ir import Location


def locate(location: object) -> Location | None:
    """The user's file and line of a `source_info`, with its name stack; None where all frames are JAX's own."""
    if isinstance(location, Location) or location is None:
        return location
    text = summarize(location)  # pyright: ignore[reportArgumentType]
    return _parsed(text, str(getattr(location, "name_stack", ""))) if text else None


@functools.lru_cache(maxsize=4096)
def _parsed(text: str, scope: str) -> Location | None:
    """Reads `/path/file.py:21:30 (function)`; the column may be missing."""
    match = _SUMMARY.fullmatch(text)
    return Location(match["file"], int(match["line"]), match["function"] or "", scope) if match is not None else None


_SUMMARY = re.compile(r"(?P<file>.+?):(?P<line>\d+)(?::\d+)?(?: \((?P<function>.*)\))?")
