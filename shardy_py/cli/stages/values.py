"""Values of options of `stages`: numbers with units, lists of them, graph files."""

from __future__ import annotations

import math
import re
from pathlib import Path

from shardy_py.cli.errors import CommandError
from shardy_py.cli.progress import progress
from shardy_py.errors import ShardyError
from shardy_py.stages.profiles.graph import ProfileGraph
from shardy_py.stages.profiles.graph_text import read_graph

_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40}
_QUANTITY = re.compile(r"(?P<number>\d+\.?\d*(?:e[-+]?\d+)?|\.\d+)\s*(?P<scale>[kmgt]?i?)(?:b(?:/s)?)?", re.IGNORECASE)


def quantity(text: str, option: str) -> float:
    """A number of bytes, or of bytes per second.

    Args:
        text: `80e9`, `80GB`, `80GiB`, `50GB/s`.
        option: The option that it stands behind, for the error.

    Raises:
        CommandError: It is none.

    Example:
        >>> quantity("50e9", "--memory"), quantity("1.5 KiB", "--memory"), quantity("2GB/s", "--bandwidths")
        (50000000000.0, 1536.0, 2000000000.0)
    """
    match = _QUANTITY.fullmatch(text.strip())
    scale = None if match is None else _SCALES.get(match["scale"].lower())
    if match is None or scale is None:
        raise CommandError(f"{text!r} is no number of bytes", where=option, fix="write 80e9, 80GB or 80GiB")
    return float(match["number"]) * scale


def quantities(text: str, option: str) -> list[float]:
    """Several of them, with commas between."""
    return [quantity(part, option) for part in text.split(",")]


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
    """The graph in a file.

    Args:
        file: Its name.

    Raises:
        CommandError: It is no graph.
        OSError: It cannot be read.
    """
    with progress(f"reading {file}"):
        try:
            text = Path(file).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise CommandError(f"{file} is no text", fix="give a graph.txt, as `shardy-py stages profile` writes") from None
        try:
            return read_graph(text)
        except ShardyError as error:
            where = ", ".join(filter(None, (file, error.where)))
            raise CommandError(error.what, where=where, why=error.why, fix=error.fix) from error
