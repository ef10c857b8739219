"""The durations of the steps of planning."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from shardy_py.plan.progress import report

PHASES = {
    "describe": "reading annotations",
    "read": "reading the program",
    "propagate": "propagating shardings",
    "collect": "describing the plan",
    "partition": "partitioning the program",
}
"""Step -> the words for it while it runs."""


class Timings(dict[str, float]):
    """Step to seconds, in the order in which the steps ran.

    Example:
        >>> timings = Timings()
        >>> with timings.step("propagate"):
        ...     pass
        >>> list(timings)
        ['propagate']
    """

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Adds the time spent inside to the step `name`."""
        if name in PHASES:
            report(PHASES[name])
        start = time.perf_counter()
        try:
            yield
        finally:
            self[name] = self.get(name, 0.0) + time.perf_counter() - start

    @property
    def total(self) -> float:
        """Seconds of all steps together."""
        return sum(self.values())
