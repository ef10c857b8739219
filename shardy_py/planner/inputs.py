"""Shards data inputs where that costs next to nothing, since no price counts bringing them to the devices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence

import numpy as np

from shardy_py.ir import Value
from shardy_py.ir.types import element_bits
from shardy_py.partition.layouts import local_shape
from shardy_py.plan.record import PlanRecord
from shardy_py.planner.evaluation import Evaluation, State
from shardy_py.planner.model import Model

SHARE = 0.02
"""The part of the gap that all cuts together may cost: at most a few microseconds of a step of 30 ms."""


def cut(model: Model, evaluation: Evaluation, assignment: Sequence[int], inputs: Sequence[Value], gap: float) -> tuple[int, ...]:
    """An assignment in which each of some inputs lies in pieces as small as the gap allows, along its first dimensions.

    Args:
        model: The model.
        evaluation: Of its problem, with limits.
        assignment: Per variable, the number of its strategy.
        inputs: Arguments of the function that no step hands to the next.
        gap: The user's.
    """
    numbers = {c: i for i, c in enumerate(model.variables)}
    state = State(evaluation, assignment, price=evaluation.penalty)  # no cut breaks a limit
    left = SHARE * gap * (state.cost + model.constant)
    for value in sorted(inputs, key=lambda value: -math.prod(value.type.shape)):
        group = tuple(numbers[c] for c in model.space.classes[value] if c in numbers)
        if group:
            strategies, spent = _smallest(model, state, value, group, left)
            state.assign(group, strategies)
            left -= spent
    return tuple(map(int, state.assignment))


def lying_whole(plan: PlanRecord, arguments: Sequence[Value], data: Collection[Value]) -> list[tuple[int, str]]:
    """Bytes and path of each data input that a plan has whole on every device, the largest first.

    Args:
        plan: The plan.
        arguments: Of the function.
        data: Those that no step hands to the next.
    """
    whole = [
        (math.ceil(value.type.size * element_bits(value.type.dtype) / 8), value.path)
        for argument, value in zip(arguments, plan.inputs)
        if argument in data and value.shape and (value.sharding is None or value.sharding.is_fully_replicated)
    ]
    return sorted(whole, key=lambda pair: (-pair[0], pair[1]))


def _smallest(model: Model, state: State, value: Value, group: tuple[int, ...], most: float) -> tuple[tuple[int, ...], float]:
    """The strategies with the smallest pieces of a value within an extra cost, and that cost."""
    current = tuple(int(s) for s in state.assignment[list(group)])
    strategies = [current, *itertools.product(*(range(state.evaluation.problem.strategies[c]) for c in group))]
    costs = state.costs(group, np.array(strategies))
    added = [float(each) for each in costs - costs[0]]

    def pieces(number: int) -> tuple[int, int, float, int]:
        full = list(model.assignment(state.assignment.tolist()))
        for c, strategy in zip(group, strategies[number]):
            full[model.variables[c]] = strategy
        layout = model.space.layout(value, full)
        first = sum(dim for dim, axes in enumerate(layout) if axes)
        return math.prod(local_shape(value.type.shape, layout, model.space.mesh)), first, added[number], number

    size, *_, best = min(pieces(n) for n, cost in enumerate(added) if cost <= most)
    return (strategies[best], max(added[best], 0.0)) if size < pieces(0)[0] else (current, 0.0)
