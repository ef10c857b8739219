"""A smaller problem with the same optimum: what is forced, said twice or decided by its neighbours alone is taken out."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .evaluation import EntryIndex, Evaluation
from .problem import Problem, Table

Array = Any

LARGEST_JOIN = 1 << 15
"""Joint strategies of a class and its neighbours that are looked through to eliminate it, which halves branch and bound's time."""


@dataclass(frozen=True, slots=True)
class Decided:
    """The best strategy of an eliminated class for each joint strategy of its neighbours."""

    class_: int
    neighbours: tuple[int, ...]
    index: EntryIndex
    best: Array


@dataclass(frozen=True, eq=False)
class Reduced:
    """A smaller problem, and the way back.

    Attributes:
        problem: The smaller problem. Its classes and strategies have the numbers that they had; many are in no table any more.
    """

    problem: Problem
    cost: float
    forced: tuple[tuple[int, int], ...]
    decided: tuple[Decided, ...]
    feasible: bool

    @functools.cached_property
    def evaluation(self) -> Evaluation:
        """The evaluation of the smaller problem, which all searches of it share."""
        return Evaluation(self.problem)

    def completed(self, assignment: Sequence[int]) -> tuple[int, ...]:
        """An assignment of the smaller problem with the best strategies of the classes that were taken out."""
        result = list(assignment)
        for c, strategy in self.forced:
            result[c] = strategy
        for step in reversed(self.decided):
            key = np.array([result[c] for c in step.neighbours], np.int64) @ step.index.strides
            place = int(step.index(np.array([key], np.int64))[0])
            if place >= 0:
                result[step.class_] = int(step.best[place])
        return tuple(int(s) for s in result)


class _Work:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.move_costs = np.array(problem.moves, np.float64)
        self.limits = np.array(problem.limits, np.float64)
        self.constant = 0.0
        self.needed = np.zeros(len(problem.moves), bool)
        self.forced: dict[int, int] = {}
        self.decided: list[Decided] = []
        self.rows = list(problem.tables)

    @property
    def feasible(self) -> bool:
        return all(len(rows.costs) for rows in self.rows)

    def readers(self) -> dict[int, list[int]]:
        readers: dict[int, list[int]] = {}
        for number, rows in enumerate(self.rows):
            for c in rows.classes:
                readers.setdefault(c, []).append(number)
        return readers

    def restrict(self) -> None:
        """Drops entries with a strategy of a class that another table lacks (arc consistency)."""
        allowed = [np.ones(n, bool) for n in self.problem.strategies]
        waiting = list(range(len(self.rows)))
        readers = self.readers()
        while waiting:
            number = waiting.pop()
            rows = self.rows[number]
            keep = np.ones(len(rows.costs), bool)
            for i, c in enumerate(rows.classes):
                keep &= allowed[c][rows.strategies[:, i]]
            if not keep.all():
                rows = self.rows[number] = rows.take(keep)
            for i, c in enumerate(rows.classes):
                present = np.zeros(len(allowed[c]), bool)
                present[rows.strategies[:, i]] = True
                if (allowed[c] & ~present).any():
                    allowed[c] &= present
                    waiting += [other for other in readers[c] if other not in waiting and other != number]

    def force(self) -> None:
        """Takes classes with one strategy out of their tables, and tables without classes out of the problem."""
        left: list[Table] = []
        for rows in self.rows:
            if not len(rows.costs):
                left.append(rows)
                continue
            free = (rows.strategies != rows.strategies[0]).any(0)
            for i, c in enumerate(rows.classes):
                if not free[i]:
                    self.forced[c] = int(rows.strategies[0, i])
            if free.all() and rows.classes:
                left.append(rows)
                continue
            if free.any():
                classes = tuple(c for c, is_free in zip(rows.classes, free) if is_free)
                left.append(replace(rows, classes=classes, strategies=np.ascontiguousarray(rows.strategies[:, free])))
                continue
            self.constant += float(rows.costs[0])
            self.limits -= rows.weights[0]
            self.needed[rows.moves[rows.moves >= 0]] = True
        self.rows = left

    def merge(self) -> None:
        """Folds tables into one whose classes contain theirs. Empty shells of those that several contain stay, for consistency."""
        order = sorted(range(len(self.rows)), key=lambda n: (-len(self.rows[n].classes), n))
        members = [sum(1 << c for c in rows.classes) for rows in self.rows]
        largest: list[Table] = []
        sets: list[int] = []
        at_class: dict[int, list[int]] = {}
        shells: list[Table] = []
        for number in order:
            rows, classes = self.rows[number], members[number]
            candidates = min((at_class.get(c, []) for c in rows.classes), key=len)
            hosts = [n for n in candidates if sets[n] & classes == classes]
            if not hosts:
                for c in rows.classes:
                    at_class.setdefault(c, []).append(len(largest))
                largest.append(rows)
                sets.append(classes)
                continue
            host = min(hosts, key=lambda n: len(largest[n].costs))
            columns = [largest[host].classes.index(c) for c in rows.classes]
            index = EntryIndex(rows, self.problem.strategies)
            for n in hosts:
                at = [largest[n].classes.index(c) for c in rows.classes]
                places = index(largest[n].strategies[:, at] @ index.strides)
                if (places < 0).any():
                    largest[n] = largest[n].take(places >= 0)
            into = largest[host]
            places = index(into.strategies[:, columns] @ index.strides)
            largest[host] = Table(
                into.classes,
                into.strategies,
                into.costs + rows.costs[places],
                np.concatenate([into.moves, rows.moves[places]], axis=1),
                into.weights + rows.weights[places],
            )
            if len(hosts) > 1 and len(rows.classes) > 1:
                none = np.zeros(len(rows.costs))
                shells.append(Table(rows.classes, rows.strategies, none, rows.moves[:, :0], np.zeros_like(rows.weights)))
        unique = {tuple(sorted(shell.classes)): shell for shell in shells}
        self.rows = largest + [self.supported(unique[key], largest) for key in sorted(unique)]

    def supported(self, shell: Table, tables: Sequence[Table]) -> Table:
        """The entries of a shell that some containing table supports, so that smaller shells inherit the restriction."""
        index = EntryIndex(shell, self.problem.strategies)
        present = np.zeros(len(shell.costs), bool)
        classes = set(shell.classes)
        for rows in tables:
            if classes <= set(rows.classes):
                columns = [rows.classes.index(c) for c in shell.classes]
                present[index(rows.strategies[:, columns] @ index.strides)] = True
        return shell if present.all() else shell.take(present)

    def fold_moves(self) -> None:
        """Folds moves that a single table decides into its entries, and unconditional moves into the constant."""
        count = len(self.move_costs)
        readers, always = np.zeros(count + 1, np.int64), np.append(self.needed, False)
        moving = [number for number, rows in enumerate(self.rows) if rows.moves.shape[1]]
        for number in moving:
            rows = self.rows[number] = self._normal(self.rows[number])
            needed = np.bincount(rows.moves[rows.moves >= 0], minlength=count + 1)
            readers += needed > 0
            always |= needed == len(rows.costs)
        always, readers = always[:count], readers[:count]
        self.constant += float(self.move_costs[always].sum())
        single = (readers == 1) & ~always
        prices = np.append(np.where(single, self.move_costs, 0.0), 0.0)
        self.move_costs[always | single | (readers == 0)] = 0.0
        self.needed[:] = False
        for number in moving:
            rows = self.rows[number]
            self.rows[number] = self._normal(replace(rows, costs=rows.costs + prices[rows.moves].sum(1)))

    def _normal(self, rows: Table) -> Table:
        """A table with its moves in as few columns as possible: in a row each stands once, and none that is free."""
        moves = -np.sort(-np.where(np.append(self.move_costs, 0.0)[rows.moves] > 0.0, rows.moves, -1), axis=1)
        moves[:, 1:][moves[:, 1:] == moves[:, :-1]] = -1
        moves = -np.sort(-moves, axis=1)
        return replace(rows, moves=moves[:, : int((moves >= 0).sum(1).max(initial=0))])

    def renumber_moves(self) -> Array:
        """Leaves out the moves that no table decides on."""
        used = np.zeros(len(self.move_costs) + 1, bool)
        for rows in self.rows:
            used[rows.moves] = True
        used[-1] = False
        numbers = np.where(used, np.cumsum(used) - 1, -1)
        self.rows = [replace(rows, moves=numbers[rows.moves]) for rows in self.rows]
        return self.move_costs[used[:-1]]

    def eliminate(self) -> bool:
        """Eliminates classes without moves and weights whose best strategy depends on few neighbours; returns whether it did."""
        readers = self.readers()
        plain = [not rows.moves.shape[1] and not rows.weights.any() for rows in self.rows]
        eliminated: set[int] = set()
        changed = False
        present = {
            c: len(np.unique(self.rows[tables[0]].strategies[:, self.rows[tables[0]].classes.index(c)])) for c, tables in readers.items()
        }
        for c in sorted(readers, key=lambda c: (len(readers[c]), c)):
            tables = readers[c]
            if any(t in eliminated or not plain[t] for t in tables):
                continue
            bucket = [self.rows[t] for t in tables]
            neighbours = tuple(sorted({other for rows in bucket for other in rows.classes} - {c}))
            size = float(np.prod([float(present[n]) for n in (*neighbours, c)]))
            if size > LARGEST_JOIN:
                continue
            table = self._without(c, neighbours, bucket)
            if len(table.costs) > sum(len(rows.costs) for rows in bucket) and len(bucket) > 1:
                self.decided.pop()
                continue
            eliminated |= set(tables)
            self.rows.append(table)
            changed = True
        self.rows = [rows for n, rows in enumerate(self.rows) if n not in eliminated]
        return changed

    def _without(self, c: int, neighbours: tuple[int, ...], bucket: Sequence[Table]) -> Table:
        joint = _joined(bucket, self.problem.strategies)
        columns = [joint.classes.index(n) for n in neighbours]
        strategies = joint.strategies[:, columns]
        order = np.lexsort((joint.costs, *strategies.T[::-1]))
        sorted_ = strategies[order]
        first = np.ones(len(order), bool)
        first[1:] = (sorted_[1:] != sorted_[:-1]).any(1) if neighbours else False
        starts = np.flatnonzero(first)
        best = order[starts]
        costs = np.minimum.reduceat(joint.costs[order], starts) if len(starts) else joint.costs[:0]
        result = Table(neighbours, strategies[best], costs, joint.moves[best], joint.weights[best])
        index = EntryIndex(result, self.problem.strategies)
        self.decided.append(Decided(c, neighbours, index, joint.strategies[best, joint.classes.index(c)]))
        return result


def reduced(problem: Problem) -> Reduced:
    """A smaller problem with the same optimum."""
    work = _Work(problem)
    while True:
        work.restrict()
        if not work.feasible:
            break
        work.force()
        work.merge()
        work.fold_moves()
        if not work.eliminate():
            work.restrict()
            break
    moves = work.renumber_moves()
    smaller = Problem(problem.strategies, tuple(work.rows), moves, tuple(work.limits.tolist()))
    return Reduced(smaller, work.constant, tuple(sorted(work.forced.items())), tuple(work.decided), work.feasible)


def _joined(bucket: Sequence[Table], strategies: Sequence[int]) -> Table:
    """The combinations of entries of tables that agree on the classes which they share; tables without moves."""
    joint = bucket[0]
    for rows in bucket[1:]:
        shared = [c for c in joint.classes if c in rows.classes]
        radices = np.array([strategies[c] for c in shared], np.int64)
        left = _keys(joint.strategies[:, [joint.classes.index(c) for c in shared]], radices)
        right = _keys(rows.strategies[:, [rows.classes.index(c) for c in shared]], radices)
        order = np.argsort(right, kind="stable")
        begins = np.searchsorted(right[order], left, "left")
        counts = np.searchsorted(right[order], left, "right") - begins
        a = np.repeat(np.arange(len(left)), counts)
        offsets = np.arange(len(a)) - np.repeat(np.cumsum(counts) - counts, counts)
        b = order[np.repeat(begins, counts) + offsets]
        new = [i for i, c in enumerate(rows.classes) if c not in joint.classes]
        joint = Table(
            (*joint.classes, *(rows.classes[i] for i in new)),
            np.concatenate([joint.strategies[a], rows.strategies[b][:, new]], axis=1),
            joint.costs[a] + rows.costs[b],
            joint.moves[a],
            joint.weights[a] + rows.weights[b],
        )
    return joint


def _keys(strategies: Array, radices: Array) -> Array:
    keys = np.zeros(len(strategies), np.int64)
    for i, radix in enumerate(radices):
        keys = keys * radix + strategies[:, i]
    return keys
