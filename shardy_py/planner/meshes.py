"""Mesh shapes for a number of devices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from shardy_py.dialect.format import sizes_text
from shardy_py.plan.cost_analysis import seconds_text
from shardy_py.plan.search import Search

MOST_AXES = 2
"""Axes of a mesh whose shape is searched; three take minutes, and no case is known in which they paid without a third kind of links."""


def shapes(devices: int) -> tuple[tuple[int, ...], ...]:
    """The ordered factorizations of a number of devices into at most `MOST_AXES` sizes, fewer axes first.

    Example:
        >>> shapes(8)
        ((8,), (2, 4), (4, 2))
    """
    if devices == 1:
        return ((1,),)
    return tuple(shape for axes in range(1, MOST_AXES + 1) for shape in _factorizations(devices, axes))


def _factorizations(number: int, count: int) -> Iterator[tuple[int, ...]]:
    if count == 1:
        yield (number,)
        return
    for size in range(2, number):
        if number % size == 0:
            for rest in _factorizations(number // size, count - 1):
                yield (size, *rest)


def named(shape: tuple[int, ...]) -> dict[str, int]:
    """A shape as a mesh.

    Example:
        >>> named((16, 4))
        {'axis0': 16, 'axis1': 4}
    """
    return {f"axis{i}": size for i, size in enumerate(shape)}


@dataclass(frozen=True)
class ShapeSearch:
    """The search for the shape of a mesh: the step of each shape."""

    steps: Mapping[tuple[int, ...], tuple[float, float] | None]

    @property
    def best(self) -> tuple[int, ...] | None:
        """The shape whose plan is the cheapest, the first of equals; None if none has one."""
        planned = {shape: step for shape, step in self.steps.items() if step is not None}
        return min(planned, key=lambda shape: planned[shape][0], default=None)

    def of_all_shapes(self, search: Search, gap: float) -> Search:
        """A search of the best shape as one of all shapes, whose lower bound is the least of theirs."""
        others = {shape: step for shape, step in self.steps.items() if shape != self.best}
        texts = [f"({sizes_text(named(shape))}) {'none fits' if step is None else seconds_text(step[0])}" for shape, step in others.items()]
        space = {**search.space, "other mesh shapes": ", ".join(texts) or "none"}
        bound = min(search.lower_bound_seconds, *(step[1] for step in others.values() if step is not None), math.inf)
        whole = replace(search, lower_bound_seconds=bound, space=space)
        return replace(whole, status="time_limit") if search.status == "optimal" and whole.gap > gap else whole
