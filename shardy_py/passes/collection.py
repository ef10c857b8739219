"""Keeps Python from looking for garbage while many objects are made that stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """No garbage collection inside.

    A program is a few hundred thousand small objects that live on; looking at all of them for garbage again and again would cost
    more than the passes. Freezing and unfreezing moves them to the oldest generation, where a collection looks at them seldom.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()
