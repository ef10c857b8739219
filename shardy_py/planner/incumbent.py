"""The best choice so far, and the time that is left to better it."""

from __future__ import annotations

import time

import numpy as np

from .moves import Walk
from .pairwise import Array, Pairwise


class Clock:
    """Wall-clock time that is left.

    Args:
        seconds: How much there is.
    """

    def __init__(self, seconds: float) -> None:
        self.end = time.perf_counter() + seconds

    def left(self) -> float:
        """The seconds that are left; not negative."""
        return max(self.end - time.perf_counter(), 0.0)

    def over(self) -> bool:
        """Whether no time is left."""
        return self.left() <= 0.0


class Incumbent:
    """The best allowed choice so far.

    Args:
        model: The model, reduced; its tables without infinite entries.
        allowed: The same model with them.
        clock: The time that is left.
    """

    def __init__(self, model: Pairwise, allowed: Pairwise, clock: Clock) -> None:
        self.model = model
        self.allowed = allowed
        self.clock = clock
        self.cost = np.inf
        self.choice: Array | None = None
        self.walk = Walk(model, np.zeros(len(model.sizes), dtype=np.int64))

    def offer(self, choice: Array, extra: Array | None = None) -> float:
        """Repairs a choice to the limit, improves it by single moves, and keeps it if it is the best.

        Args:
            choice: Per node, its strategy.
            extra: Per column, multipliers times usage; the first moves take them into account.

        Returns:
            The cost of the improved choice; infinite where it is not allowed.
        """
        self.walk.reset(choice)
        if not self.walk.repair(self.clock.over):
            return np.inf
        if extra is not None:
            self.walk.improve(extra, self.clock.over)
        self.walk.improve(None, self.clock.over)
        cost = self.allowed.cost(self.walk.choice)
        if cost < self.cost:
            self.cost, self.choice = cost, self.walk.choice.copy()
        return cost
