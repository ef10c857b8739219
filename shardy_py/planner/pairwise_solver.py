"""The search for the best choice of a pairwise model: reduction, then one exact program, or restricted ones with message passing."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from .dual import Messages, finite
from .master import Program, Relaxation, integer, peaks, program, relax
from .moves import Walk, least_usage
from .pairwise import Array, Pairwise
from .reduce import Impossible, Reduced, reduced

# Entries of tables up to which the whole model goes into one program.
SMALL = 150_000
# Where cost and bound are closer than this share of the cost, a choice counts as optimal.
GAP = 1e-6
# Costs are scaled so that the bound has this size: the tolerances of HiGHS are absolute, 1e-7.
SCALE = 1e4


@dataclass(frozen=True, eq=False)
class Answer:
    """A choice and the bound on every other.

    Attributes:
        choice: Per node, its strategy; None where no choice was found.
        cost: Its cost; infinite where there is none.
        bound: No allowed choice costs less.
        status: "optimal", "time_limit", or "infeasible" where no choice is allowed.
    """

    choice: Array | None
    cost: float
    bound: float
    status: str


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
        """Brings a choice under the limit, improves it by single moves, and keeps it where it is the best.

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


def solve(model: Pairwise, seconds: float) -> Answer:
    """The best choice that can be found in some seconds of wall-clock time.

    Args:
        model: The model.
        seconds: The time; the answer may come a few seconds late on a busy machine.

    Returns:
        The choice, its cost and a bound.
    """
    clock = Clock(seconds)
    try:
        small = reduced(model)
    except Impossible:
        return Answer(None, np.inf, np.inf, "infeasible")
    incumbent = Incumbent(finite(small.model), small.model, clock)
    incumbent.offer(least_usage(incumbent.model))
    if not len(small.model.sizes):
        bound, proven = 0.0, True
    elif len(small.model.tables) <= SMALL:
        bound, proven = exact(small.model, incumbent, clock)
    else:
        bound, proven = restricted(small.model, incumbent, clock)
    return _answer(model, small, incumbent, bound, proven)


def _answer(model: Pairwise, small: Reduced, incumbent: Incumbent, bound: float, proven: bool) -> Answer:
    if incumbent.choice is None:
        return Answer(None, np.inf, np.inf if proven else bound + small.constant, "infeasible" if proven else "time_limit")
    choice = small.expand(incumbent.choice)
    cost = model.cost(choice)
    bound = min(bound + small.constant, cost)
    return Answer(choice, cost, bound, "optimal" if cost - bound <= GAP * abs(cost) else "time_limit")


def scale_of(cost: float) -> float:
    """What costs are divided by in a program whose optimum is about this."""
    return max(abs(cost), 1.0) / SCALE if np.isfinite(cost) else 1.0


def exact(model: Pairwise, incumbent: Incumbent, clock: Clock) -> tuple[float, bool]:
    """All columns in one program: its relaxation, the columns that this leaves, and an integer program over these.

    Returns:
        The bound, and whether it is final: no allowed choice costs less, or there is none.
    """
    messages = Messages(incumbent.model)
    state = messages.run(incumbent.model.costs, 10)
    bound = state.value
    part = program(model, np.ones(len(model.costs), dtype=bool), scale_of(max(abs(state.value), 1.0)))
    epochs = peaks(model.usage(state.choice), model.limit, set())
    while not clock.over():
        relaxation = relax(model, part, epochs, clock.left())
        if relaxation is None:
            break
        bound = max(bound, relaxation.value)
        incumbent.offer(rounded(model, relaxation.shares))
        extra = model.rows(epochs).T @ relaxation.multipliers if len(epochs) else np.zeros(len(model.costs))
        incumbent.offer(messages.run(incumbent.model.costs + extra, 3).choice, extra)
        more = peaks(np.cumsum(model.base + model.events @ relaxation.shares), model.limit, set(epochs.tolist()))
        if not len(more):
            part = without(model, part, relaxation, incumbent.cost)
            break
        epochs = np.concatenate([epochs, more])
    while not clock.over():
        choice, least, finished = integer(model, part, epochs, clock.left(), GAP / 2)
        bound = max(bound, min(least, incumbent.cost))
        if choice is None:
            return (incumbent.cost if finished else bound), finished
        more = peaks(model.usage(choice), model.limit, set(epochs.tolist()))
        if len(more):
            epochs = np.concatenate([epochs, more])
            incumbent.offer(choice)
            continue
        incumbent.offer(choice)
        if finished:
            return bound, True
        break
    return bound, False


def without(model: Pairwise, part: Program, relaxation: Relaxation, cost: float) -> Program:
    """The program without columns and entries that no choice cheaper than a known one can use."""
    if not np.isfinite(cost):
        return part
    possible = relaxation.reduced <= cost - relaxation.value + 1e-6 * abs(cost)
    kept = np.zeros(len(model.costs), dtype=bool)
    kept[part.columns[possible[: len(part.columns)]]] = True
    entries = np.zeros(len(model.tables), dtype=bool)
    entries[part.entries[possible[len(part.columns) :]]] = True
    return program(model, kept, part.scale, entries)


def rounded(model: Pairwise, shares: Array) -> Array:
    """Per node, the strategy with the largest share, the first of equal ones."""
    order = np.lexsort((-shares, model.owners))
    return order[model.columns[:-1]] - model.columns[:-1]


def restricted(model: Pairwise, incumbent: Incumbent, clock: Clock) -> tuple[float, bool]:
    """Programs over some columns, chosen by message passing at the multipliers of the one before."""
    messages = Messages(incumbent.model)
    state = messages.run(incumbent.model.costs, 10)
    return state.value, False
