"""The tight local polytope of a problem: its linear program, the bound that its duals give, and what reduced costs rule out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import LinearConstraint, linprog, milp
from scipy.sparse import csr_array, vstack

from .evaluation import EntryIndex
from .problem import Problem, Table, with_entries

Array = Any

UNIT = 1e3  # The programs handed to HiGHS have costs of about this size: its tolerances are absolute, 1e-7.


@dataclass(frozen=True, slots=True)
class Program:
    """The linear program of a problem: columns are entries of tables, then strategies of classes, then moves.

    Attributes:
        costs: Per column, its cost with ties.
        ties: Per column, its ties.
        starts: Where the columns of each table and class begin, and where the last end; one column of each is chosen.
        equal: Rows whose columns add up to nothing: what entries of a table choose, its classes and the tables that it contains choose.
        moves: Rows that are at most nothing: a move is paid where entries need it.
        limits: Rows of the limits.
        most: What the rows of limits are at most.
        classes: The classes that are in a table, in the order of their columns.
        strategies: Per class, the strategies that its columns stand for.
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

    def without_ties(self) -> Program:
        """The program of costs alone."""
        return replace(self, costs=self.costs - self.ties, ties=np.zeros_like(self.ties))

    @property
    def choices(self) -> int:
        """How many columns are choices, all but the moves."""
        return int(self.starts[-1])

    def one_of_each(self) -> Any:
        """A row per table and class: one of its columns is chosen."""
        count = len(self.starts) - 1
        rows = np.repeat(np.arange(count), np.diff(self.starts))
        return csr_array((np.ones(self.choices), (rows, np.arange(self.choices))), shape=(count, len(self.costs)))


@dataclass(frozen=True, slots=True)
class Relaxed:
    """What a linear program says.

    Attributes:
        values: Per column its value; None where time ran out.
        bound: No assignment costs less, ties left out.
        slacks: Per column that is a choice, by how much the bound rises for assignments that make it.
        feasible: False where no assignment keeps all rows.
    """

    values: Array
    bound: float
    slacks: Array
    feasible: bool = True


def program(problem: Problem) -> Program:
    """The linear program of a problem."""
    tables = problem.tables
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
    equal = _consistency(problem, starts, classes, strategies, width)
    moves = _move_rows(tables, starts, place_of_move, width)
    limits, most = _limit_rows(problem, starts, width)
    return Program(costs, ties, starts, equal, moves, limits, most, classes, tuple(strategies))


def _consistency(problem: Problem, starts: Array, classes: Sequence[int], strategies: Sequence[Array], width: int) -> Any:
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

    def link(parent: Array, child: Array, parent_start: int, child_start: int, size: int) -> None:
        nonlocal count
        rows.extend((count + child, count + np.arange(size)))
        columns.extend((parent_start + parent, child_start + np.arange(size)))
        signs.extend((np.ones(len(parent)), -np.ones(size)))
        count += size

    for number, table in enumerate(tables):
        own = set(table.classes)
        candidates = sorted({n for c in table.classes for n in by_class[c] if n != number})
        contained = [n for n in candidates if set(tables[n].classes) < own]
        children = [n for n in contained if not any(set(tables[n].classes) < set(tables[m].classes) for m in contained)]
        covered = {c for n in children for c in tables[n].classes}
        entries = np.arange(len(table.costs))
        for n in children:
            if n not in indices:
                indices[n] = EntryIndex(tables[n], problem.strategies)
            columns_of_child = [table.classes.index(c) for c in tables[n].classes]
            places = indices[n](table.strategies[:, columns_of_child] @ indices[n].strides)
            link(entries, places, int(starts[number]), int(starts[n]), len(tables[n].costs))
        for i, c in enumerate(table.classes):
            if c not in covered:
                place = place_of_class[c]
                places = np.searchsorted(strategies[place], table.strategies[:, i])
                link(entries, places, int(starts[number]), int(starts[len(tables) + place]), len(strategies[place]))
    return _matrix(signs, rows, columns, count, width)


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
        made = table.at_hand[entries, at]
        begins = np.searchsorted(moves[order], made, "left")
        counts = np.searchsorted(moves[order], made, "right") - begins
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        rows.append(order[np.repeat(begins, counts) + offsets])
        columns.append(np.repeat(start + entries, counts))
        signs.append(-np.ones(len(offsets)))
    return _matrix(signs, rows, columns, count, width)


def _limit_rows(problem: Problem, starts: Array, width: int) -> tuple[Any, Array]:
    """Rows of limits, each divided by its largest weight."""
    rows: list[Array] = []
    columns: list[Array] = []
    values: list[Array] = []
    most: list[float] = []
    for number, limit in enumerate(problem.limits):
        largest = max([float(np.abs(w).max(initial=0.0)) for w in limit.weights], default=0.0)
        scale = max(largest, abs(limit.limit) * 1e-3, 1e-300)
        for table, weights in zip(limit.tables, limit.weights):
            (entries,) = np.nonzero(weights)
            rows.append(np.full(len(entries), number))
            columns.append(starts[table] + entries)
            values.append(weights[entries] / scale)
        most.append(limit.limit / scale)
    return _matrix(values, rows, columns, len(problem.limits), width), np.array(most)


def _matrix(values: Sequence[Array], rows: Sequence[Array], columns: Sequence[Array], height: int, width: int) -> Any:
    if not rows:
        return csr_array((height, width))
    return csr_array((np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=(height, width))


def relax(of: Program, scale: float, seconds: float) -> Relaxed:
    """Solves a linear program.

    Args:
        of: The program.
        scale: About what an assignment costs.
        seconds: The most that it may take.

    Returns:
        The values, and the bound that the duals prove: a bound whatever the solver's tolerances.
    """
    factor = UNIT / scale if scale > 0 else 1.0
    inequalities = _stacked(of.moves, of.limits)
    at_most = np.concatenate([np.zeros(of.moves.shape[0]), of.most])
    ones = of.one_of_each()
    result = linprog(
        of.costs * factor,
        A_ub=inequalities if inequalities.shape[0] else None,
        b_ub=at_most if inequalities.shape[0] else None,
        A_eq=_stacked(of.equal, ones),
        b_eq=np.concatenate([np.zeros(of.equal.shape[0]), np.ones(ones.shape[0])]),
        bounds=(0, None),
        method="highs-ds",
        options={"time_limit": max(seconds, 0.01)},
    )
    if result.status == 2:
        return Relaxed(None, np.inf, np.zeros(of.choices), False)
    if result.status != 0:
        duals = (np.zeros(of.equal.shape[0]), np.zeros(of.moves.shape[0]), np.zeros(of.limits.shape[0]))
        return proven(of, duals, None)
    equal = result.eqlin.marginals[: of.equal.shape[0]] / factor
    at_moves, at_limits = np.split(result.ineqlin.marginals / factor, [of.moves.shape[0]]) if inequalities.shape[0] else (np.zeros(0),) * 2
    return proven(of, (equal, np.minimum(at_moves, 0.0), np.minimum(at_limits, 0.0)), result.x)


def proven(of: Program, duals: tuple[Array, Array, Array], values: Array) -> Relaxed:
    """What duals of the rows that make tables agree, of moves and of limits prove."""
    equal, at_moves, at_limits = duals
    prices = of.costs - of.equal.T @ equal - of.moves.T @ at_moves - of.limits.T @ at_limits
    choices = of.choices
    constant = float(at_limits @ of.most) + float(np.minimum(prices[choices:], 0.0).sum())
    without_ties = prices[:choices] - of.ties[:choices]
    least = np.minimum.reduceat(without_ties, of.starts[:-1]) if choices else np.zeros(0)
    return Relaxed(values, constant + float(least.sum()), without_ties - np.repeat(least, np.diff(of.starts)))


def rounded(of: Program, values: Array, start: Sequence[int]) -> tuple[int, ...]:
    """The assignment of the strategies that have the largest values; classes without columns keep theirs."""
    result = list(start)
    tables = len(of.starts) - 1 - len(of.classes)
    for n, c in enumerate(of.classes):
        begin, end = of.starts[tables + n], of.starts[tables + n + 1]
        result[c] = int(of.strategies[n][np.argmax(values[begin:end])])
    return tuple(result)


def integral(of: Program, values: Array) -> bool:
    """Whether values choose one strategy of each class."""
    tables = len(of.starts) - 1 - len(of.classes)
    chosen = values[of.starts[tables] : of.choices]
    return bool((np.minimum(chosen, 1 - chosen) < 1e-6).all())


def narrowed(problem: Problem, of: Program, relaxed: Relaxed, most: float) -> Problem:
    """A problem without the entries and strategies that no assignment makes that costs at most some cost, ties left out."""
    keep = relaxed.bound + relaxed.slacks <= most
    allowed = {c: np.zeros(problem.strategies[c], bool) for c in of.classes}
    for n, c in enumerate(of.classes):
        begin, end = of.starts[len(problem.tables) + n], of.starts[len(problem.tables) + n + 1]
        allowed[c][of.strategies[n][keep[begin:end]]] = True
    kept: list[Array] = []
    for number, table in enumerate(problem.tables):
        rows = keep[of.starts[number] : of.starts[number + 1]].copy()
        for i, c in enumerate(table.classes):
            rows &= allowed[c][table.strategies[:, i]]
        kept.append(rows)
    return with_entries(problem, kept)


@dataclass(frozen=True, slots=True)
class Searched:
    """What branch and bound found.

    Attributes:
        values: Per column its value; None where nothing was found.
        bound: No assignment costs less, ties included.
        feasible: False where no assignment keeps all rows.
        finished: Whether it ended for its gap.
    """

    values: Array
    bound: float
    feasible: bool
    finished: bool


def search(of: Program, scale: float, *, gap: float, nodes: int, seconds: float, presolve: bool = True) -> Searched:
    """Branch and bound on the strategies of classes.

    Args:
        of: The program.
        scale: About what an assignment costs.
        gap: Ends when cost and bound are as close, in parts of the cost.
        nodes: The most nodes of the tree.
        seconds: The most that it may take.
        presolve: Whether HiGHS makes the program smaller first.

    Returns:
        The best values found and the bound of all.
    """
    factor = UNIT / scale if scale > 0 else 1.0
    tables = len(of.starts) - 1 - len(of.classes)
    integers = np.zeros(len(of.costs))
    integers[of.starts[tables] : of.choices] = 1
    constraints = [LinearConstraint(of.one_of_each(), 1, 1)]
    if of.equal.shape[0]:
        constraints.append(LinearConstraint(of.equal, 0, 0))
    if of.moves.shape[0]:
        constraints.append(LinearConstraint(of.moves, -np.inf, 0))
    if of.limits.shape[0]:
        constraints.append(LinearConstraint(of.limits, -np.inf, of.most))
    result = milp(
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
    return vstack([upper, lower], format="csr")
