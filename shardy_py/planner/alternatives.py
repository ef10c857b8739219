"""Plans beside the one that a search ends with: templates, and plans next to it that cost little more."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from shardy_py.ir import Value
from shardy_py.plan.checks.specs import sharding_text
from shardy_py.plan.search import Alternative, Constraint
from shardy_py.planner.descent import descend
from shardy_py.planner.evaluation import Evaluation, State
from shardy_py.planner.judge import Candidate, objective, peak_of
from shardy_py.planner.problem import restricted
from shardy_py.planner.propagated import Outcome, Trial
from shardy_py.planner.search import Searcher
from shardy_py.planner.space import Shardings, shardings_of

NEAR = 3
"""Plans next to the best that are listed."""

DEAREST = 8
"""Classes of which the strategy of the plan is forbidden in turn: those whose ops take most of the step."""

NAMED = 2
"""Changes that the name of a plan tells."""

Constrained = Callable[[Trial], tuple[Constraint, ...]]


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
    possible = {starts[name]: name for name in reversed(listed) if math.isfinite(searcher.predicted(starts[name]))}
    return [_priced(searcher, Trial(name, start), best) for start, name in possible.items()]


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
            yield Outcome(Trial("", assignment), searcher.predicted(assignment), 0)


def _name(searcher: Searcher, best: Sequence[int], other: Sequence[int]) -> str:
    """The values that lie otherwise than in the plan, inputs first and large ones first."""
    one, two = (shardings_of(searcher.space, searcher.model.assignment(each), searcher.mesh_name) for each in (best, other))
    inputs = [(argument, value.path) for argument, value in zip(searcher.program.main.arguments, searcher.base.inputs)]
    inside = [(searcher.copies[value], path) for value, path in searcher.base.names.items() if value in searcher.copies]
    changes = _changes(inputs, one, two) or _changes([pair for pair in inside if pair[0] in searcher.space.classes], one, two)
    more = f" and {len(changes) - NAMED} more" if len(changes) > NAMED else ""
    return ", ".join(changes[:NAMED]) + more if changes else "results otherwise"


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
        functools.partial(searcher.plan_of, trial, best.seconds),
        functools.partial(peak_of, planner=searcher.planner),
        functools.partial(constrained, trial),
    )
