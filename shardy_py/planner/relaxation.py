"""The tight local polytope of a problem: its linear program, the bound that its duals give, and what reduced costs rule out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy  # its parts, which take a quarter of this package's time of import, are imported when they are first used

from .evaluation import EntryIndex
from .problem import Limit, Problem, Table, with_entries

Array = Any

UNIT = 1e3  # The programs handed to HiGHS have costs of about this size: its tolerances are absolute, 1e-7.


@dataclass(frozen=True, slots=True)
class Link:
    """A table and what it shares with others: a class, or a table that it contains.

    Attributes:
        rows: The rows of `Program.equal` that make them agree, one for each of its columns.
        order: The entries of the table, by place.
    """

    parent: slice
    child: slice
    rows: slice
    places: Array
    order: Array
    starts: Array
    unsupported: Array


@dataclass(frozen=True, slots=True)
class Prices:
    """Costs of columns less the costs of rows: feasible duals, whose bound holds for every assignment."""

    columns: Array
    equal: Array
    shares: Array
    limits: Array
    constant: float

    def towards(self, other: Prices, part: float) -> Prices:
        """A convex combination with other prices, which is feasible too."""
        mine, theirs = ((p.columns, p.equal, p.shares, p.limits, p.constant) for p in (self, other))
        return Prices(*(a + part * (b - a) for a, b in zip(mine, theirs)))

    def bound(self, of: Program) -> float:
        """The bound on costs with ties."""
        choices = of.choices
        least = float(np.minimum.reduceat(self.columns[:choices], of.starts[:-1]).sum()) if choices else 0.0
        return self.constant + float(np.minimum(self.columns[choices:], 0.0).sum()) + least


@dataclass(frozen=True, slots=True)
class Program:
    """The linear program of a problem: columns are entries of tables, then strategies of classes, then moves.

    Attributes:
        equal: Rows whose columns add up to nothing: what entries of a table choose, its classes and the tables that it contains choose.
        moves: Rows that are at most nothing: a move is paid where entries need it.
    """

    costs: Array
    ties: Array
    starts: Array
    equal: Any
    moves: Any
    limits: Any
    most: Array
    classes: tuple[int, ...]
    strategies: tuple[Array, ...]
    links: tuple[Link, ...]

    def prices(self) -> Prices:
        """The prices of the unmodified costs."""
        equal, shares, limits = (np.zeros(rows.shape[0]) for rows in (self.equal, self.moves, self.limits))
        return Prices(self.costs.copy(), equal, shares, limits, 0.0)

    def take(self, columns: Array) -> Program:
        """The program of some columns; whether each stays. Strategies of classes and moves all stay."""
        sizes = np.add.reduceat(columns[: self.choices].astype(np.int64), self.starts[:-1])
        starts = np.concatenate([[0], np.cumsum(sizes)])
        matrices = (self.equal[:, columns], self.moves[:, columns], self.limits[:, columns])
        costs, ties = self.costs[columns], self.ties[columns]
        return Program(costs, ties, starts, *matrices, self.most, self.classes, self.strategies, ())

    def without_ties(self) -> Program:
        """The program of costs alone."""
        return replace(self, costs=self.costs - self.ties, ties=np.zeros_like(self.ties))

    @property
    def choices(self) -> int:
        """The number of columns that are choices; the others are moves."""
        return int(self.starts[-1])

    def one_of_each(self) -> Any:
        """A row per table and class: one of its columns is chosen."""
        count = len(self.starts) - 1
        rows = np.repeat(np.arange(count), np.diff(self.starts))
        return scipy.sparse.csr_array((np.ones(self.choices), (rows, np.arange(self.choices))), shape=(count, len(self.costs)))


@dataclass(frozen=True, slots=True)
class Relaxed:
    """The answer of a linear program: column values (None: out of time), duals of its rows, and whether it is feasible."""

    values: Array
    duals: tuple[Array, Array, Array]
    feasible: bool = True


def program(problem: Problem) -> Program:
    """The linear program of a problem, each of whose tables has an entry."""
    tables = problem.tables
    assert all(len(table.costs) for table in tables), "a problem without assignments has no program"
    classes = tuple(sorted({c for table in tables for c in table.classes}))
    strategies: list[Array] = []
    first_reader = {c: table for table in reversed(tables) for c in table.classes}
    for c in classes:
        table = first_reader[c]
        strategies.append(np.unique(table.strategies[:, table.classes.index(c)]))
    sizes = [len(table.costs) for table in tables] + [len(s) for s in strategies]
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    choices = int(starts[-1])
    used = np.zeros(len(problem.moves) + 1, bool)
    for table in tables:
        used[table.moves] = True
    move_numbers = np.flatnonzero(used[:-1])
    place_of_move = np.full(len(used), -1, np.int64)
    place_of_move[move_numbers] = choices + np.arange(len(move_numbers))
    width = choices + len(move_numbers)
    costs = np.zeros(width)
    ties = np.zeros(width)
    for table, start in zip(tables, starts):
        costs[start : start + len(table.costs)] = table.costs + table.ties
        ties[start : start + len(table.costs)] = table.ties
    costs[choices:] = problem.moves[move_numbers]
    equal, links = _consistency(problem, starts, classes, strategies, width)
    moves = _move_rows(tables, starts, place_of_move, width)
    limits, most = _limit_rows(problem, starts, width)
    return Program(costs, ties, starts, equal, moves, limits, most, classes, tuple(strategies), links)


def _consistency(
    problem: Problem, starts: Array, classes: Sequence[int], strategies: Sequence[Array], width: int
) -> tuple[Any, tuple[Link, ...]]:
    """Rows that make tables agree: each with the largest tables that it contains and with the classes which these leave."""
    tables = problem.tables
    rows: list[Array] = []
    columns: list[Array] = []
    signs: list[Array] = []
    count = 0
    place_of_class = {c: n for n, c in enumerate(classes)}
    by_class: dict[int, list[int]] = {}
    for number, table in enumerate(tables):
        for c in table.classes:
            by_class.setdefault(c, []).append(number)
    indices: dict[int, EntryIndex] = {}
    links: list[Link] = []

    def link(parent: int, child: int, places: Array) -> None:
        nonlocal count
        above, below = slice(int(starts[parent]), int(starts[parent + 1])), slice(int(starts[child]), int(starts[child + 1]))
        size = below.stop - below.start
        rows.extend((count + places, count + np.arange(size)))
        columns.extend((np.arange(above.start, above.stop), np.arange(below.start, below.stop)))
        signs.extend((np.ones(len(places)), -np.ones(size)))
        count += size
        order = np.argsort(places, kind="stable")
        counts = np.bincount(places, minlength=size)
        begins = np.minimum(np.cumsum(counts) - counts, len(places) - 1)
        links.append(Link(above, below, slice(count - size, count), places, order, begins, counts == 0))

    for number, table in enumerate(tables):
        own = set(table.classes)
        candidates = sorted({n for c in table.classes for n in by_class[c] if n != number})
        contained = [n for n in candidates if set(tables[n].classes) < own]
        children = [n for n in contained if not any(set(tables[n].classes) < set(tables[m].classes) for m in contained)]
        covered = {c for n in children for c in tables[n].classes}
        for n in children:
            if n not in indices:
                indices[n] = EntryIndex(tables[n], problem.strategies)
            columns_of_child = [table.classes.index(c) for c in tables[n].classes]
            places = indices[n](table.strategies[:, columns_of_child] @ indices[n].strides)
            link(number, n, places)
        for i, c in enumerate(table.classes):
            if c not in covered:
                place = place_of_class[c]
                places = np.searchsorted(strategies[place], table.strategies[:, i])
                link(number, len(tables) + place, places)
    return _matrix(signs, rows, columns, count, width), tuple(links)


def _move_rows(tables: Sequence[Table], starts: Array, place_of_move: Array, width: int) -> Any:
    """A row per move and table that needs it: the move is paid unless an entry has it at hand."""
    rows: list[Array] = []
    columns: list[Array] = []
    signs: list[Array] = []
    count = 0
    rows_of_move: list[Array] = []
    for table, start in zip(tables, starts):
        entries, at = np.nonzero(table.moves >= 0)
        needed, places = np.unique(table.moves[entries, at], return_inverse=True)
        rows.extend((count + places, count + np.arange(len(needed))))
        columns.extend((start + entries, place_of_move[needed]))
        signs.extend((np.ones(len(entries)), -np.ones(len(needed))))
        rows_of_move.append(needed)
        count += len(needed)
    moves = np.concatenate(rows_of_move) if rows_of_move else np.zeros(0, np.int64)
    order = np.argsort(moves, kind="stable")
    for table, start in zip(tables, starts):
        entries, at = np.nonzero(table.at_hand >= 0)
        at_hand = table.at_hand[entries, at]
        begins = np.searchsorted(moves[order], at_hand, "left")
        counts = np.searchsorted(moves[order], at_hand, "right") - begins
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        rows.append(order[np.repeat(begins, counts) + offsets])
        columns.append(np.repeat(start + entries, counts))
        signs.append(-np.ones(len(offsets)))
    return _matrix(signs, rows, columns, count, width)


def scales(limits: Sequence[Limit]) -> Array:
    """What the row of each limit is divided by: about its largest weight."""
    largest = [max([float(np.abs(w).max(initial=0.0)) for w in limit.weights], default=0.0) for limit in limits]
    return np.array([max(most, abs(limit.limit) * 1e-3, 1e-300) for most, limit in zip(largest, limits)])


def _limit_rows(problem: Problem, starts: Array, width: int) -> tuple[Any, Array]:
    """Rows of limits, each divided by its scale."""
    rows: list[Array] = []
    columns: list[Array] = []
    values: list[Array] = []
    most: list[float] = []
    for number, (limit, scale) in enumerate(zip(problem.limits, scales(problem.limits))):
        for table, weights in zip(limit.tables, limit.weights):
            (entries,) = np.nonzero(weights)
            rows.append(np.full(len(entries), number))
            columns.append(starts[table] + entries)
            values.append(weights[entries] / scale)
        most.append(limit.limit / scale)
    return _matrix(values, rows, columns, len(problem.limits), width), np.array(most)


def _matrix(values: Sequence[Array], rows: Sequence[Array], columns: Sequence[Array], height: int, width: int) -> Any:
    if not rows:
        return scipy.sparse.csr_array((height, width))
    return scipy.sparse.csr_array((np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=(height, width))


def relax(of: Program, scale: float, seconds: float) -> Relaxed:
    """Solves a linear program."""
    factor = UNIT / scale if scale > 0 else 1.0
    inequalities = _stacked(of.moves, of.limits)
    ones = of.one_of_each()
    result = scipy.optimize.linprog(
        of.costs * factor,
        A_ub=inequalities if inequalities.shape[0] else None,
        b_ub=np.concatenate([np.zeros(of.moves.shape[0]), of.most]) if inequalities.shape[0] else None,
        A_eq=_stacked(of.equal, ones),
        b_eq=np.concatenate([np.zeros(of.equal.shape[0]), np.ones(ones.shape[0])]),
        bounds=(0, None),
        method="highs-ds",
        options={"time_limit": max(seconds, 0.01)},
    )
    nothing = (np.zeros(of.equal.shape[0]), np.zeros(of.moves.shape[0]), np.zeros(of.limits.shape[0]))
    if result.status != 0:
        return Relaxed(None, nothing, result.status != 2)
    equal = result.eqlin.marginals[: of.equal.shape[0]] / factor
    at_moves, at_limits = np.split(result.ineqlin.marginals / factor, [of.moves.shape[0]]) if inequalities.shape[0] else nothing[1:]
    return Relaxed(result.x, (equal, np.minimum(at_moves, 0.0), np.minimum(at_limits, 0.0)))


def priced(of: Program, duals: tuple[Array, Array, Array]) -> Prices:
    """The prices of columns under duals of rows: a bound whatever the tolerances of what found them."""
    equal, at_moves, at_limits = duals
    columns = of.costs - of.equal.T @ equal - of.moves.T @ at_moves - of.limits.T @ at_limits
    return Prices(columns, equal, -at_moves, at_limits, float(at_limits @ of.most))


def slacks(of: Program, prices: Prices) -> tuple[float, Array]:
    """The bound on costs without ties, and per choice by how much it rises for assignments that make it."""
    columns = prices.columns[: of.choices] - of.ties[: of.choices]
    least = np.minimum.reduceat(columns, of.starts[:-1]) if of.choices else np.zeros(0)
    bound = prices.constant + float(np.minimum(prices.columns[of.choices :], 0.0).sum()) + float(least.sum())
    return bound, columns - np.repeat(least, np.diff(of.starts))


def rounded(of: Program, values: Array, start: Sequence[int]) -> tuple[int, ...]:
    """The assignment of the strategies that have the largest values; classes without columns keep theirs."""
    result = list(start)
    tables = len(of.starts) - 1 - len(of.classes)
    for n, c in enumerate(of.classes):
        begin, end = of.starts[tables + n], of.starts[tables + n + 1]
        result[c] = int(of.strategies[n][np.argmax(values[begin:end])])
    return tuple(result)


def conditioned(of: Program, problem: Problem, prices: Prices, start: Sequence[int]) -> tuple[int, ...]:
    """The assignment of the cheapest strategies, class by class, each under what the classes before it have."""
    result = list(start)
    readers: dict[int, list[int]] = {}
    for number, table in enumerate(problem.tables):
        for c in table.classes:
            readers.setdefault(c, []).append(number)
    costs = [prices.columns[a:b] for a, b in zip(of.starts[:-1], of.starts[1 : len(problem.tables) + 1])]
    strategies = [table.strategies for table in problem.tables]
    for n, c in enumerate(of.classes):
        begin, end = of.starts[len(problem.tables) + n], of.starts[len(problem.tables) + n + 1]
        total = prices.columns[begin:end].copy()
        for number in readers[c]:
            column = strategies[number][:, problem.tables[number].classes.index(c)]
            least = np.full(problem.strategies[c], np.inf)
            np.minimum.at(least, column, costs[number])
            total += least[of.strategies[n]]
        chosen = result[c] = int(of.strategies[n][np.argmin(total)])
        for number in readers[c]:
            consistent = strategies[number][:, problem.tables[number].classes.index(c)] == chosen
            if consistent.any():  # Where no entry agrees, local moves have to mend it.
                strategies[number], costs[number] = strategies[number][consistent], costs[number][consistent]
    return tuple(result)


def narrowed(problem: Problem, of: Program, keep: Array) -> Problem:
    """A problem without some entries and strategies: per choice, whether it stays."""
    allowed = {c: np.zeros(problem.strategies[c], bool) for c in of.classes}
    for n, c in enumerate(of.classes):
        begin, end = of.starts[len(problem.tables) + n], of.starts[len(problem.tables) + n + 1]
        allowed[c][of.strategies[n][keep[begin:end]]] = True
    masks: list[Array] = []
    for number, table in enumerate(problem.tables):
        rows = keep[of.starts[number] : of.starts[number + 1]].copy()
        for i, c in enumerate(table.classes):
            rows &= allowed[c][table.strategies[:, i]]
        masks.append(rows)
    return with_entries(problem, masks)


@dataclass(frozen=True, slots=True)
class Searched:
    """The answer of branch and bound."""

    values: Array
    bound: float
    feasible: bool
    finished: bool


def search(of: Program, scale: float, *, gap: float, nodes: int, seconds: float, presolve: bool = True) -> Searched:
    """Branch and bound on strategies, until cost and bound are within `gap`, in parts of the cost."""
    factor = UNIT / scale if scale > 0 else 1.0
    tables = len(of.starts) - 1 - len(of.classes)
    integers = np.zeros(len(of.costs))
    integers[of.starts[tables] : of.choices] = 1
    constraints = [scipy.optimize.LinearConstraint(of.one_of_each(), 1, 1)]
    if of.equal.shape[0]:
        constraints.append(scipy.optimize.LinearConstraint(of.equal, 0, 0))
    if of.moves.shape[0]:
        constraints.append(scipy.optimize.LinearConstraint(of.moves, -np.inf, 0))
    if of.limits.shape[0]:
        constraints.append(scipy.optimize.LinearConstraint(of.limits, -np.inf, of.most))
    result = scipy.optimize.milp(
        of.costs * factor,
        integrality=integers,
        bounds=(0, 1),
        constraints=constraints,
        options={"time_limit": max(seconds, 0.01), "node_limit": nodes, "mip_rel_gap": gap, "presolve": presolve},
    )
    if result.status == 2:
        return Searched(None, np.inf, False, True)
    bound = -np.inf if result.mip_dual_bound is None else float(result.mip_dual_bound) / factor
    return Searched(result.x, bound, True, result.status == 0)


def _stacked(upper: Any, lower: Any) -> Any:
    return scipy.sparse.vstack([upper, lower], format="csr")
