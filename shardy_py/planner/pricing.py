"""Prices of decisions: the search goes on from where it ended, with an input pinned or an annotation dropped."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardy_py.dialect import AxisRef, DimensionSharding, TensorSharding
from shardy_py.dialect.axis import Axes, merged
from shardy_py.dialect.format import sizes_text
from shardy_py.errors import UserError, did_you_mean
from shardy_py.ir import Value
from shardy_py.partition.layouts import Layout, parts
from shardy_py.plan.checks.specs import sharding_text
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.search import Alternative, Constraint, Price
from shardy_py.planner.alternatives import alternatives
from shardy_py.planner.assignment import solve
from shardy_py.planner.judge import Candidate, objective, peak_of
from shardy_py.planner.pins import constraints_of
from shardy_py.planner.problem import Problem, Solution, pinned
from shardy_py.planner.propagated import Trial
from shardy_py.planner.result import certificate_of, lines_of
from shardy_py.planner.search import Searcher
from shardy_py.planner.space import Annotations, stated, transferred

SHARE = 0.1
"""The part of the time limit that one price may take."""

MakeSearcher = Callable[[Annotations], Searcher]
"""Makes a search with other annotations, on a separate program."""


@dataclass(frozen=True, eq=False)
class Prices:
    """Answers questions about a search."""

    searcher: Searcher
    best: Candidate
    bound: float
    searcher_with: MakeSearcher

    @functools.cached_property
    def constraints(self) -> tuple[Constraint, ...]:
        """The fewest constraints with which propagation gives the plan."""
        return constraints_of(self.searcher, self.best) if self.searcher.propagate is None else ()

    @functools.cached_property
    def certificate(self) -> str:
        """The proof of the lower bound."""
        return certificate_of(self.searcher, self.best, self.bound)

    def constraints_of(self, trial: Trial) -> tuple[Constraint, ...]:
        """The fewest constraints with which propagation gives another assignment."""
        if self.searcher.propagate is not None:
            return ()
        other = self.searcher_with(self.searcher.annotations)
        other.prepare(self.searcher.space.resolution)
        return constraints_of(other, other.candidate(trial.name, trial.assignment))

    def alternatives(self) -> tuple[Alternative, ...]:
        """Other plans."""
        return alternatives(self.searcher, self.best, self.constraints_of)

    def price(self, path: str, spec: Sequence[Any]) -> Price:
        """What pinning a value costs, and what else is sharded alike then. Raises UserError if there is no such value or sharding."""
        searcher = self.searcher
        paths = [v.path for v in searcher.base.inputs]
        value, where = self._value(path), f"plan.search.price({path!r}, {spec!r})"
        if value is None:
            raise UserError(f"no value {path!r}", where=where, why="paths are those of plan.values", fix=did_you_mean(path, paths[:12]))
        if searcher.propagate is not None and path not in paths and not isinstance(value, int):
            raise UserError(
                f"{path} is a value inside of the function",
                where=where,
                why="this planner shards arguments and results alone (constraints=False), and propagation the rest",
                fix=f"name one of {', '.join(paths[:12])}",
            )
        classes = searcher.space.classes[value]
        if isinstance(spec, str) or not isinstance(spec, Iterable):
            raise UserError(f"{spec!r} is not a PartitionSpec", where=where, fix='write P("data", None), an entry per dimension')
        if len(tuple(spec)) > len(classes):
            raise UserError(f"{spec} has more dimensions than {path}", where=where, fix=f"write {len(classes)} at most")
        entries = (*spec, *(None,) * (len(classes) - len(tuple(spec))))
        layout = tuple(self._axes(entry, where) for entry in entries)
        twice = [part.name for part, count in Counter(part for axes in layout for part in axes).items() if count > 1]
        if twice:
            raise UserError(f"mesh axis {twice[0]!r} is used twice", where=where, fix="give each dimension its own axis")
        for dim, (entry, axes, c) in enumerate(zip(entries, layout, classes)):
            if axes not in searcher.space.strategies[c]:
                dims = [DimensionSharding(merged(each, searcher.space.mesh)) for each in searcher.space.strategies[c]]
                choices = [sharding_text(TensorSharding(searcher.mesh_name, [each])) for each in dims]
                raise UserError(
                    f"dimension {dim} of {path} cannot be {entry!r} in this search",
                    where=where,
                    why="an annotation pins it, or the axes do not divide it",
                    fix=f"its own choices are {', '.join(choices[:12])}",
                )
        shares = path in paths and not searcher.space.resolution.layers
        other, problem, start = self._annotated(paths.index(path), layout) if shares else self._pinned(classes, layout)
        solution = self._solution(other, problem, start)
        plan = self._cheapest(other, solution, start)
        if plan is None:
            return Price(path, str(spec), math.inf, None, math.inf)
        seconds = objective(plan, searcher.planner)
        bound = min(self._bound(other, solution), seconds)  # a region may take less than the model says
        gap = max(0.0, (seconds - bound) / seconds) if seconds > 0 else 0.0
        return Price(
            path, str(spec), seconds - self.best.seconds, peak_of(plan, searcher.planner) - self.best.peak, bound - self.best.seconds, gap
        )

    def _value(self, path: str) -> Value | int | None:
        """The value of a path in the search space; None where it has none there."""
        searcher = self.searcher
        value, _ = searcher.base.by_path.get(path, (None, None))
        copy = searcher.copies.get(value) if isinstance(value, Value) else value
        return copy if copy in searcher.space.classes else None

    def _pinned(self, classes: Sequence[int], layout: Layout) -> tuple[Searcher, Problem, list[int]]:
        """The problem with the classes of a value in a layout, and the plan's assignment with them."""
        searcher, model = self.searcher, self.searcher.model
        problem, numbers = searcher.limited(), {c: i for i, c in enumerate(model.variables)}
        start = list(self.best.assignment)
        for axes, c in zip(layout, classes):
            if c in numbers:
                start[numbers[c]] = searcher.space.strategies[c].index(axes)
                problem = pinned(problem, numbers[c], (start[numbers[c]],))
        return searcher, problem, start

    def _annotated(self, number: int, layout: Layout) -> tuple[Searcher, Problem, list[int]]:
        """As `_pinned`, for an argument that shares its classes with others: an annotation gives it classes of its own."""
        searcher, annotations = self.searcher, self.searcher.annotations
        sharding = TensorSharding(searcher.mesh_name, [DimensionSharding(merged(axes, searcher.space.mesh)) for axes in layout])
        return self._with(replace(annotations, inputs=(*annotations.inputs[:number], sharding, *annotations.inputs[number + 1 :])))

    def _with(self, annotations: Annotations) -> tuple[Searcher, Problem, list[int]]:
        """A search with other annotations, its problem, and the plan's assignment there."""
        searcher, other = self.searcher, self.searcher_with(annotations)
        other.prepare(searcher.space.resolution)
        full = searcher.model.assignment(self.best.assignment)
        chosen = transferred(full, (searcher.program, searcher.space), (other.program, other.space))
        return other, other.limited(), [chosen[c] for c in other.model.variables]

    def _cheapest(self, other: Searcher, solution: Solution, start: Sequence[int]) -> PlanRecord | None:
        """The cheaper plan of a solution and the assignment that it began at, one within the budget before any other."""
        planner, assignments = self.searcher.planner, [] if math.isinf(solution.cost) else [solution.assignment]
        if self.searcher.propagate is not None:
            assignments.append(tuple(start))
        plans = [other.plan_of(Trial("", each, self.best.results)) for each in assignments]
        over = [max(0, peak_of(plan, planner) - planner.budget) if planner.budget is not None else 0 for plan in plans]
        order = sorted(range(len(plans)), key=lambda i: (over[i], objective(plans[i], planner)))
        return plans[order[0]] if order else None

    def _solution(self, other: Searcher, problem: Problem, start: Sequence[int]) -> Solution:
        """The solution of a problem; if it is fed longer than the rest takes, of all that may take less, unless a class is pinned."""
        gap, model = self.searcher.planner.gap, other.model
        solution = solve(problem, [start], gap=gap, seconds=self._seconds)
        is_pinned = any(len(one.costs) < len(all_.costs) for one, all_ in zip(problem.tables, model.problem.tables))
        if math.isinf(solution.cost) or is_pinned or model.problem_seconds(solution.assignment) == model.cost_seconds(solution.assignment):
            return solution
        shortest = min((solution.assignment, start), key=model.problem_seconds)
        limit = model.fed_within(model.problem_seconds(shortest), solution.bound + model.constant)
        fed = solve(replace(problem, limits=(*problem.limits, limit)), [start], gap=gap, seconds=self._seconds)
        return replace(solution, assignment=tuple(shortest) if math.isinf(fed.cost) else fed.assignment)

    def _bound(self, other: Searcher, solution: Solution) -> float:
        """The lower bound of the objective of a search."""
        return (solution.bound + other.model.constant) * (1 - other.planner.overlap)

    @property
    def _seconds(self) -> float:
        return max(SHARE * self.searcher.planner.time_limit_s, 0.2)

    def price_of_annotations(self) -> tuple[Price, ...]:
        """The cost of each annotation of an input or result, and of the constraints of a line: seconds that a plan without it saves."""
        searcher = self.searcher
        annotations = searcher.annotations
        prices: list[Price] = []
        ends = (("inputs", searcher.base.inputs, annotations.inputs), ("outputs", searcher.base.outputs, annotations.outputs))
        described = [
            (value.path, sharding, replace(annotations, **{which: _without(shardings, number)}))
            for which, values, shardings in ends
            for number, (value, sharding) in enumerate(zip(values, shardings))
        ]
        if searcher.propagate is None:
            lines = lines_of(searcher).items()
            described += [(place, stated(ops[0]), replace(annotations, freed=(place,))) for place, ops in lines]
        for path, sharding, dropped in described:
            if sharding is not None:
                other, problem, start = self._with(dropped)
                solution = self._solution(other, problem, start)
                plan = self._cheapest(other, solution, start)
                seconds, peak = (math.inf, 0) if plan is None else (objective(plan, searcher.planner), peak_of(plan, searcher.planner))
                if seconds > self.best.seconds or not searcher.planner.fits(peak):  # the plan keeps the other annotations
                    seconds, peak = self.best.seconds, self.best.peak
                saved, least = self.best.seconds - seconds, self.bound - seconds
                prices.append(Price(path, sharding_text(sharding), saved, self.best.peak - peak, max(least, 0.0)))
        return tuple(sorted(prices, key=lambda price: -price.seconds))

    def _axes(self, entry: object, where: str) -> Axes:
        """The parts of the axes of a dimension's entry in a spec."""
        mesh = self.searcher.space.mesh
        names = [str(name) for name in (() if entry is None else entry if isinstance(entry, tuple) else (entry,))]
        for name in names:
            if name not in mesh.shape:
                why = f"the mesh has {sizes_text(mesh.shape)}"
                raise UserError(f"unknown mesh axis {name!r}", where=where, why=why, fix=did_you_mean(name, mesh.shape))
        return tuple(part for name in names for part in parts(AxisRef(name), mesh))


def _without(shardings: Sequence[TensorSharding | None], number: int) -> tuple[TensorSharding | None, ...]:
    return (*shardings[:number], None, *shardings[number + 1 :])
