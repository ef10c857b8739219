"""The search for the best choice of a pairwise model: reduction, then one exact program, or restricted ones with message passing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .dual import Messages, finite
from .incumbent import Clock, Incumbent
from .master import integer, peaks, program, relax, rounded, without
from .moves import least_usage
from .pairwise import Array, Pairwise
from .reduce import Impossible, Reduced, reduced
from .restricted import Restricted

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
        bound, proven = Restricted(incumbent.model, incumbent, clock).run(), False
    return _answer(model, small, incumbent, bound, proven)


def _answer(model: Pairwise, small: Reduced, incumbent: Incumbent, bound: float, proven: bool) -> Answer:
    if incumbent.choice is None:
        return Answer(None, np.inf, np.inf if proven else bound + small.constant, "infeasible" if proven else "time_limit")
    choice = small.expand(incumbent.choice)
    cost = model.cost(choice)
    bound = min(bound + small.constant, cost)
    return Answer(choice, cost, bound, "optimal" if cost - bound <= GAP * abs(cost) else "time_limit")


def scale_of(cost: float) -> float:
    """The divisor of costs in a program whose optimum is about this."""
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
