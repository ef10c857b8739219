"""Cuts arguments that are fed so soon that their price says nothing: gathering them takes microseconds more."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from shardy_py.ir import Value
from shardy_py.planner.evaluation import Evaluation, State
from shardy_py.planner.model import Model
from shardy_py.planner.problem import Problem

SHARE = 0.8
"""The part of the gap that all cuts together may cost; the solver leaves as much."""


def cut(model: Model, problem: Problem, assignment: Sequence[int], inputs: Sequence[Value], gap: float) -> tuple[int, ...]:
    """An assignment in which inputs that lie whole and are fed within the gap are cut as far as it allows; one that cuts nothing stays."""
    numbers = {c: i for i, c in enumerate(model.variables)}

    def is_cut(group: Sequence[int], strategies: Sequence[int]) -> bool:
        return any(model.space.strategies[model.variables[c]][s] for c, s in zip(group, strategies))

    full = model.assignment(assignment)
    whole = [value for value in inputs if value.type.rank and not any(model.space.layout(value, full))]
    if not any(assignment) or not whole:
        return tuple(assignment)
    evaluation = Evaluation(problem)
    state = State(evaluation, assignment, price=evaluation.penalty)  # no cut breaks a limit
    most, seconds = gap * (state.cost + model.constant), dict(zip(model.feeding.tables, model.feeding.weights))
    left = SHARE * most
    small = [value for value in whole if value in model.values and seconds[model.values[value]].max() <= most]
    for value in sorted(small, key=lambda value: -value.type.size):
        group = tuple(numbers[c] for c in model.space.classes[value] if c in numbers)
        current = tuple(state.assignment[list(group)].tolist())
        choices = [s for s in itertools.product(*(range(problem.strategies[c]) for c in group)) if is_cut(group, s)]
        if choices and not is_cut(group, current):
            costs = state.costs(group, np.array([current, *choices]))
            best = int(costs[1:].argmin())
            if (added := float(costs[1 + best] - costs[0])) <= left:
                state.assign(group, choices[best])
                left -= max(added, 0.0)
    return tuple(state.assignment.tolist())
