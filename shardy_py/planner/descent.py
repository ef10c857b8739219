"""Local moves: better assignments next to one that is at hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .evaluation import Evaluation, State

LARGE_TABLE = 512  # Entries up to which all of a table's are tried at once; 4,096 takes three times as long.
TOLERANCE = 1e-12  # What a step must save, in parts of the cost.
ROUNDS = 50


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
    numbers: dict[object, int] = {}
    groups = [numbers.setdefault((table.classes, table.strategies.tobytes()), len(numbers)) for table in tables]
    changes_at_failure: dict[int, int] = {}  # joint strategies of which none saves anything are left alone until the assignment changes
    for _ in range(rounds):
        _single_classes(state, scale)
        changed = False
        for number, table in zip(groups, tables):
            if changes_at_failure.get(number) == state.changes:
                continue
            if improve(state, table.classes, table.strategies, scale):
                changed = True
            else:
                changes_at_failure[number] = state.changes
        if not changed:
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
