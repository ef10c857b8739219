"""Values of options of `stages`: numbers with units, lists of them, graph files."""

from __future__ import annotations

import math
from pathlib import Path

from shardy_py.cli.errors import CommandError
from shardy_py.cli.progress import progress
from shardy_py.errors import ShardyError
from shardy_py.pipedream.profiles.graph import ProfileGraph, read_graph


def counts(text: str, option: str) -> list[int]:
    """Numbers of things, with commas between.

    Example:
        >>> counts("4,2", "--machines")
        [4, 2]
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and part.isascii() and len(part) < 10 for part in parts):
        raise CommandError(f"{text!r} is no list of whole numbers", where=option, fix=f"write {option} 4,2")
    return [int(part) for part in parts]


def times(text: str | None, option: str) -> float | list[float] | None:
    """One time, or one per stage with commas between; None stays None.

    Example:
        >>> times("2", "--forward"), times("1,2.5", "--forward")
        (2.0, [1.0, 2.5])
    """
    if text is None:
        return None
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise CommandError(f"{text!r} is no time", where=option, fix=f"write {option} 1.5, or one number per stage: 1,2,1.5") from None
    if not all(math.isfinite(value) and value >= 0 for value in numbers):
        raise CommandError(f"{text!r} holds what is no time", where=option, why="a time is finite and not negative")
    return numbers[0] if len(numbers) == 1 else numbers


def graph_of(file: str) -> ProfileGraph:
    """The graph in a file. Raises CommandError if it is not a graph, OSError if it cannot be read."""
    with progress(f"reading {file}"):
        try:
            text = Path(file).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise CommandError(f"{file} is no text", fix="give a graph.txt, as `shardy-py pipedream profile` writes") from None
        try:
            return read_graph(text)
        except ShardyError as error:
            where = ", ".join(filter(None, (file, error.where)))
            raise CommandError(error.what, where=where, why=error.why, fix=error.fix) from error
