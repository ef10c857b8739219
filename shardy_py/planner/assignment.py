"""Solves problems of programs: reduction, local moves, the linear program, and branch and bound on what it leaves open.

Wall-clock time is looked at between steps only. Within a step work is counted (rounds, nodes), and the time left is a backstop. So two
runs give the same answer unless time ran out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from . import relaxation
from .descent import descend
from .elimination import Reduced, reduced
from .evaluation import Evaluation
from .problem import Limit, Problem, Solution, cost, entries, weighed, weight

NODES = (200, 2_000, 20_000, 200_000)  # Of branch and bound, round by round; what a round finds makes the next one's problem smaller.
ROUNDING = 1e-9  # Of sums of costs, in parts of them.


def solve(problem: Problem, starts: Sequence[Sequence[int]] = (), *, gap: float = 0.0, seconds: float = 60.0) -> Solution:
    """The best assignment of a problem that is found, and a bound on every other.

    Args:
        problem: Any problem.
        starts: Assignments to begin at; the solution is never worse than one of them that is allowed.
        gap: The search ends when (cost - bound) / cost is at most this.
        seconds: The search ends after about that time.

    Returns:
        The solution. Its cost is infinite where nothing that keeps all limits was found.
    """
    search = _Search(problem, gap, time.monotonic() + seconds)
    small = reduced(problem)
    if not small.feasible:
        return search.infeasible()
    search.enter(small)
    for start in [*starts, *([] if starts else [(0,) * len(problem.strategies)])]:
        search.offer(start)
        search.descend(start)
        if search.late:
            break
    return search.run()


def least(problem: Problem, limit: Limit, starts: Sequence[Sequence[int]] = (), *, seconds: float = 60.0, gap: float = 0.0) -> Solution:
    """The assignment whose sum of a limit's weights is the least, and a bound on this sum for every other.

    Args:
        problem: Any problem; its own limits hold.
        limit: The weights, not negative.
        starts: As of `solve`.
        seconds: As of `solve`.
        gap: As of `solve`.

    Returns:
        A solution whose cost is the sum.
    """
    return solve(weighed(problem, limit), starts, gap=gap, seconds=seconds)


@dataclass
class _Search:
    problem: Problem
    gap: float
    end: float
    best: tuple[int, ...] | None = None
    best_cost: float = float("inf")
    best_search_cost: float = float("inf")
    nearest: tuple[int, ...] = ()
    bound: float = 0.0
    stages: list[Reduced] = field(default_factory=list)

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
        """The best assignment, or one that breaks some limits while there is none."""
        return self.nearest if self.best is None else self.best

    @property
    def constant(self) -> float:
        return sum(stage.cost for stage in self.stages)

    def enter(self, stage: Reduced) -> None:
        """Goes on with a smaller problem."""
        self.stages.append(stage)
        self.evaluation = Evaluation(stage.problem)

    def offer(self, assignment: Sequence[int]) -> None:
        """Keeps an assignment of the whole problem if it is allowed and the best so far."""
        chosen = entries(self.problem, assignment)
        if -1 in chosen or any(weight(limit, chosen) > limit.limit for limit in self.problem.limits):
            return
        value = cost(self.problem, assignment)
        searched = value + sum(float(table.ties[entry]) for table, entry in zip(self.problem.tables, chosen))
        if searched < self.best_search_cost:
            self.best, self.best_cost, self.best_search_cost = tuple(map(int, assignment)), value, searched

    def descend(self, start: Sequence[int]) -> None:
        """Offers what local moves lead to from an assignment."""
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

    def infeasible(self) -> Solution:
        if self.best is not None:
            return self.solution()
        return Solution(self.nearest or (0,) * len(self.problem.strategies), float("inf"), float("inf"), "infeasible")

    def solution(self) -> Solution:
        if self.best is None:
            return Solution(self.nearest, float("inf"), self.bound, "time_limit")
        return Solution(self.best, self.best_cost, min(self.bound, self.best_cost), "optimal" if self.close else "time_limit")

    def run(self) -> Solution:
        for nodes in NODES:
            small = self.stages[-1].problem
            if not small.tables:
                self.offer(self.completed(self.at_hand))
                self.prove(0.0)
                self.bound = max(self.bound, self.best_cost) if self.best is not None else self.bound
                return self.solution() if self.best is not None else self.infeasible()
            if self.close or self.late:
                break
            of = relaxation.program(small)
            scale = self.scale
            relaxed = relaxation.relax(of, scale, self.left)
            if not relaxed.feasible:
                self.bound = max(self.bound, self.best_cost)
                return self.infeasible()
            self.prove(relaxed.bound)
            if relaxed.values is not None:
                start = relaxation.rounded(of, relaxed.values, self.at_hand)
                self.offer(self.completed(start))
                if not self.close:
                    self.descend(start)
            if self.close or self.late:
                break
            if self.best is not None:
                narrower = reduced(relaxation.narrowed(small, of, relaxed, self.best_cost - self.constant + ROUNDING * scale))
                if not narrower.feasible:
                    self.bound = self.best_cost
                    break
                self.enter(narrower)
                small = narrower.problem
                of = relaxation.program(small)
            if not small.tables:
                continue
            room = max(self.gap * (self.best_cost if self.best is not None else 0.0), 0.0)
            rest = min(0.9 * room / scale, 0.5)
            searched = relaxation.search(of, scale, gap=rest, nodes=nodes, seconds=self.left)
            if not searched.feasible:
                self.bound = max(self.bound, self.best_cost)
                return self.infeasible()
            self.prove(searched.bound - sum(float(table.ties.max(initial=0.0)) for table in small.tables))
            if searched.values is not None:
                start = relaxation.rounded(of, searched.values, self.at_hand)
                self.offer(self.completed(start))
                self.descend(start)
            if searched.finished and not self.close and not self.late:
                # Ties, taken off the bound, are more than what was required: costs alone prove it. Where HiGHS's presolve lost the
                # best solution, its bound is that of another.
                searched = relaxation.search(of.without_ties(), scale, gap=rest, nodes=nodes, seconds=self.left, presolve=False)
                self.prove(searched.bound)
                if searched.values is not None:
                    self.offer(self.completed(relaxation.rounded(of, searched.values, self.at_hand)))
            if self.close or self.late or searched.finished:
                break
        return self.solution()

    @property
    def scale(self) -> float:
        """About what an assignment of the smaller problem costs."""
        largest = self.evaluation.penalty / 10
        rest = self.best_cost - self.constant
        return rest if 1e-6 * largest < rest < largest else largest
