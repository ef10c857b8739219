"""The planner's problem in numbers alone: classes, joint tables, moves and limits.

A class has strategies. A table has costs of joint strategies of some classes; combinations that it lacks are forbidden. A move is paid
for once, however many entries need it: a value that several ops read in one layout is resharded once. A limit bounds a sum of weights
of entries: bytes of a device. Nothing here knows what a strategy is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = Any


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Costs of joint strategies of some classes.

    Attributes:
        moves: Per entry, the numbers of the moves that it needs, padded with -1; an array of shape (entries, most moves of an entry).
        weights: Per entry, what it adds to the sum that each limit bounds.
    """

    classes: tuple[int, ...]
    strategies: Array
    costs: Array
    moves: Array
    weights: Array

    def take(self, rows: Array) -> Table:
        """The table with some of its entries."""
        return Table(self.classes, self.strategies[rows], self.costs[rows], self.moves[rows], self.weights[rows])


@dataclass(frozen=True, slots=True, eq=False)
class Limit:
    """A bound on a sum of weights of entries of some tables, before it is one of a problem."""

    tables: tuple[int, ...]
    weights: tuple[Array, ...]
    limit: float


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Choose a strategy for each class at the least cost; a table without costs makes the tables that contain its classes agree."""

    strategies: tuple[int, ...]
    tables: tuple[Table, ...]
    moves: Array
    limits: tuple[float, ...] = ()

    def keeps(self, chosen: Sequence[int]) -> bool:
        """Whether chosen entries, one of each table, keep all limits."""
        sums = sum((table.weights[entry] for table, entry in zip(self.tables, chosen)), np.zeros(len(self.limits)))
        return bool((sums <= self.limits).all())


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """An assignment and the bound on every other.

    Attributes:
        bound: No assignment that the problem allows costs less.
        status: "optimal" where cost and bound are as close as was required, "time_limit" where time ran out first, "work_limit" where the
            counted work did, "infeasible" where no assignment keeps the limits.
    """

    assignment: tuple[int, ...]
    cost: float
    bound: float
    status: str


def entries(problem: Problem, assignment: Sequence[int]) -> tuple[int, ...]:
    """Per table, the number of the entry that an assignment chooses; -1 where the table forbids it."""
    chosen: list[int] = []
    for table in problem.tables:
        strategies = np.array([assignment[c] for c in table.classes])
        (rows,) = np.nonzero((table.strategies == strategies).all(1))
        chosen.append(int(rows[0]) if len(rows) else -1)
    return tuple(chosen)


def cost_of_entries(problem: Problem, chosen: Sequence[int]) -> float:
    """The cost of the entries that an assignment chooses, one of each table; infinite where a table forbids it."""
    if -1 in chosen:
        return float("inf")
    moves = {int(m) for table, entry in zip(problem.tables, chosen) for m in table.moves[entry] if m >= 0}
    of_tables = sum(float(table.costs[entry]) for table, entry in zip(problem.tables, chosen))
    return of_tables + sum(float(problem.moves[m]) for m in sorted(moves))


def weight(limit: Limit, chosen: Sequence[int]) -> float:
    """The sum that a limit bounds, for the entries chosen of all tables."""
    return float(sum(weights[chosen[table]] for table, weights in zip(limit.tables, limit.weights)))


def restricted(problem: Problem, strategies: Mapping[int, Sequence[int]]) -> Problem:
    """The problem in which classes have some of their strategies only; all keep their numbers."""
    allowed: dict[int, Array] = {}
    for class_, choices in strategies.items():
        allowed[class_] = np.zeros(problem.strategies[class_], bool)
        allowed[class_][list(choices)] = True
    rows: list[Array] = []
    for table in problem.tables:
        row = np.ones(len(table.costs), bool)
        for column, class_ in enumerate(table.classes):
            if class_ in allowed:
                row &= allowed[class_][table.strategies[:, column]]
        rows.append(row)
    return with_entries(problem, rows)


def with_entries(problem: Problem, masks: Sequence[Array]) -> Problem:
    """The problem with some of its entries; a mask of entries per table."""
    return replace(problem, tables=tuple(table if rows.all() else table.take(rows) for table, rows in zip(problem.tables, masks)))


def limited(problem: Problem, limits: Sequence[Limit]) -> Problem:
    """The problem under more limits."""
    more = [np.zeros((len(table.costs), len(limits))) for table in problem.tables]
    for column, limit in enumerate(limits):
        for table, weights in zip(limit.tables, limit.weights):
            more[table][:, column] += weights
    tables = (replace(table, weights=np.concatenate([table.weights, each], axis=1)) for table, each in zip(problem.tables, more))
    return replace(problem, tables=tuple(tables), limits=(*problem.limits, *(limit.limit for limit in limits)))


def weighed(problem: Problem, limit: Limit) -> Problem:
    """The problem whose costs are a limit's weights, not negative: its optimum is the least limit that an assignment keeps."""
    costs = [np.zeros(len(table.costs)) for table in problem.tables]
    for table, weights in zip(limit.tables, limit.weights):
        costs[table] = costs[table] + weights
    tables = tuple(replace(table, costs=own, moves=table.moves[:, :0]) for table, own in zip(problem.tables, costs))
    return replace(problem, tables=tables, moves=np.zeros(0))


def dearer(problem: Problem, costs: Sequence[Array]) -> Problem:
    """The problem with more costs of entries, an array per table."""
    tables = tuple(replace(table, costs=table.costs + more) for table, more in zip(problem.tables, costs, strict=True))
    return replace(problem, tables=tables)
