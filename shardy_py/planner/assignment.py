"""Solves problems of programs: reduction, local moves, the linear program, and branch and bound on what it leaves open.

Wall-clock time is looked at between steps only. Within a step work is counted (rounds, nodes), and the time left is a backstop. So two
runs give the same answer unless time ran out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import relaxation
from .descent import descend
from .elimination import Reduced, reduced
from .evaluation import State
from .messages import Ascent
from .problem import Limit, Problem, Solution, cost_of_entries, entries, weighed, weight
from .relaxation import Prices, Program

Array = Any

COLUMNS = 15_000  # Of a linear program; it starts with the cheapest and gets more.
FEW_COLUMNS = 3_000  # Their linear program takes less time than messages.
BRANCHED = 30_000  # Columns of branch and bound.
MESSAGE_ROUNDS = (2, 3, 5)  # After each, an assignment is looked for, which may end the search.
PRICING_ROUNDS = 8
TOWARDS = (0.1, 0.3, 0.6)  # Parts of the way from the best prices to those of a linear program.
NARROWER = 0.7  # A problem with at most this part of its entries is a new one.
SETTLED = 0.1  # Of the way from the bound to the best: what more columns can add to the bound, and are not worth.

BRANCHES = ((200, 1), (2_000, 4), (20_000, 16), (200_000, 10_000))
"""Rounds of branch and bound: nodes, and columns in units of `BRANCHED`. The result of a round makes the next one's problem smaller."""

ROUNDING = 1e-9  # Of sums of costs, in parts of them.


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
    small: Reduced | None = None,
    rounds: int = len(BRANCHES),
) -> Solution:
    """The best assignment of a problem that is found, and a bound on every other.

    Args:
        starts: Assignments to begin at; the solution is never worse than one of them that is allowed.
        gap: The search ends when (cost - bound) / cost is at most this.

    Returns:
        The solution. Its cost is infinite where nothing that keeps all limits was found.
    """
    search = _Search(problem, gap, time.monotonic() + seconds, watch, rounds)
    small = reduced(problem) if small is None else small
    if not small.feasible:
        return search.solution(exhausted=True)
    search.enter(small)
    search.prove(sum(float(table.costs.min()) for table in small.problem.tables))
    starts = starts or [(0,) * len(problem.strategies)]
    for start in starts:
        search.offer(start)
    for start in starts:
        search.descend(start)
        if search.late:
            break
    return search.run()


def least(problem: Problem, limit: Limit, starts: Sequence[Sequence[int]] = (), *, seconds: float = 60.0, gap: float = 0.0) -> Solution:
    """The assignment whose sum of a limit's weights is the least, and a bound on this sum for every other."""
    return solve(weighed(problem, limit), starts, gap=gap, seconds=seconds)


@dataclass
class _Search:
    problem: Problem
    gap: float
    end: float
    watch: Watch
    rounds: int = len(BRANCHES)
    best: tuple[int, ...] | None = None
    best_cost: float = float("inf")
    best_search_cost: float = float("inf")
    nearest: tuple[int, ...] = ()
    bound: float = 0.0
    stages: list[Reduced] = field(default_factory=list)
    descended: set[tuple[int, tuple[int, ...]]] = field(default_factory=set[tuple[int, tuple[int, ...]]])

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
    def at_hand(self) -> tuple[int, ...]:
        """The best assignment; one that breaks limits while none keeps them."""
        return self.nearest if self.best is None else self.best

    @property
    def constant(self) -> float:
        return sum(stage.cost for stage in self.stages)

    def enter(self, stage: Reduced) -> None:
        """Goes on with a smaller problem."""
        self.stages.append(stage)
        if stage.feasible:
            self.evaluation = stage.evaluation

    def offer(self, assignment: Sequence[int]) -> None:
        """Keeps an assignment of the whole problem if it is allowed and the best so far."""
        chosen = entries(self.problem, assignment)
        if -1 in chosen or any(weight(limit, chosen) > limit.limit for limit in self.problem.limits):
            return
        value = cost_of_entries(self.problem, chosen)
        searched = value + sum(float(table.ties[entry]) for table, entry in zip(self.problem.tables, chosen))
        if searched < self.best_search_cost:
            self.best, self.best_cost, self.best_search_cost = tuple(map(int, assignment)), value, searched
            self.watch(self.best_cost, self.bound)

    def descend(self, start: Sequence[int]) -> None:
        """Offers what local moves lead to from an assignment, once."""
        start_at_stage = len(self.stages), tuple(start)
        if self.best is not None and start_at_stage in self.descended:
            return
        self.descended.add(start_at_stage)
        reached = self.completed(descend(self.evaluation, start).assignment.tolist())
        if self.best is None:
            self.nearest = reached
        self.offer(reached)

    def completed(self, assignment: Sequence[int]) -> tuple[int, ...]:
        result = tuple(assignment)
        for stage in reversed(self.stages):
            result = stage.completed(result)
        return result

    def prove(self, bound: float) -> None:
        """Raises the bound by one of the smaller problem, which lacks only what costs more than the best."""
        self.bound = max(self.bound, min(bound + self.constant, self.best_cost))
        self.watch(self.best_cost, self.bound)

    def solution(self, *, exhausted: bool = False) -> Solution:
        """The best assignment; nothing better exists where the search is exhausted."""
        ended = "time_limit" if self.late else "work_limit"
        if self.best is None:
            none = self.nearest or (0,) * len(self.problem.strategies)
            bound, status = (float("inf"), "infeasible") if exhausted else (self.bound, ended)
            return Solution(none, float("inf"), bound, status)
        bound = self.best_cost if exhausted else min(self.bound, self.best_cost)
        return Solution(self.best, self.best_cost, bound, "optimal" if exhausted or self.close else ended)

    def run(self) -> Solution:
        """Messages, the linear program, and branch and bound, on a problem that gets smaller with each better assignment."""
        rounds = iter(BRANCHES[: self.rounds])
        while True:
            of, prices = self.pass_messages()
            if of is None or prices is None:
                return self.solution(exhausted=not self.close and not self.late)
            solved, missing = self.solve_linear(of, prices)
            if solved is None:
                return self.solution(exhausted=True)
            if self.close or self.late:
                return self.solution()
            if missing and self.narrow(of, solved):
                continue
            for size in rounds:
                if self.branch(of, solved, *size):
                    return self.solution(exhausted=True)
                if self.close or self.late:
                    return self.solution()
                if self.narrow(of, solved):
                    break
            else:
                return self.solution()

    def pass_messages(self) -> tuple[Program | None, Prices | None]:
        """Raises the bound by messages and drops columns: the program that is left and its prices, None at the search's end."""
        while not self.close and not self.late:
            if not self.stages[-1].feasible:
                break
            if not self.small.tables:
                self.offer(self.completed(self.at_hand))
                break
            of = relaxation.program(self.small)
            if len(of.costs) <= FEW_COLUMNS:
                return of, of.prices()
            ascent = Ascent(of, 2 * self.scale)
            prices = of.prices()
            for rounds in MESSAGE_ROUNDS:
                prices = ascent.run(prices, rounds=rounds, enough=self.target, end=self.end)
                self.prove(relaxation.slacks(of, prices)[0])
                if self.close:
                    return None, None
                self.choose(of, prices)
            if not self.close and not self.narrow(of, prices):
                return of, prices
        return None, None

    def narrow(self, of: Program, prices: Prices) -> bool:
        """Drops what costs more than the best, if that is much; returns whether it did."""
        bound, slacks = relaxation.slacks(of, prices)
        keep = bound + slacks <= self.most
        if keep.mean() > NARROWER:
            return False
        self.enter(reduced(relaxation.narrowed(self.small, of, keep)))
        return True

    def round(self, of: Program, values: Array) -> None:
        """Offers the assignment of the largest values, and what local moves lead to from it."""
        self.reach(relaxation.rounded(of, values, self.at_hand))

    def choose(self, of: Program, prices: Prices) -> None:
        """Offers the assignment of the cheapest strategies, class by class; no limit may hold.

        Messages know nothing of limits: plans would fill a budget to spare a thousandth of the step.
        """
        if not self.close and not self.problem.limits:
            self.reach(relaxation.conditioned(of, self.small, prices, self.at_hand))

    def reach(self, start: Sequence[int]) -> None:
        """Offers an assignment of the smaller problem, and what local moves lead to from it."""
        self.offer(self.completed(start))
        if not self.close:
            self.descend(start)

    def solve_linear(self, of: Program, prices: Prices) -> tuple[Prices | None, bool]:
        """Solves the linear program, cheapest columns first: its prices (None: no solution), and whether many columns may go."""
        columns = self.cheapest(of, prices, COLUMNS)
        best, ascent, branched = prices, None, False
        for _ in range(PRICING_ROUNDS):
            restricted = of.take(columns)
            relaxed = relaxation.relax(restricted, self.scale, self.left)
            if not relaxed.feasible:
                if columns.all():
                    return None, False
                columns[:] = True
                continue
            if relaxed.values is None:
                break
            before = self.most
            self.round(restricted, relaxed.values)
            priced = relaxation.priced(of, relaxed.duals)
            if columns.all():
                best = max(best, priced, key=lambda prices: prices.bound(of))
            else:
                # The program knows nothing of the columns that it lacks: its prices are right in part, and messages mend the rest.
                ascent = ascent or Ascent(of, 2 * self.scale)
                mixed = [ascent.run(best.towards(priced, part), rounds=2, enough=self.target, end=self.end) for part in TOWARDS]
                best = max(best, *mixed, key=lambda prices: prices.bound(of))
                best = ascent.run(best, rounds=MESSAGE_ROUNDS[-1], enough=self.target, end=self.end)
            bound, _ = relaxation.slacks(of, best)
            self.prove(bound)
            self.choose(of, best)
            value = float(restricted.costs @ relaxed.values)
            if self.close or self.late or columns.all() or value - bound <= SETTLED * (self.most - bound):
                break
            if not branched and self.most >= before - SETTLED * (before - bound):
                # Nothing better was rounded: a few nodes often find it, in less time than more columns take.
                branched = True
                if self.branch(of, best, *BRANCHES[0]):
                    return None, False
                if self.close or self.late:
                    break
            if self.most < before - SETTLED * (before - bound):
                return best, True
            columns |= self.cheapest(of, priced, COLUMNS, columns)
        return best, False

    def cheapest(self, of: Program, prices: Prices, count: int, present: Array = None) -> Array:
        """Whether each column has the least slack, is of the best assignment, or is shared by tables; columns `present` do not count."""
        columns = np.ones(len(of.costs), bool)
        entries_end = int(of.starts[len(of.starts) - 1 - len(of.classes)])
        slacks = relaxation.slacks(of, prices)[1][:entries_end]
        if present is not None:
            slacks[present[:entries_end]] = np.inf
        if np.isfinite(slacks).sum() <= 1.5 * count:
            return columns
        columns[:entries_end] = slacks <= np.partition(slacks, count)[count]
        for link in of.links:
            columns[link.child] = True
        if self.best is not None:
            chosen = State(self.evaluation, self.best).entries
            columns[(of.starts[: len(chosen)] + chosen)[chosen >= 0]] = True
        return columns

    def branch(self, of: Program, prices: Prices, nodes: int, units: int) -> bool:
        """Branch and bound on what may cost less than the best assignment; returns whether nothing better exists."""
        bound, slacks = relaxation.slacks(of, prices)
        most = self.most
        if len(slacks) > (count := BRANCHED * units):
            most = min(most, bound + float(np.partition(slacks, count)[count]))
        whole = most >= self.most
        stage = reduced(relaxation.narrowed(self.small, of, bound + slacks <= most))
        # Ties, taken off the bound, may be more than what was required, and HiGHS's presolve may lose the best solution: then costs alone.
        for presolve in (True, False):
            if not stage.feasible:
                break
            if not stage.problem.tables:
                self.offer(self.completed(stage.completed(self.at_hand)))
                self.prove(min(stage.cost, most))
                break
            program = relaxation.program(stage.problem)
            program = program if presolve else program.without_ties()
            room = self.gap * self.best_cost if self.best is not None else 0.0
            gap = min(0.9 * room / self.scale, 0.5)
            searched = relaxation.search(program, self.scale, gap=gap, nodes=nodes, seconds=self.left, presolve=presolve)
            if not searched.feasible:
                break
            ties = sum(float(program.ties[a:b].max()) for a, b in zip(program.starts[:-1], program.starts[1:]))
            self.prove(min(searched.bound - ties + stage.cost, most))
            if searched.values is not None:
                self.reach(stage.completed(relaxation.rounded(program, searched.values, self.at_hand)))
            if self.close or self.late or not searched.finished:
                return False
        else:
            return False
        if not whole:
            self.prove(most)
        return whole and not self.close

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
        return float("inf") if self.best is None else (1 - self.gap) * self.best_cost - self.constant

    @property
    def scale(self) -> float:
        """About what an assignment of the smaller problem costs."""
        largest = self.evaluation.penalty / 10
        rest = self.best_cost - self.constant
        return rest if 1e-6 * largest < rest < largest else largest
