"""Progress of slow work on standard error."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

AFTER = 1.0
"""Seconds after which one is told."""


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Tells of work that takes longer than `AFTER`; planning shows on a terminal how far it is."""

    def tell() -> None:
        sys.stderr.write(f"shardy-py: {what} ...\n")
        sys.stderr.flush()

    timer = threading.Timer(AFTER, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
