"""Keeps Python from looking for garbage while many objects are made that stay."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

_YOUNG = 10_000
"""Objects that a region may leave to Python's own collections."""

_GROWTH = 1_000_000
"""Objects, about 100 MB, after which everything is looked at."""

_pending = 0
"""Objects that have been moved to the oldest generation since."""


@contextmanager
def no_collection() -> Generator[None]:
    """No garbage collection inside; behind the region Python collects as before, unless the user has switched that off.

    A program is a few hundred thousand small objects that live on; looking at all of them for garbage again and again would cost
    more than the passes. So they go to the oldest generation at once. Python would not notice that this has grown.
    """
    global _pending
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if gc.get_count()[0] > _YOUNG and not gc.get_freeze_count():  # what the user has frozen would be unfrozen
                _pending += gc.get_count()[0]
                gc.freeze()
                gc.unfreeze()
            if _pending > _GROWTH:
                _pending = 0
                gc.collect()
            gc.enable()
