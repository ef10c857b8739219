"""The programs that projects share, where they are there."""

from __future__ import annotations

import importlib.util
import os
import pathlib
from collections.abc import Callable
from typing import Any

ZOO = pathlib.Path(os.environ.get("SHARDY_SHARED") or pathlib.Path(__file__).resolve().parents[2] / "shared") / "programs" / "zoo.py"


def programs() -> dict[str, Callable[[], tuple[Callable[..., Any], Any]]]:
    """Name -> makes a function and its abstract arguments."""
    spec = importlib.util.spec_from_file_location("zoo", ZOO)
    assert spec is not None
    assert spec.loader is not None
    zoo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(zoo)
    return zoo.PROGS
