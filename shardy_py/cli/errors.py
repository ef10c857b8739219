"""Errors of command lines, each in one line."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

from shardy_py.errors import ShardyError

_PACKAGE = str(Path(__file__).parent.parent)


class CommandError(ShardyError):
    """The command line names an object that does not exist."""


def one_line(error: BaseException) -> str:
    """An error as one line: message, place and fix; of an error of the user's code also its type and line.

    Example:
        >>> one_line(CommandError("no such mesh", where="--mesh", fix="write --mesh data=4"))
        'no such mesh (--mesh): write --mesh data=4'
    """
    if isinstance(error, ShardyError):
        text = error.what.strip()
        places = [part for part in (error.where, error.why) if part]
        text += f" ({'; '.join(places)})" if places else ""
        text += f": {error.fix}" if error.fix else ""
        return " ".join(text.split())
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fspath(error.filename)}: {error.strerror}"
    message = " ".join(str(error).split("\n\n")[0].split())
    place = _place(error)
    return f"{type(error).__name__}{f' at {place}' if place else ''}: {message}" if message else f"{type(error).__name__} at {place}"


def _place(error: BaseException) -> str:
    """The last line of the user's own code that the error passed through."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        inside = frame.filename.startswith(_PACKAGE) or "site-packages" in frame.filename or frame.filename.startswith("<")
        if not inside and "importlib" not in frame.filename and "/lib/python" not in frame.filename:
            return f"{os.path.relpath(frame.filename)}:{frame.lineno}"
    return ""
