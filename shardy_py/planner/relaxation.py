"""The tight local polytope of a problem: bounds by messages between tables that share classes, and branch and bound."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy  # its parts, which take a quarter of this package's time of import, are imported when they are first used

from .evaluation import EntryIndex
from .problem import Problem, Table, with_entries

Array = Any


UNIT = 1e3
"""About the costs of a program that is handed to HiGHS, whose tolerances are absolute, 1e-7."""


@dataclass(frozen=True, slots=True)
class Containment:
    """A table and what it shares with others: a class, or a table that it contains.

    Attributes:
        rows: The rows of `LinearProgram.equal` that make them agree, one for each of its columns.
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
class LinearProgram:
    """The linear program of a problem: columns are entries of tables, then strategies of classes, then moves.

    Attributes:
        equal: Rows whose columns add up to nothing: what entries of a table choose, its classes and the tables that it contains choose.
        moves: Rows that are at most nothing: a move is paid where entries need it.
    """

    costs: Array
    starts: Array
    equal: Any
    moves: Any
    limits: Any
    most: Array
    classes: tuple[int, ...]
    strategies: tuple[Array, ...]
    links: tuple[Containment, ...]

    @property
    def choices(self) -> int:
        """The number of columns that are choices; the others are moves."""
        return int(self.starts[-1])

    def one_of_each(self) -> Any:
        """A row per table and class: one of its columns is chosen."""
        count = len(self.starts) - 1
        rows = np.repeat(np.arange(count), np.diff(self.starts))
        return scipy.sparse.csr_array((np.ones(self.choices), (rows, np.arange(self.choices))), shape=(count, len(self.costs)))


def program(problem: Problem) -> LinearProgram:
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
    for table, start in zip(tables, starts):
        costs[start : start + len(table.costs)] = table.costs
    costs[choices:] = problem.moves[move_numbers]
    equal, links = _consistency(problem, starts, classes, strategies, width)
    moves = _move_rows(tables, starts, place_of_move, width)
    limits, most = _limit_rows(problem, width)
    return LinearProgram(costs, starts, equal, moves, limits, most, classes, tuple(strategies), links)


def _consistency(
    problem: Problem, starts: Array, classes: Sequence[int], strategies: Sequence[Array], width: int
) -> tuple[Any, tuple[Containment, ...]]:
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
    links: list[Containment] = []

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
        links.append(
            Containment(above, below, slice(count - size, count), places, order, begins, counts == 0 if (counts == 0).any() else None)
        )

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
    """A row per move and table that needs it: the move is paid."""
    rows: list[Array] = []
    columns: list[Array] = []
    signs: list[Array] = []
    count = 0
    for table, start in zip(tables, starts):
        entries, at = np.nonzero(table.moves >= 0)
        needed, places = np.unique(table.moves[entries, at], return_inverse=True)
        rows.extend((count + places, count + np.arange(len(needed))))
        columns.extend((start + entries, place_of_move[needed]))
        signs.extend((np.ones(len(entries)), -np.ones(len(needed))))
        count += len(needed)
    return _matrix(signs, rows, columns, count, width)


def scales(problem: Problem) -> Array:
    """What the row of each limit is divided by: about its largest weight."""
    largest = np.max([np.abs(table.weights).max(0, initial=0.0) for table in problem.tables], axis=0, initial=0.0)
    return np.maximum(largest, np.maximum(np.abs(problem.limits) * 1e-3, 1e-300))


def _limit_rows(problem: Problem, width: int) -> tuple[Any, Array]:
    """Rows of limits, each divided by its scale."""
    scale = scales(problem)
    weights = np.concatenate([table.weights / scale for table in problem.tables]) if problem.tables else np.zeros((0, len(scale)))
    columns, numbers = np.nonzero(weights)
    return _matrix([weights[columns, numbers]], [numbers], [columns], len(scale), width), np.array(problem.limits) / scale


def _matrix(values: Sequence[Array], rows: Sequence[Array], columns: Sequence[Array], height: int, width: int) -> Any:
    if not rows:
        return scipy.sparse.csr_array((height, width))
    return scipy.sparse.csr_array((np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=(height, width))


def rounded(of: LinearProgram, values: Array, start: Sequence[int]) -> tuple[int, ...]:
    """The assignment of the strategies that have the largest values; classes without columns keep theirs."""
    result = list(start)
    tables = len(of.starts) - 1 - len(of.classes)
    for n, c in enumerate(of.classes):
        begin, end = of.starts[tables + n], of.starts[tables + n + 1]
        result[c] = int(of.strategies[n][np.argmax(values[begin:end])])
    return tuple(result)


def narrowed(problem: Problem, of: LinearProgram, keep: Array) -> Problem:
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


def linear_duals(of: LinearProgram, scale: float) -> tuple[Array, Array, Array] | None:
    """The duals of the linear program: of rows that are equal, of moves and of limits; None where it was not solved."""
    factor = UNIT / scale if scale > 0 else 1.0
    ones, rows = of.one_of_each(), scipy.sparse.vstack([of.moves, of.limits], format="csr")
    result = scipy.optimize.linprog(
        of.costs * factor,
        A_ub=rows if rows.shape[0] else None,
        b_ub=np.concatenate([np.zeros(of.moves.shape[0]), of.most]) if rows.shape[0] else None,
        A_eq=scipy.sparse.vstack([of.equal, ones], format="csr"),
        b_eq=np.concatenate([np.zeros(of.equal.shape[0]), np.ones(ones.shape[0])]),
        method="highs-ds",
    )
    if result.status != 0:
        return None
    of_rows = np.maximum(-result.ineqlin.marginals / factor, 0.0) if rows.shape[0] else np.zeros(0)
    of_moves, of_limits = np.split(of_rows, [of.moves.shape[0]])
    return result.eqlin.marginals[: of.equal.shape[0]] / factor, of_moves, of_limits


def search(of: LinearProgram, scale: float, *, gap: float, nodes: int, seconds: float, presolve: bool = True) -> Searched:
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


PASSES = 5
"""Between two looks at the moves, which cost as much as several passes."""


@dataclass(frozen=True, slots=True)
class _Shared:
    """A class shared by tables, or a table contained in others."""

    links: tuple[Containment, ...]
    later: tuple[bool, ...]
    earlier: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class _Uses:
    """Moves no two of which concern the same table, with the tables that need them; a pair is a move and such a table.

    Attributes:
        rows: Of each pair, in `LinearProgram.moves`.
        moves: Of each pair, the place of its move in `columns`; pairs of one move stand together.
        entries: The entries that need the move, in the columns of the tables of all pairs side by side.
    """

    columns: Array
    rows: Array
    moves: Array
    firsts: Array
    tables: tuple[slice, ...]
    starts: Array
    entries: Array
    entry_starts: Array
    entry_columns: Array
    entry_pairs: Array


class Ascent:
    """Raises the bound of a program by shifting costs between tables; sequential reweighted message passing, and shares of moves.

    Every step keeps the cost of each assignment, so the bound holds whenever it stops: costs of columns less those of rows are
    feasible duals.
    """

    def __init__(self, of: LinearProgram, unsupported: float) -> None:
        self.of = of
        self.unsupported = unsupported
        self.columns = of.costs.copy()
        self.equal, self.shares = (np.zeros(rows.shape[0]) for rows in (of.equal, of.moves))
        by_child: dict[int, list[Containment]] = {}
        for link in of.links:
            by_child.setdefault(link.child.start, []).append(link)
        order = sorted(by_child)
        place = {child: n for n, child in enumerate(order)}
        children: dict[int, list[int]] = {}
        for link in of.links:
            children.setdefault(link.parent.start, []).append(place[link.child.start])
        self.shared = tuple(
            _Shared(
                tuple(by_child[child]),
                tuple(max(children[link.parent.start]) > n for link in by_child[child]),
                tuple(min(children[link.parent.start]) < n for link in by_child[child]),
            )
            for n, child in enumerate(order)
        )
        self.uses = _uses(of)

    @property
    def bound(self) -> float:
        """The bound."""
        return float(np.minimum(self.columns[self.of.choices :], 0.0).sum()) + float(self._least().sum())

    def _least(self) -> Array:
        """The least price of each table and class."""
        return np.minimum.reduceat(self.columns[: self.of.choices], self.of.starts[:-1]) if self.of.choices else np.zeros(0)

    def slacks(self) -> tuple[float, Array]:
        """The bound, and per choice by how much it rises for assignments that make it."""
        return self.bound, self.columns[: self.of.choices] - np.repeat(self._least(), np.diff(self.of.starts))

    def run(self, *, rounds: int, enough: float, end: float) -> None:
        """Raises the bound in some rounds, until it is `enough` or `end` (`time.monotonic()`) has passed."""
        for _ in range(rounds):
            for _ in range(PASSES):
                self._sweep(self.shared, forward=True)
                self._sweep(self.shared[::-1], forward=False)
            for uses in self.uses:
                self._share(uses)
            if time.monotonic() >= end or self.bound >= enough:
                break

    def _marginals(self, link: Containment) -> Array:
        """The least price of a table's entries for each entry of what it shares."""
        least = np.minimum.reduceat(self.columns[link.parent][link.order], link.starts)
        if link.unsupported is not None:
            least[link.unsupported] = self.unsupported
        return least

    def _sweep(self, nodes: Sequence[_Shared], *, forward: bool) -> None:
        columns = self.columns
        for node in nodes:
            child = node.links[0].child
            marginals = [self._marginals(link) for link in node.links]
            total = columns[child] + sum(marginals)
            targets, sources = (node.later, node.earlier) if forward else (node.earlier, node.later)
            weight = 1.0 / max(sum(targets), sum(sources), 1)
            share = weight * total
            for link, marginal, target in zip(node.links, marginals, targets):
                message = share - marginal if target else -marginal
                columns[link.parent] += message[link.places]
                self.equal[link.rows] -= message
            columns[child] = total - sum(targets) * share

    def _share(self, uses: _Uses) -> None:
        """Divides the costs of moves, of which no two concern the same table, among the tables that need them, by what each gains."""
        columns, costs = self.columns, self.of.costs[uses.columns]
        before = self.shares[uses.rows]
        # How much less than the least of the others of its table the least of these entries costs, without a share that it bears.
        side_by_side = np.concatenate([columns[table] for table in uses.tables])
        least = np.minimum.reduceat(side_by_side[uses.entries], uses.entry_starts)
        side_by_side[uses.entries] = np.inf
        savings = np.minimum.reduceat(side_by_side, uses.starts) - least
        gains = np.clip(savings + before, 0.0, costs[uses.moves])
        demands = np.add.reduceat(gains, uses.firsts)
        scales = np.divide(costs, demands, out=np.ones_like(costs), where=demands > costs)
        spare = 0.5 * np.maximum(costs - demands, 0.0) / np.bincount(uses.moves, minlength=len(costs))
        divided = gains * scales[uses.moves] + spare[uses.moves]
        columns[uses.entry_columns] += (divided - before)[uses.entry_pairs]
        self.shares[uses.rows] = divided
        columns[uses.columns] = costs - np.add.reduceat(divided, uses.firsts)


def _uses(of: LinearProgram) -> tuple[_Uses, ...]:
    """The tables that need each move; in groups of moves that do not concern the same table, as few as come of the order of moves."""
    table_of = np.repeat(np.arange(len(of.starts) - 1), np.diff(of.starts))
    needs: dict[int, list[tuple[int, int, Array]]] = {}
    for row, (begin, end) in enumerate(itertools.pairwise(of.moves.indptr)):
        columns = np.sort(of.moves.indices[begin:end])  # the entries that need the move, and behind them the move
        needs.setdefault(int(columns[-1]), []).append((row, int(table_of[columns[0]]), columns[:-1]))
    groups: list[list[int]] = []
    groups_of_table: dict[int, set[int]] = {}
    for move in sorted(needs):
        tables = {table for _, table, _ in needs[move]}
        taken = set[int]().union(*(groups_of_table.setdefault(table, set()) for table in tables))
        group = next(n for n in range(len(groups) + 1) if n not in taken)
        if group == len(groups):
            groups.append([])
        groups[group].append(move)
        for table in tables:
            groups_of_table[table].add(group)
    return tuple(_together(of, moves, needs) for moves in groups)


def _together(of: LinearProgram, moves: Sequence[int], needs: Mapping[int, list[tuple[int, int, Array]]]) -> _Uses:
    """Moves that do not concern the same table, with their tables."""
    pairs = [(place, *pair) for place, move in enumerate(moves) for pair in needs[move]]
    places, rows, tables = (np.array([pair[i] for pair in pairs]) for i in range(3))
    counts = np.array([len(columns) for *_, columns in pairs])
    sizes = of.starts[tables + 1] - of.starts[tables]
    starts = np.cumsum(sizes) - sizes
    columns = np.concatenate([columns for *_, columns in pairs])
    pair_of_entry = np.repeat(np.arange(len(pairs)), counts)
    return _Uses(
        np.array(moves),
        rows,
        places,
        np.searchsorted(places, np.arange(len(moves))),
        tuple(slice(int(of.starts[table]), int(of.starts[table + 1])) for table in tables),
        starts,
        columns - (of.starts[tables] - starts)[pair_of_entry],
        np.cumsum(counts) - counts,
        columns,
        pair_of_entry,
    )
