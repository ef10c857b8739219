"""Progress of slow work on standard error."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from shardy_py.plan.progress import observed

AFTER = 1.0
"""Seconds after which one is told."""


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Shows work that takes longer than `AFTER`: a line that moves on a terminal, a plain one elsewhere."""
    console = Console(file=sys.stderr)
    status = console.status(f"{what} ...") if console.is_terminal else None

    def tell() -> None:
        if status is not None:
            status.start()
        else:
            sys.stderr.write(f"shardy-py: {what} ...\n")
            sys.stderr.flush()

    timer = threading.Timer(AFTER, tell)
    timer.daemon = True
    timer.start()
    try:
        with observed(what, False if status is None else lambda now: status.update(f"{what}: {now.state}")):
            yield
    finally:
        timer.cancel()
        timer.join()
        if status is not None:
            status.stop()
