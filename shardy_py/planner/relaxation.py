"""The tight local polytope of a problem: bounds by messages between tables that share classes, and branch and bound."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy  # its parts, which take a quarter of this package's time of import, are imported when they are first used

from .evaluation import EntryIndex
from .problem import Limit, Problem, Table, with_entries

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
    ties: Array
    starts: Array
    equal: Any
    moves: Any
    limits: Any
    most: Array
    classes: tuple[int, ...]
    strategies: tuple[Array, ...]
    links: tuple[Containment, ...]

    def without_ties(self) -> LinearProgram:
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
    ties = np.zeros(width)
    for table, start in zip(tables, starts):
        costs[start : start + len(table.costs)] = table.costs + table.ties
        ties[start : start + len(table.costs)] = table.ties
    costs[choices:] = problem.moves[move_numbers]
    equal, links = _consistency(problem, starts, classes, strategies, width)
    moves = _move_rows(tables, starts, place_of_move, width)
    limits, most = _limit_rows(problem, starts, width)
    return LinearProgram(costs, ties, starts, equal, moves, limits, most, classes, tuple(strategies), links)


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


SLOW = 0.01
"""Of the way that is left, in a round: when messages end."""

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
    """Moves no two of which concern the same table, with the tables that decide on them: those that need one, then those that make one.

    A pair is a move and such a table.

    Attributes:
        needing: The number of pairs whose table needs the move; the others may have it at hand.
        entries: The entries of tables, side by side, that need the move or have it at hand.
    """

    columns: Array
    needing: int
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
        """The bound on costs with ties."""
        choices = self.of.choices
        least = float(np.minimum.reduceat(self.columns[:choices], self.of.starts[:-1]).sum()) if choices else 0.0
        return float(np.minimum(self.columns[choices:], 0.0).sum()) + least

    def slacks(self) -> tuple[float, Array]:
        """The bound on costs without ties, and per choice by how much it rises for assignments that make it."""
        of = self.of
        columns = self.columns[: of.choices] - of.ties[: of.choices]
        least = np.minimum.reduceat(columns, of.starts[:-1]) if of.choices else np.zeros(0)
        bound = float(np.minimum(self.columns[of.choices :], 0.0).sum()) + float(least.sum())
        return bound, columns - np.repeat(least, np.diff(of.starts))

    def run(self, *, rounds: int, enough: float, end: float) -> None:
        """Raises the bound until it hardly rises, is `enough`, or `end` (`time.monotonic()`) has passed."""
        bound = self.bound
        for _ in range(rounds):
            for _ in range(PASSES):
                self._sweep(self.shared, forward=True)
                self._sweep(self.shared[::-1], forward=False)
            for uses in self.uses:
                self._share(uses)
            before, bound = bound, self.bound
            if time.monotonic() >= end or bound >= enough or bound - before <= SLOW * min(enough - before, abs(bound)):
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
        columns, costs, needing = self.columns, self.of.costs[uses.columns], uses.needing
        move_of_need, move_of_make = uses.moves[:needing], uses.moves[needing:]
        before = self.shares[uses.rows]
        totals = np.add.reduceat(before, uses.firsts)
        # How much less than the least of the others of its table the least of these entries costs, without a share that it bears.
        side_by_side = np.concatenate([columns[table] for table in uses.tables])
        least = np.minimum.reduceat(side_by_side[uses.entries], uses.entry_starts)
        side_by_side[uses.entries] = np.inf
        savings = np.minimum.reduceat(side_by_side, uses.starts) - least
        # Where it is at hand nothing is saved, so that entries with it gain what the others pay: up to what they are above the least.
        most = costs.copy()
        np.minimum.at(most, move_of_make, np.maximum(0.0, totals[move_of_make] - savings[needing:]))
        gains = np.clip(savings[:needing] + before, 0.0, costs[move_of_need])
        demands = np.add.reduceat(gains, uses.firsts)
        scales = np.divide(most, demands, out=np.ones_like(most), where=demands > most)
        spare = 0.5 * np.maximum(most - demands, 0.0) / np.bincount(move_of_need, minlength=len(costs))
        divided = gains * scales[move_of_need] + spare[move_of_need]
        after = np.add.reduceat(divided, uses.firsts)
        changes = np.concatenate([divided - before, (totals - after)[move_of_make]])
        columns[uses.entry_columns] += changes[uses.entry_pairs]
        self.shares[uses.rows] = divided
        columns[uses.columns] = costs - after


def _uses(of: LinearProgram) -> tuple[_Uses, ...]:
    """The tables that decide on each move; in groups of moves that do not concern the same table, as few as come of the order of moves."""
    matrix = of.moves.tocoo()
    table_of = np.repeat(np.arange(len(of.starts) - 1), np.diff(of.starts))
    is_move = matrix.col >= of.choices
    move_of_row = np.zeros(of.moves.shape[0], np.int64)
    move_of_row[matrix.row[is_move]] = matrix.col[is_move]
    # An entry that needs a move has +1 in the row of its table, one that has it at hand -1 in every row of the move.
    needing, making = ~is_move & (matrix.data > 0), ~is_move & (matrix.data < 0)
    needs: dict[int, list[tuple[int, int, Array]]] = {}
    for row, columns in _grouped(matrix.row[needing], matrix.col[needing]):
        needs.setdefault(int(move_of_row[row]), []).append((row, int(table_of[columns[0]]), columns))
    makes: dict[int, list[tuple[int, Array]]] = {}
    for move, columns in _grouped(move_of_row[matrix.row[making]], matrix.col[making]):
        makes[move] = _grouped(table_of[np.unique(columns)], np.unique(columns))
    groups: list[list[int]] = []
    groups_of_table: dict[int, set[int]] = {}
    for move in sorted(needs):
        tables = {table for _, table, _ in needs[move]} | {table for table, _ in makes.get(move, ())}
        groups_of_tables = set[int]().union(*(groups_of_table.setdefault(table, set()) for table in tables))
        group = next(n for n in range(len(groups) + 1) if n not in groups_of_tables)
        if group == len(groups):
            groups.append([])
        groups[group].append(move)
        for table in tables:
            groups_of_table[table].add(group)
    return tuple(_together(of, moves, needs, makes) for moves in groups)


def _together(
    of: LinearProgram, moves: Sequence[int], needs: Mapping[int, list[tuple[int, int, Array]]], makes: Mapping[int, list[tuple[int, Array]]]
) -> _Uses:
    """Moves that do not concern the same table, with their tables."""
    need_pairs = [(place, table, columns, row) for place, move in enumerate(moves) for row, table, columns in needs[move]]
    make_pairs = [(place, table, columns) for place, move in enumerate(moves) for table, columns in makes.get(move, ())]
    pairs = [pair[:3] for pair in need_pairs] + make_pairs
    tables = np.array([table for _, table, _ in pairs])
    counts = np.array([len(columns) for _, _, columns in pairs])
    sizes = of.starts[tables + 1] - of.starts[tables]
    starts = np.cumsum(sizes) - sizes
    columns = np.concatenate([columns for _, _, columns in pairs])
    pair_of_entry = np.repeat(np.arange(len(pairs)), counts)
    return _Uses(
        np.array(moves),
        len(need_pairs),
        np.array([row for *_, row in need_pairs]),
        np.array([place for place, _, _ in pairs]),
        np.searchsorted([place for place, *_ in need_pairs], np.arange(len(moves))),
        tuple(slice(int(of.starts[table]), int(of.starts[table + 1])) for table in tables),
        starts,
        columns - (of.starts[tables] - starts)[pair_of_entry],
        np.cumsum(counts) - counts,
        columns,
        pair_of_entry,
    )


def _grouped(keys: Array, values: Array) -> list[tuple[int, Array]]:
    """The values of each key, keys in order."""
    order = np.argsort(keys, kind="stable")
    distinct, begins = np.unique(keys[order], return_index=True)
    return list(zip(distinct.tolist(), np.split(values[order], begins[1:]))) if len(distinct) else []
