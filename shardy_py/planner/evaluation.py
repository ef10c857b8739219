"""Costs of assignments of a problem, many at a time, and local moves: a state that is updated while classes change one by one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardy_py.ir import Value
from shardy_py.partition.layouts import Layout
from shardy_py.planner.model import Model, wholeness
from shardy_py.planner.problem import Problem, Table

Array = Any

DENSE = 1 << 22
"""Joint strategies that an index may have a place for: 16 MB."""

LARGE_TABLE = 512
"""Entries up to which all of a table's are tried at once; 4,096 takes three times as long."""

TOLERANCE = 1e-12
"""What a move must save, in parts of the cost."""

ROUNDS = 50
"""Passes over all classes and tables; a few are enough."""


class EntryIndex:
    """Finds the entry of a table by the strategies of its classes."""

    def __init__(self, table: Table, strategies: Sequence[int]) -> None:
        radices = [strategies[c] for c in table.classes]
        strides = np.ones(len(radices), np.int64)
        for i in range(len(radices) - 2, -1, -1):
            strides[i] = strides[i + 1] * radices[i + 1]
        self.strides = strides
        self.keys = table.strategies.astype(np.int64) @ strides
        size = int(np.prod(np.array(radices, np.float64)))
        self._dense: Array = None
        if size <= min(DENSE, 64 * len(self.keys) + 4096):
            self._dense = np.full(size, -1, np.int32)
            self._dense[self.keys] = np.arange(len(self.keys), dtype=np.int32)
            self.forbids = bool((self._dense < 0).any())
        else:
            self._order = np.argsort(self.keys, kind="stable")
            self._sorted = self.keys[self._order]
            self.forbids = True

    def __call__(self, keys: Array) -> Array:
        """The numbers of the entries with some keys; -1 where the table forbids them."""
        if self._dense is not None:
            return self._dense[keys]
        if not len(self._sorted):
            return np.full(len(keys), -1)
        places = np.minimum(np.searchsorted(self._sorted, keys), len(self._sorted) - 1)
        return np.where(self._sorted[places] == keys, self._order[places], -1)


@dataclass(frozen=True, slots=True)
class Touched:
    """The part of a group of classes that a table depends on."""

    table: int
    columns: Array
    strides: Array


class Evaluation:
    """Costs of assignments of one problem.

    Forbidden combinations and sums above their limits cost `penalty` and `price`, so that a search can pass through them.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.indices = tuple(EntryIndex(table, problem.strategies) for table in problem.tables)
        # One more entry stands for what a table forbids: indexing by -1 reaches it.
        self.costs = tuple(np.append(table.costs, 0.0) for table in problem.tables)
        self.moves = tuple(_distinct(table.moves) for table in problem.tables)
        self.limits = np.array(problem.limits)
        self.weights = tuple(np.append(table.weights, np.zeros((1, len(problem.limits))), axis=0) for table in problem.tables)
        self.move_costs = np.asarray(problem.moves, np.float64)
        largest = sum(float(costs.max(initial=0.0)) for costs in self.costs) + float(self.move_costs.sum())
        self.penalty = 10 * largest + 1e-6
        readers: list[list[int]] = [[] for _ in problem.strategies]
        for number, table in enumerate(problem.tables):
            for c in table.classes:
                readers[c].append(number)
        self.readers = tuple(map(tuple, readers))
        self.neighbours = tuple(
            tuple(sorted({other for number in tables for other in problem.tables[number].classes} - {c}))
            for c, tables in enumerate(readers)
        )
        self._touched: dict[tuple[int, ...], tuple[Touched, ...]] = {}

    def touched(self, group: tuple[int, ...]) -> tuple[Touched, ...]:
        """The tables that a group of classes reaches."""
        if (cached := self._touched.get(group)) is None:
            tables = sorted({table for c in group for table in self.readers[c]})
            result: list[Touched] = []
            for table in tables:
                classes = self.problem.tables[table].classes
                columns = [i for i, c in enumerate(group) if c in classes]
                strides = self.indices[table].strides[[classes.index(group[i]) for i in columns]]
                result.append(Touched(table, np.array(columns), strides))
            cached = self._touched[group] = tuple(result)
        return cached


class State:
    """An assignment, changed in place, with its entries, how many of them need each move, and the sums of limits."""

    def __init__(self, evaluation: Evaluation, assignment: Sequence[int], price: float = 0.0) -> None:
        self.evaluation = evaluation
        self.assignment = np.array(assignment, np.int64)
        self.price = price
        problem = evaluation.problem
        self.keys = np.array(
            [int(self.assignment[list(t.classes)] @ i.strides) for t, i in zip(problem.tables, evaluation.indices)], np.int64
        )
        self.entries = np.array([int(index(self.keys[n : n + 1])[0]) for n, index in enumerate(evaluation.indices)], np.int64)
        self.uses = np.zeros(len(evaluation.move_costs) + 1, np.int64)
        self.sums = np.zeros(len(evaluation.limits))
        for table, entry in enumerate(self.entries):
            self.uses[evaluation.moves[table][entry]] += 1
            self.sums += evaluation.weights[table][entry]

    def _use(self, touched: Sequence[Touched], count: int) -> None:
        for at in touched:
            self.uses[self.evaluation.moves[at.table][self.entries[at.table]]] += count

    def _weigh(self, touched: Sequence[Touched]) -> Array:
        """The part of the sums that comes of some tables."""
        return sum((self.evaluation.weights[at.table][self.entries[at.table]] for at in touched), np.zeros(len(self.sums)))

    def _prices(self, uses: Array) -> Array:
        """What each move adds to the cost where nobody else needs it, and nothing for no move."""
        return np.append(np.where(uses[:-1] > 0, 0.0, self.evaluation.move_costs), 0.0)

    def excess(self, sums: Array) -> Array:
        """By how much sums pass their limits, each in parts of its limit; added up along the last axis."""
        limits = self.evaluation.limits
        return (np.maximum(sums - limits, 0.0) / np.maximum(np.abs(limits), 1e-30)).sum(-1)

    @property
    def forbidden(self) -> int:
        """The number of tables that forbid the assignment."""
        return int((self.entries < 0).sum())

    @property
    def allowed(self) -> bool:
        """Whether no table forbids the assignment and all limits are kept."""
        every = sum((weights[entry] for weights, entry in zip(self.evaluation.weights, self.entries)), np.zeros(len(self.sums)))
        return not self.forbidden and bool((every <= self.evaluation.limits).all())

    @property
    def cost(self) -> float:
        """The cost, penalties included."""
        evaluation = self.evaluation
        total = sum(float(evaluation.costs[table][entry]) for table, entry in enumerate(self.entries))
        total += float(evaluation.move_costs[self.uses[:-1] > 0].sum())
        total += self.forbidden * evaluation.penalty
        return total + self.price * float(self.excess(self.sums)) if len(evaluation.limits) else total

    def costs(self, group: tuple[int, ...], candidates: Array) -> Array:
        """The cost with each of `candidates`, of shape (candidates, classes), without the tables that do not change."""
        evaluation = self.evaluation
        changes = candidates - self.assignment[list(group)]
        total = np.zeros(len(candidates))
        moves: list[Array] = []
        limited = len(evaluation.limits) > 0
        sums = self.sums
        touched = evaluation.touched(group)
        for at in touched:
            keys = self.keys[at.table] + changes[:, at.columns] @ at.strides
            index = evaluation.indices[at.table]
            entries = index(keys)
            total += evaluation.costs[at.table][entries]
            if index.forbids and entries.min() < 0:
                total += evaluation.penalty * (entries < 0)
            if evaluation.moves[at.table].shape[1]:
                moves.append(evaluation.moves[at.table][entries])
            if limited:
                sums = sums + evaluation.weights[at.table][entries] - evaluation.weights[at.table][self.entries[at.table]]
        if moves:
            uses = self.uses.copy()
            for at in touched:
                uses[evaluation.moves[at.table][self.entries[at.table]]] -= 1
            prices = self._prices(uses)
            if len(moves) == 1:
                total += prices[moves[0]].sum(1)
            else:
                every = np.sort(np.concatenate(moves, axis=1), axis=1)
                added = prices[every]
                added[:, 1:][every[:, 1:] == every[:, :-1]] = 0.0
                total += added.sum(1)
        if limited and self.price:
            total += self.price * self.excess(sums)
        return total

    def assign(self, group: Sequence[int], strategies: Sequence[int]) -> None:
        """Gives a group of classes other strategies."""
        evaluation = self.evaluation
        changes = np.asarray(strategies) - self.assignment[list(group)]
        touched = evaluation.touched(tuple(group))
        self._use(touched, -1)
        before = self._weigh(touched)
        for at in touched:
            self.keys[at.table] += int(changes[at.columns] @ at.strides)
            self.entries[at.table] = evaluation.indices[at.table](self.keys[at.table : at.table + 1])[0]
        self._use(touched, 1)
        self.sums += self._weigh(touched) - before
        self.assignment[list(group)] = strategies


def _distinct(moves: Array) -> Array:
    """The moves of a table's entries, and of no entry, each once in a row."""
    moves = np.sort(moves, axis=1)
    moves[:, 1:][moves[:, 1:] == moves[:, :-1]] = -1
    return np.concatenate([moves, np.full((1, moves.shape[1]), -1)])


def descend(evaluation: Evaluation, start: Sequence[int], *, rounds: int = ROUNDS) -> State:
    """The best assignment that single classes, and all classes of a table at once, lead to from a start.

    Limits that the start breaks get a growing price until they are kept, or no price keeps them.
    """
    state = State(evaluation, start)
    if not len(evaluation.limits):
        _descend(state, rounds)
        return state
    # Limits are dear from the start of the search if the start keeps them, so that no step leaves them.
    price = evaluation.penalty
    if not state.allowed:
        price = max(state.cost - state.forbidden * evaluation.penalty, 1e-6)
    for _ in range(8):
        state.price = price
        _descend(state, rounds)
        if state.allowed or price >= evaluation.penalty * 1e3:
            break
        price *= 10
    if state.allowed and state.price < evaluation.penalty:
        state.price = evaluation.penalty * 1e3
        _descend(state, rounds)
    return state


def _descend(state: State, rounds: int) -> None:
    evaluation = state.evaluation
    scale = max(abs(state.cost), 1e-300)
    tables = [table for table in evaluation.problem.tables if len(table.classes) > 1 and len(table.costs) <= LARGE_TABLE]
    for _ in range(rounds):
        _single_classes(state, scale)
        if sum(improve(state, table.classes, table.strategies, scale) for table in tables) == 0:
            break


def _single_classes(state: State, scale: float) -> None:
    """Gives classes their best strategy in turn until none has a better one."""
    evaluation = state.evaluation
    waiting = np.array([bool(tables) for tables in evaluation.readers])
    ranges = [np.arange(n)[:, None] for n in evaluation.problem.strategies]
    steps = 0
    while waiting.any() and steps < 100 * len(waiting):
        for c in np.flatnonzero(waiting):
            waiting[c] = False
            steps += 1
            if improve(state, (int(c),), ranges[c], scale):
                waiting[list(evaluation.neighbours[c])] = True


def improve(state: State, group: tuple[int, ...], candidates: np.ndarray, scale: float) -> bool:
    """Gives classes the best of `candidates`, of shape (candidates, classes), if that is better; returns whether the state changed."""
    current = state.assignment[list(group)]
    costs = state.costs(group, np.concatenate([candidates, current[None]]))
    best = int(np.argmin(costs))
    if costs[best] >= costs[-1] - TOLERANCE * scale:
        return False
    state.assign(group, candidates[best])
    return True


SHARE = 0.8
"""The part of the gap that all cuts together may cost; the solver leaves as much."""

OF_STATE = 0.5
"""The part of the gap that cuts of inputs that are not fed may cost together."""

SAME = 0.01
"""The part of the gap by which costs of cuts may differ that are about the same."""


def cut(model: Model, evaluation: Evaluation, assignment: Sequence[int], inputs: Sequence[Value], gap: float) -> tuple[int, ...]:
    """An assignment in which whole inputs, unless feeding them takes longer than the gap, are cut to the extent that it allows.

    An assignment that cuts nothing stays. Of cuts that cost about the same it takes the one into most pieces, along the first dimensions.
    """
    numbers = {c: i for i, c in enumerate(model.variables)}

    def layout(value: Value, group: Sequence[int], strategies: Sequence[int]) -> Layout:
        of = {model.variables[number]: s for number, s in zip(group, strategies)}
        return tuple(model.space.strategies[c][of.get(c, 0)] for c in model.space.classes[value])

    full = model.assignment(assignment)
    whole = [value for value in inputs if value.type.rank and not any(model.space.layout(value, full))]
    if not any(assignment) or not whole:
        return tuple(assignment)
    state = State(evaluation, assignment, price=evaluation.penalty)  # no cut breaks a limit
    most, seconds = gap * (state.cost + model.constant), dict(zip(model.feeding.tables, model.feeding.weights))
    left = {True: SHARE * most, False: OF_STATE * most}
    small = [value for value in whole if value in model.values and np.max(seconds.get(model.values[value], 0.0)) <= most]
    for value in sorted(small, key=lambda value: -value.type.size):
        group = tuple(numbers[c] for c in model.space.classes[value] if c in numbers)
        current = tuple(state.assignment[list(group)].tolist())
        choices = [s for s in itertools.product(*(range(evaluation.problem.strategies[c]) for c in group)) if any(layout(value, group, s))]
        if choices and not any(layout(value, group, current)):
            own, *costs = state.costs(group, np.array([current, *choices])).tolist()
            near = [n for n, cost in enumerate(costs) if cost <= min(costs) + SAME * most]
            best = min(near, key=lambda n: wholeness(layout(value, group, choices[n]), model.space.mesh))
            is_fed = model.values[value] in seconds
            if (added := costs[best] - own) <= left[is_fed]:
                state.assign(group, choices[best])
                left[is_fed] -= max(added, 0.0)
    return tuple(state.assignment.tolist())
