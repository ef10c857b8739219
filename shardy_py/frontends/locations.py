"""Source locations of equations in the user's code."""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple

from jax.extend.source_info_util import summarize

from shardy_py.frontends._jax import spans_of
from shardy_py.frontends.cells import cell_name
from shardy_py.ir import Location


class Within:
    """The location of an inlined op and of the equation around it, at which its names begin."""

    __slots__ = ("inner", "outer")

    def __init__(self, inner: object, outer: object) -> None:
        self.inner = inner
        self.outer = outer


def locate(location: object) -> Location | None:
    """The user's file and line of a `source_info`, with its name stack; None where all frames are JAX's own.

    Inside of a library that is installed it is the line of the innermost call from outside of any, if there is one.
    """
    if isinstance(location, Location) or location is None:
        return location
    if isinstance(location, Within):
        inner, outer = locate(location.inner), locate(location.outer)
        if inner is None or outer is None or not outer.scope:
            return inner if outer is None or inner is not None else outer
        return Location(inner.file, inner.line, inner.function, f"{outer.scope}/{inner.scope}" if inner.scope else outer.scope)
    return _summarized(_Source(getattr(location, "traceback", None), getattr(location, "name_stack", None)))


def name_stack_of(location: object) -> str:
    """The name stack of an op, whether or not it has a line of the user's code; names inside of a body begin at the body."""
    if isinstance(location, Within):
        return "/".join(filter(None, (name_stack_of(location.outer), name_stack_of(location.inner))))
    return location.scope if isinstance(location, Location) else str(getattr(location, "name_stack", ""))


def spans(source_info: object) -> list[tuple[str, int, int, int, int]]:
    """File, first line and column, last line and column of the calls outside of installed packages, innermost first; columns in bytes."""
    return [span for span in spans_of(source_info) if not is_installed(span[0])]


class _Source(NamedTuple):
    """The parts of a `source_info`; equal for the equations of one line of a loop over layers, whose own are other objects."""

    traceback: Any
    name_stack: Any


@functools.lru_cache(maxsize=4096)
def _summarized(source: _Source) -> Location | None:
    """The place of a `source_info`."""
    text = summarize(source)  # pyright: ignore[reportArgumentType]
    if text and is_installed(text):
        text = next((f"{file}:{line}" for file, line, *_ in spans(source)), text)
    return _parsed(text, "" if source.name_stack is None else str(source.name_stack)) if text else None


def is_installed(file: str) -> bool:
    """Whether a file belongs to an installed package."""
    return "/site-packages/" in file or "/dist-packages/" in file


def calls(location: object) -> tuple[str, ...]:
    """`file:line` of an op and of the calls in user code around it, innermost first."""
    if location is None or isinstance(location, Location):
        return ()
    if isinstance(location, Within):
        return (*calls(location.inner), *calls(location.outer))
    return tuple(f"{cell_name(file)}:{line}" for file, line, *_ in spans_of(location))


@functools.lru_cache(maxsize=4096)
def _parsed(text: str, scope: str) -> Location | None:
    """Reads `/path/file.py:21:30 (function)`; the column may be missing."""
    match = _SUMMARY.fullmatch(text)
    return Location(cell_name(match["file"]), int(match["line"]), match["function"] or "", scope) if match is not None else None


_SUMMARY = re.compile(r"(?P<file>.+?):(?P<line>\d+)(?::\d+)?(?: \((?P<function>.*)\))?")
