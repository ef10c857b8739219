"""What goes on from where a search ended: prices of decisions, an input pinned or an annotation dropped, and plans beside its result."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardy_py.dialect import AxisRef, DimensionSharding, TensorSharding
from shardy_py.dialect.axis import Axes, merged
from shardy_py.dialect.format import sizes_text
from shardy_py.errors import UserError, did_you_mean
from shardy_py.ir import Value
from shardy_py.partition.layouts import Layout, parts
from shardy_py.plan.checks.specs import sharding_text
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.search import Alternative, Constraint, Price
from shardy_py.planner.assignment import solve
from shardy_py.planner.evaluation import Evaluation, State, descend
from shardy_py.planner.judge import Candidate, objective, peak_of
from shardy_py.planner.pins import constraints_of
from shardy_py.planner.problem import Problem, Solution, limited, restricted
from shardy_py.planner.propagated import Outcome, Trial
from shardy_py.planner.result import certificate_of, lines_of
from shardy_py.planner.search import Searcher
from shardy_py.planner.space import Annotations, Shardings, shardings_of, stated, transferred

SHARE = 0.1
"""The part of the time limit that one price may take."""

NEAR = 3
"""Plans next to the best that are listed."""

DEAREST = 8
"""Classes of which the strategy of the plan is forbidden in turn: those whose ops take most of the step."""

NAMED = 2
"""Changes that the name of a plan tells."""

Constrained = Callable[[Trial], tuple[Constraint, ...]]


@dataclass(frozen=True, eq=False)
class Prices:
    """Answers questions about a search; `searcher_with` makes one with other annotations, on a separate program."""

    searcher: Searcher
    best: Candidate
    bound: float
    searcher_with: Callable[[Annotations], Searcher]

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
                why="this planner shards only arguments and results (constraints=False); propagation shards the rest",
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
                    fix=f"its choices are {', '.join(choices[:12])}",
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
                problem = restricted(problem, {numbers[c]: (start[numbers[c]],)})
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
        if math.isinf(solution.cost) or is_pinned or model.seconds(solution.assignment) == model.cost_seconds(solution.assignment):
            return solution
        shortest = min((solution.assignment, start), key=model.seconds)
        limit = model.fed_within(model.seconds(shortest), solution.cost + model.constant)  # less than it is within the gap
        fed = solve(limited(problem, [limit]), [start], gap=gap, seconds=self._seconds)
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
            (value.path, sharding, replace(annotations, **{which: (*shardings[:number], None, *shardings[number + 1 :])}))
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


def alternatives(searcher: Searcher, best: Candidate, constrained: Constrained) -> tuple[Alternative, ...]:
    """The templates, and then plans that differ from the best in more than one class, each the cheapest first."""
    outcomes = _templates(searcher, best) if searcher.propagate is None else _propagated_templates(searcher)
    taken = {outcome.trial.assignment for outcome in outcomes} | {best.assignment}
    near = _assigned(searcher, best) if searcher.propagate is None else searcher.outcomes
    others: dict[str, Outcome] = {}
    for outcome in sorted(near, key=lambda each: (each.over > 0, each.seconds)):
        trial = outcome.trial
        differing = sum(a != b for a, b in zip(trial.assignment, best.assignment))
        if trial.assignment not in taken and not trial.name and differing > 1 and len(others) < NEAR:
            name = _name(searcher, best.assignment, trial.assignment)
            trial = Trial(name, trial.assignment, trial.results)
            planned = outcome if searcher.propagate is not None else _priced(searcher, trial, best)
            if name not in others and planned.seconds >= best.seconds:
                others[name] = replace(planned, trial=trial)
    listed = (*sorted(outcomes, key=_order), *sorted(others.values(), key=_order))
    return tuple(_alternative(searcher, each, constrained, best) for each in listed)


def _order(outcome: Outcome) -> tuple[float, str]:
    return outcome.seconds, outcome.trial.name


def _templates(searcher: Searcher, best: Candidate) -> list[Outcome]:
    """The templates as the search finishes them; where its time was up, those that it has finished, for another may be cheaper."""
    starts = {template.name: searcher.start_of(template) for template in searcher.templates}
    finished = {candidate.assignment for candidate in searcher.finished}
    listed = [name for name, start in starts.items() if start in finished or not searcher.is_late]
    possible = [name for name in listed if math.isfinite(searcher.model.seconds(starts[name]))]
    own = [template.name for template in searcher.own_templates if template.name in possible]
    taken = {starts[name] for name in own}
    others = {starts[name]: name for name in reversed(possible) if starts[name] not in taken}
    return [_priced(searcher, Trial(name, starts[name]), best) for name in (*others.values(), *own)]


def _propagated_templates(searcher: Searcher) -> list[Outcome]:
    """The templates as propagation completes them."""
    tried = {outcome.trial.name: outcome for outcome in searcher.outcomes}
    trials = [Trial(template.name, tuple(map(int, searcher.start(template)))) for template in searcher.templates]
    return [tried.get(trial.name) or searcher.outcome(trial) for trial in trials]


def _priced(searcher: Searcher, trial: Trial, best: Candidate) -> Outcome:
    """The seconds of the finished plan of an assignment."""
    return Outcome(trial, objective(searcher.plan_of(trial, best.seconds), searcher.planner), 0)


def _assigned(searcher: Searcher, best: Candidate) -> Iterator[Outcome]:
    """Assignments that local moves lead to from the plan, where the strategy of one of its dearest classes is forbidden, by the model."""
    problem = searcher.limited()
    evaluation = Evaluation(problem)
    state = State(evaluation, best.assignment)
    spent = [sum(float(evaluation.costs[table][state.entries[table]]) for table in tables) for tables in evaluation.readers]
    for c in sorted(range(len(spent)), key=lambda c: (-spent[c], c))[:DEAREST]:
        others = [strategy for strategy in range(problem.strategies[c]) if strategy != best.assignment[c]]
        start = list(best.assignment)
        start[c] = others[int(np.argmin(state.costs((c,), np.array(others)[:, None])))]
        reached = descend(Evaluation(restricted(problem, {c: others})), start)
        if reached.allowed:
            assignment = tuple(map(int, reached.assignment))
            yield Outcome(Trial("", assignment), searcher.model.seconds(assignment), 0)


def _name(searcher: Searcher, best: Sequence[int], other: Sequence[int]) -> str:
    """The values whose sharding differs from the plan, inputs first and large ones first."""
    one, two = (shardings_of(searcher.space, searcher.model.assignment(each), searcher.mesh_name) for each in (best, other))
    inputs = [(argument, value.path) for argument, value in zip(searcher.program.main.arguments, searcher.base.inputs)]
    inside = [(searcher.copies[value], path) for value, path in searcher.base.names.items() if value in searcher.copies]
    changes = _changes(inputs, one, two) or _changes([pair for pair in inside if pair[0] in searcher.space.classes], one, two)
    more = f" and {len(changes) - NAMED} more" if len(changes) > NAMED else ""
    return ", ".join(changes[:NAMED]) + more if changes else "other results"


def _changes(values: Sequence[tuple[Value, str]], one: Shardings, two: Shardings) -> list[str]:
    ordered = sorted(values, key=lambda pair: -pair[0].type.size)
    return [f"{path} as {sharding_text(two(value))}" for value, path in ordered if one(value) != two(value)]


def _alternative(searcher: Searcher, outcome: Outcome, constrained: Constrained, best: Candidate) -> Alternative:
    """A trial as part of the result; its plan is made when it is first needed."""
    trial = outcome.trial
    sharding = shardings_of(searcher.space, searcher.model.assignment(trial.assignment), searcher.mesh_name)
    inputs = {v.path: sharding_text(sharding(a)) for v, a in zip(searcher.base.inputs, searcher.program.main.arguments)}
    return Alternative(
        trial.name,
        outcome.seconds,
        inputs,
        searcher.planner.budget,
        functools.cache(functools.partial(searcher.plan_of, trial, best.seconds)),
        functools.partial(peak_of, planner=searcher.planner),
        functools.partial(constrained, trial),
    )
