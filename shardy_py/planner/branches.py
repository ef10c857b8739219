"""Branches of conds, of which the costliest counts: each has its own seconds apart from the problem's sum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardy_py.planner.problem import Problem

Array = Any


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """The seconds of a branch's ops, per entry of tables and constant; what is sent counts in every branch, and is in the problem."""

    tables: Mapping[int, Array]
    constant: float
    conds: Conds

    def seconds(self, chosen: Sequence[int]) -> float:
        """The seconds of the branch."""
        own = sum(float(costs[chosen[table]]) for table, costs in self.tables.items())
        return self.constant + own + sum(costliest(branches, chosen).seconds(chosen) for branches in self.conds)


Conds = tuple[tuple[Branch, ...], ...]


def costliest(branches: Sequence[Branch], chosen: Sequence[int]) -> Branch:
    """The branch that takes longest, the first of equals."""
    return max(branches, key=lambda branch: branch.seconds(chosen))


def counted(conds: Conds, chosen: Sequence[int]) -> Iterator[Branch]:
    """The costliest branch of every cond under an assignment, nested conds included."""
    for branches in conds:
        branch = costliest(branches, chosen)
        yield branch
        yield from counted(branch.conds, chosen)


def with_branches(problem: Problem, branches: Sequence[Branch]) -> Problem:
    """A problem with the seconds of some branches added to those of its tables."""
    if not branches:
        return problem
    costs = [table.costs for table in problem.tables]
    for branch in branches:
        for table, seconds in branch.tables.items():
            costs[table] = costs[table] + seconds
    return replace(problem, tables=tuple(replace(table, costs=each) for table, each in zip(problem.tables, costs)))
