"""Transfers an assignment to another search space of the same function."""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.ir import Program, Value
from shardy_py.planner.space import Space, values_of


def transferred(assignment: Sequence[int], source: tuple[Program, Space], target: tuple[Program, Space]) -> tuple[int, ...]:
    """The assignment that gives values the layouts of another one; values whose layout the space lacks are whole."""
    results = {number: number for number in range(len(target[0].main.result_types))}
    counterparts: dict[Value | int, Value | int] = {**dict(zip(values_of(target[0]), values_of(source[0]), strict=True)), **results}
    chosen: list[int] = []
    for strategies, members in zip(target[1].strategies, target[1].members):
        value, dim = members[0]
        axes = source[1].layout(counterparts[value], assignment)[dim]
        chosen.append(strategies.index(axes) if axes in strategies else 0)
    return tuple(chosen)
