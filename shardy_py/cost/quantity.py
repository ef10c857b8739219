"""Numbers of bytes as texts: `80GiB`, `50GB/s`."""

from __future__ import annotations

import re

from shardy_py.errors import UserError

_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40}
_QUANTITY = re.compile(r"(?P<number>\d+\.?\d*(?:e[-+]?\d+)?|\.\d+)\s*(?P<scale>[kmgt]?i?)(?:b(?:/s)?)?", re.IGNORECASE)


def quantity(text: str | float, where: str) -> float:
    """A number of bytes, or of bytes per second. Raises UserError if it is not a number of bytes.

    Args:
        text: `80e9`, `80GB`, `80GiB`, `50GB/s`; a number is returned unchanged.

    Example:
        >>> quantity("50e9", "--memory"), quantity("1.5 KiB", "--memory"), quantity("2GB/s", "--bandwidths")
        (50000000000.0, 1536.0, 2000000000.0)
    """
    if not isinstance(text, str):
        return text
    match = _QUANTITY.fullmatch(text.strip())
    scale = None if match is None else _SCALES.get(match["scale"].lower())
    if match is None or scale is None:
        raise UserError(f"{text!r} is not a number of bytes", where=where, why="it has no unit of bytes", fix="write 80e9, 80GB or 80GiB")
    return float(match["number"]) * scale
