"""Prices of decisions: the search goes on from where it ended, with an input pinned or an annotation dropped."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardy_py.dialect import AxisRef, DimensionSharding, TensorSharding
from shardy_py.dialect.axis import Axes
from shardy_py.errors import UserError
from shardy_py.partition.layouts import Layout, parts, spelled
from shardy_py.plan.checks.specs import sharding_text
from shardy_py.plan.cost_analysis import seconds_text
from shardy_py.plan.memory.analysis import analyse as memory_of
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.search import Alternative, Price
from shardy_py.planner.assigned import shardings_of
from shardy_py.planner.assignment import solve
from shardy_py.planner.problem import Solution, pinned
from shardy_py.planner.search import Candidate, Searcher
from shardy_py.planner.space import Annotations

SHARE = 0.1
"""The part of the time limit that one price may take."""

Propagated = Callable[[Sequence[TensorSharding]], PlanRecord]
"""Makes the plan that propagation makes of input shardings, without a planner."""

Anew = Callable[[Annotations], Searcher]
"""Makes a search with other annotations, on a program of its own."""


@dataclass(frozen=True, eq=False)
class Prices:
    """Answers questions about a search.

    Attributes:
        searcher: The search; its program is that of the plan, and stays as it is.
        best: Its result.
        bound: Its lower bound.
        anew: Makes searches with other annotations.
        propagated: Makes plans of input shardings alone.
    """

    searcher: Searcher
    best: Candidate
    bound: float
    anew: Anew
    propagated: Propagated

    def as_in_shardings(self) -> str:
        """The input shardings as code; see `Search.as_in_shardings`."""
        searcher = self.searcher
        sharding = shardings_of(searcher.space, searcher.model.assignment(self.best.assignment), searcher.mesh_name)
        inputs = [sharding(argument) for argument in searcher.program.main.arguments]
        ranks = [len(value.shape) for value in searcher.base.inputs]  # PRNG keys are stored as several numbers
        inputs = [each.with_dims(each.dims[:rank]) for each, rank in zip(inputs, ranks, strict=True)]
        alone = searcher.objective(self.propagated(inputs))
        rows = [f"    {value.path!r}: {sharding_text(each)}," for value, each in zip(searcher.base.inputs, inputs)]
        remark = (
            f"# The planned step takes {seconds_text(self.best.seconds)}; what propagation makes of these inputs, {seconds_text(alone)}."
        )
        return "\n".join([remark, "SHARDINGS = {", *rows, "}", "in_shardings = lambda path, leaf: SHARDINGS[path]"])

    def alternatives(self) -> tuple[Alternative, ...]:
        """The templates."""
        return self.searcher.alternatives(self.best)

    def price(self, path: str, spec: Sequence[Any]) -> Price:
        """The cost of pinning an input, beside the plan.

        Args:
            path: The input.
            spec: Its sharding; dimensions that it leaves out are whole.

        Raises:
            UserError: There is no such input, or it cannot be sharded so.
        """
        searcher = self.searcher
        paths = [v.path for v in searcher.base.inputs]
        if path not in paths:
            raise UserError(f"no input {path!r}", where="plan.search.price", why=f"the inputs are {', '.join(paths[:12])}")
        number = paths.index(path)
        classes = searcher.space.classes[searcher.program.main.arguments[number]]
        if len(tuple(spec)) > len(classes):
            raise UserError(f"{spec} has more dimensions than {path}", where="plan.search.price", why=f"it has {len(classes)}")
        entries = (*spec, *(None,) * (len(classes) - len(tuple(spec))))
        layout = tuple(map(self._axes, entries))
        for dim, (entry, axes, c) in enumerate(zip(entries, layout, classes)):
            if axes not in searcher.space.strategies[c]:
                raise UserError(
                    f"dimension {dim} of {path} cannot be {entry!r} in this search",
                    where="plan.search.price",
                    why="an annotation pins it, or the axes do not divide it",
                )
        solution, plan, constant = (self._pinned if searcher.space.resolution.layers else self._annotated)(number, layout)
        if plan is None:
            return Price(path, str(spec), math.inf, None, math.inf)
        seconds = searcher.objective(plan) - self.best.seconds
        peak = memory_of(plan, searcher.planner.hardware).peak_memory_in_bytes
        return Price(path, str(spec), seconds, peak - self.best.peak, solution.bound + constant - self.best.seconds)

    def _pinned(self, number: int, layout: Layout) -> tuple[Solution, PlanRecord | None, float]:
        """The solution with an argument in a layout, its plan, and seconds that no choice changes."""
        searcher, model = self.searcher, self.searcher.model
        problem, numbers = searcher.limited(), {c: i for i, c in enumerate(model.variables)}
        start = list(self.best.assignment)
        for axes, c in zip(layout, searcher.space.classes[searcher.program.main.arguments[number]]):
            if c in numbers:
                start[numbers[c]] = searcher.space.strategies[c].index(axes)
                problem = pinned(problem, numbers[c], (start[numbers[c]],))
        solution = solve(problem, [start], gap=searcher.planner.gap, seconds=self._seconds)
        if math.isinf(solution.cost):
            return solution, None, 0.0
        plan = searcher.replan(searcher.space.resolution, model.assignment(solution.assignment))
        return solution, replace(plan, partitioner=None), model.constant

    def _annotated(self, number: int, layout: Layout) -> tuple[Solution, PlanRecord | None, float]:
        """The same where an argument shares its classes with others: annotated, it does not."""
        searcher, stated = self.searcher, self.searcher.annotations
        sharding = TensorSharding(searcher.mesh_name, [DimensionSharding(spelled(axes, searcher.space.mesh)) for axes in layout])
        inputs = (*stated.inputs[:number], sharding, *stated.inputs[number + 1 :])
        other = self.anew(replace(stated, inputs=inputs))
        other.prepare(searcher.space.resolution)
        solution = solve(other.limited(), gap=searcher.planner.gap, seconds=self._seconds)
        plan = None if math.isinf(solution.cost) else other.candidate("", solution.assignment).plan
        return solution, plan, other.model.constant

    @property
    def _seconds(self) -> float:
        return max(SHARE * self.searcher.planner.time_limit_s, 0.2)

    def price_of_annotations(self) -> tuple[Price, ...]:
        """Per annotated input and result, the seconds that it costs: those of the plan less those of one without it."""
        searcher = self.searcher
        stated = searcher.annotations
        prices: list[Price] = []
        described = (
            *((v.path, s, True, i) for i, (v, s) in enumerate(zip(searcher.base.inputs, stated.inputs))),
            *((v.path, s, False, i) for i, (v, s) in enumerate(zip(searcher.base.outputs, stated.outputs))),
        )
        for path, sharding, is_input, number in described:
            if sharding is not None:
                dropped = (
                    replace(stated, inputs=_without(stated.inputs, number))
                    if is_input
                    else replace(stated, outputs=_without(stated.outputs, number))
                )
                other = self.anew(dropped)
                other.prepare(searcher.space.resolution)
                solution = solve(other.limited(), gap=searcher.planner.gap, seconds=self._seconds)
                saved = self.best.seconds - (solution.cost + other.model.constant)
                least = self.bound - (solution.cost + other.model.constant)
                prices.append(Price(path, sharding_text(sharding), max(saved, 0.0), None, max(least, 0.0)))
        return tuple(sorted(prices, key=lambda price: -price.seconds))

    def _axes(self, entry: object) -> Axes:
        names = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry) if isinstance(entry, tuple) else (entry,)
        return tuple(part for name in names for part in parts(AxisRef(str(name)), self.searcher.space.mesh))


def _without(shardings: Sequence[TensorSharding | None], number: int) -> tuple[TensorSharding | None, ...]:
    return (*shardings[:number], None, *shardings[number + 1 :])
