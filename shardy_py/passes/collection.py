"""Keeps Python from looking for garbage while many objects are made that stay."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager

YOUNG = 10_000
"""Objects that are made, beside other threads, before Python looks at them: few enough for what those threads drop to stay small."""

_NEVER = 1_000_000
"""Looks at younger objects before older ones are looked at."""

_GROWTH = 1_000_000
"""Objects, about 100 MB, that may be added to twice those that were left by the last full collection before there is another one."""


class _Regions:
    """The regions that are entered, of all threads: Python looks for garbage in all of them at once."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a collection may call what enters a region
        self._entered = 0
        self._thresholds: tuple[int, int, int] | None = None
        self._added = 0
        self._most = sys.maxsize

    def enter(self) -> None:
        """The first of them changes Python's settings, unless the user has switched collection off."""
        with self._lock:
            self._entered += 1
            if self._entered > 1 or not gc.isenabled() or not gc.get_threshold()[0]:
                return
            gc.collect(1)  # cheap, and what the user has dropped does not grow old with what is made here
            self._thresholds = gc.get_threshold()
            if len(sys._current_frames()) == 1:  # pyright: ignore[reportPrivateUsage] - documented
                gc.disable()
            else:
                gc.set_threshold(YOUNG, _NEVER, _NEVER)

    def leave(self) -> None:
        """The last of them puts the settings back."""
        with self._lock:
            self._entered -= 1
            if self._entered or self._thresholds is None:
                return
            thresholds, self._thresholds = self._thresholds, None
            young, looks, _ = gc.get_count()
            added = young + looks * YOUNG
            if added > YOUNG:
                self._grow_old(added)
            gc.set_threshold(*thresholds)
            gc.enable()

    def _grow_old(self, added: int) -> None:
        """Moves new objects to the oldest generation, in place of looking at all of them twice, and collects that where it has grown.

        Python would not: moving sets the counts to zero by which it finds the time for a full collection.
        """
        if gc.get_freeze_count():
            return  # the user's, which unfreezing would free
        self._added += added
        gc.freeze()
        # Counting goes through all objects, so it waits until there may be enough of them for a full collection.
        count = gc.get_freeze_count() if self._added > _GROWTH else None
        gc.unfreeze()
        if count is None:
            return
        self._added = 0
        if count > self._most:
            gc.collect()
            gc.freeze()
            count = gc.get_freeze_count()
            gc.unfreeze()
            self._most = sys.maxsize
        self._most = min(self._most, 2 * count + _GROWTH)


_REGIONS = _Regions()


@contextmanager
def no_collection() -> Generator[None]:
    """Little garbage collection inside: none where no other thread runs Python, else of the youngest objects.

    A program is a few hundred thousand small objects that live on; looking at all of them for garbage again and again would cost
    more than the passes. Behind the region Python collects as before, by the user's settings.
    """
    _REGIONS.enter()
    try:
        yield
    finally:
        _REGIONS.leave()
