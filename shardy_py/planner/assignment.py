"""Solves problems of programs: reduction, messages, and branch and bound on what these leave open. Finds the duals of a certificate.

Wall-clock time is looked at between steps only. Within a step work is counted (rounds, nodes), and the time left is a backstop. So two
runs give the same answer unless time ran out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import relaxation
from .certificate import Duals, bound_and_rest
from .elimination import Reduced, reduced
from .evaluation import descend
from .problem import Limit, Problem, Solution, cost_of_entries, entries, weighed
from .relaxation import Ascent

MESSAGE_ROUNDS = 5
"""Rounds of messages between two looks at what they rule out: building the smaller problem takes as long as three."""

NARROWER = 0.7
"""A problem with at most this part of its entries is a new one, whose messages are shorter; any other goes to branch and bound."""

RISING = 0.05
"""The part of the way that is left to the bound that is enough by which rounds of messages raise it to be worth more of them."""

NODES = 200_000
"""Of one branch and bound."""

ROUNDING = 1e-9
"""Of sums of costs, in parts of them."""

COLUMNS = 15_000
"""Of a linear program that takes a second or two."""

STAGES = 8
"""The most duals, each of a smaller problem than those before."""

FORBIDDEN = 1e30
"""The price of a strategy that no table has."""


Array = Any

Watch = Callable[[float, float], None]
"""Is told the cost of the best assignment, infinite while there is none, and the bound, whenever one of them has changed."""


def _unwatched(cost: float, bound: float) -> None:
    pass


def solve(
    problem: Problem,
    starts: Sequence[Sequence[int]] = (),
    *,
    gap: float = 0.0,
    seconds: float = 60.0,
    watch: Watch = _unwatched,
) -> Solution:
    """The best assignment of a problem that is found, and a bound on every other.

    Args:
        starts: Assignments to begin at; the solution is never worse than one of them that is allowed.
        gap: The search ends when (cost - bound) / cost is at most this.

    Returns:
        The solution. Its cost is infinite where nothing that keeps all limits was found.
    """
    solver = _Solver(problem, gap, time.monotonic() + seconds, watch)
    small = reduced(problem)
    if not small.feasible:
        return solver.solution(exhausted=True)
    solver.stages.append(small)
    solver.prove(sum(float(table.costs.min()) for table in small.problem.tables))
    starts = starts or [(0,) * len(problem.strategies)]
    for start in starts:
        solver.offer(start)
    for start in starts:
        solver.descend(start)
        if solver.late:
            break
    return solver.solution(exhausted=solver.is_exhausted())


def least(problem: Problem, limit: Limit, starts: Sequence[Sequence[int]] = (), *, seconds: float = 60.0, gap: float = 0.0) -> Solution:
    """The assignment whose sum of a limit's weights is the least, and a bound on this sum for every other."""
    return solve(weighed(problem, limit), starts, gap=gap, seconds=seconds)


@dataclass
class _Solver:
    problem: Problem
    gap: float
    end: float
    watch: Watch
    best: tuple[int, ...] | None = None
    best_cost: float = math.inf
    nearest: tuple[int, ...] = ()
    bound: float = 0.0
    stages: list[Reduced] = field(default_factory=list[Reduced])

    # ------------------------------------------------------------------ the whole search

    def is_exhausted(self) -> bool:
        """Searches by messages, then by branch and bound; returns whether nothing better than the best exists."""
        while not self.close and not self.late:
            if not self.stages[-1].feasible:
                return True
            if not self.small.tables:
                self.offer(self.completed(self.current))
                return True
            ascent, keep, is_rising = Ascent(relaxation.program(self.small), 2 * self.scale), np.ones(1), True
            while is_rising and keep.mean() > NARROWER and not (self.close or self.late):
                before = ascent.bound
                ascent.run(rounds=MESSAGE_ROUNDS, enough=self.target, end=self.end)
                bound, slacks = ascent.slacks()
                self.prove(bound)
                keep = bound + slacks <= self.most
                is_rising = bound - before > RISING * (self.target - before)
            if self.close or self.late:
                return False
            stage = reduced(relaxation.narrowed(self.small, ascent.of, keep))
            if keep.mean() > NARROWER:
                return self.branch(stage)
            self.stages.append(stage)
        return False

    def branch(self, stage: Reduced) -> bool:
        """Branch and bound on what may cost less than the best assignment; returns whether nothing better exists."""
        for presolve in (True, False):  # HiGHS's presolve may lose the best solution
            if not stage.feasible:
                return not self.close
            if not stage.problem.tables:
                self.offer(self.completed(stage.completed(self.current)))
                self.prove(min(stage.cost, self.most))
                return not self.close
            program = relaxation.program(stage.problem)
            room = self.gap * self.best_cost if self.best is not None else 0.0
            gap = min(0.9 * room / self.scale, 0.5)
            searched = relaxation.search(program, self.scale, gap=gap, nodes=NODES, seconds=self.left, presolve=presolve)
            if not searched.feasible:
                return not self.close
            self.prove(min(searched.bound + stage.cost, self.most))
            if searched.values is not None:
                start = stage.completed(relaxation.rounded(program, searched.values, self.current))
                self.offer(self.completed(start))
                if not self.close:
                    self.descend(start)
            if self.close or self.late or not searched.finished:
                return False
        return False

    # ------------------------------------------------------------------ assignments and bounds

    def offer(self, assignment: Sequence[int]) -> None:
        """Keeps an assignment of the whole problem if it is allowed and the best so far."""
        chosen = entries(self.problem, assignment)
        if -1 in chosen or not self.problem.keeps(chosen):
            return
        value = cost_of_entries(self.problem, chosen)
        if value < self.best_cost:
            self.best, self.best_cost = tuple(map(int, assignment)), value
            self.watch(self.best_cost, self.bound)

    def descend(self, start: Sequence[int]) -> None:
        """Offers what local moves lead to from an assignment of the smaller problem."""
        reached = self.completed(descend(self.stages[-1].evaluation, start).assignment.tolist())
        if self.best is None:
            self.nearest = reached
        self.offer(reached)

    def completed(self, assignment: Sequence[int]) -> tuple[int, ...]:
        """The assignment of the whole problem."""
        result = tuple(assignment)
        for stage in reversed(self.stages):
            result = stage.completed(result)
        return result

    def prove(self, bound: float) -> None:
        """Raises the bound by one of the smaller problem, which lacks only what costs more than the best."""
        self.bound = max(self.bound, min(bound + self.constant, self.best_cost))
        self.watch(self.best_cost, self.bound)

    def solution(self, *, exhausted: bool) -> Solution:
        """The best assignment; nothing better exists where the search is exhausted."""
        ended = "time_limit" if self.late else "work_limit"
        if self.best is None:
            none = self.nearest or (0,) * len(self.problem.strategies)
            bound, status = (math.inf, "infeasible") if exhausted else (self.bound, ended)
            return Solution(none, math.inf, bound, status)
        bound = self.best_cost if exhausted else min(self.bound, self.best_cost)
        return Solution(self.best, self.best_cost, bound, "optimal" if exhausted or self.close else ended)

    # ------------------------------------------------------------------ figures

    @property
    def late(self) -> bool:
        return time.monotonic() >= self.end

    @property
    def left(self) -> float:
        return max(self.end - time.monotonic(), 0.0)

    @property
    def close(self) -> bool:
        """Whether the best assignment and the bound are as close as was required."""
        return self.best is not None and self.best_cost - self.bound <= self.gap * self.best_cost + ROUNDING * abs(self.best_cost)

    @property
    def current(self) -> tuple[int, ...]:
        """The best assignment; one that breaks limits while none keeps them."""
        return self.nearest if self.best is None else self.best

    @property
    def constant(self) -> float:
        return sum(stage.cost for stage in self.stages)

    @property
    def small(self) -> Problem:
        """The problem that is left."""
        return self.stages[-1].problem

    @property
    def most(self) -> float:
        """The most that assignments of the smaller problem may cost."""
        return self.best_cost - self.constant + ROUNDING * self.scale

    @property
    def target(self) -> float:
        """The bound of the smaller problem that is enough."""
        return math.inf if self.best is None else (1 - self.gap) * self.best_cost - self.constant

    @property
    def scale(self) -> float:
        """About what an assignment of the smaller problem costs."""
        largest = self.stages[-1].evaluation.penalty / 10
        rest = self.best_cost - self.constant
        return rest if 1e-6 * largest < rest < largest else largest


def stages_of(problem: Problem, most: float) -> tuple[Duals, ...]:
    """Duals of a problem, and then of what is left where it costs at most so much."""
    stages: list[Duals] = []
    left = most
    for _ in range(STAGES):
        small = reduced(problem)
        left -= small.cost
        stages.append(_duals(small.problem, left) if small.feasible else Duals(np.zeros((0, 2), np.int64), *[np.zeros(0)] * 3))
        if not small.feasible or not small.problem.tables:
            break
        _, problem = bound_and_rest(small.problem, stages[-1], left + ROUNDING * abs(most))
        if sum(len(t.costs) for t in problem.tables) > NARROWER * sum(len(t.costs) for t in small.problem.tables):
            break
    return tuple(stages)


def _duals(problem: Problem, most: float) -> Duals:
    """Duals by messages, and by the linear program where it is small, in seven digits, which are enough."""
    of = relaxation.program(problem)
    ascent = Ascent(of, 2 * max(most, 0.0))
    ascent.run(rounds=MESSAGE_ROUNDS, enough=most, end=float("inf"))
    equal, of_moves, of_limits = ascent.equal, ascent.shares, np.zeros(len(problem.limits))
    if 0 < len(of.costs) <= COLUMNS and ascent.bound < most:
        equal, of_moves, of_limits = relaxation.linear_duals(of, max(most, 0.0)) or (equal, of_moves, of_limits)
    numbers = {start: n for n, start in enumerate(of.starts.tolist()[:-1])}
    links: list[tuple[int, int]] = []
    messages: list[Array] = [np.zeros(0)]
    for link in of.links:
        child, message = numbers[link.child.start], equal[link.rows]
        if (place := child - len(problem.tables)) >= 0:
            whole = np.full(problem.strategies[of.classes[place]], FORBIDDEN)
            whole[of.strategies[place]] = message
            child, message = len(problem.tables) + of.classes[place], whole
        links.append((numbers[link.parent.start], child))
        messages.append(message)
    shifts, shares = (np.array([float(f"{x:.7g}") for x in each]) for each in (np.concatenate(messages), of_moves))
    return Duals(np.array(links, np.int64).reshape(-1, 2), shifts, shares, of_limits / relaxation.scales(problem))
