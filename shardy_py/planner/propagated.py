"""Searches plans in which only arguments and results are sharded, and values inside follow by propagation.

Such a plan costs what propagation makes of it, which no table knows. So shardings are tried as finished plans: those of the search for
whole assignments, those of the templates, and others next to the best of these, in which one argument, or all of one shape, lie otherwise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from shardy_py.dialect import TensorSharding
from shardy_py.ir import Op, Value
from shardy_py.partition.layouts import Layout
from shardy_py.plan.record import PlanRecord
from shardy_py.planner.model import Model

TRIALS = 150
"""Plans that are propagated at most: work is counted, so that a busy machine comes to the same plan."""

IMPROVEMENT = 1e-6
"""The part of the step that another plan has to save to be the better one."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Shardings of arguments, and of results: where `results` is false, those that no step hands on follow by propagation."""

    name: str
    assignment: tuple[int, ...]
    results: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of the plan of a trial."""

    trial: Trial
    seconds: float
    over: int

    def is_better(self, other: Outcome) -> bool:
        """Whether it is nearer to the budget, or as near and faster."""
        return self.over < other.over or (self.over == other.over and self.seconds < other.seconds * (1 - IMPROVEMENT))


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """A variable of the function at a place where it may be constrained.

    Attributes:
        holder: The value whose sharding a constraint decides: the same, or what a loop carries or slices.
        op: The op that makes it; the loop, where only this and what follows it read the constrained value.
        operand: The number of the operand of `op` that it is, where it may be constrained in front of this alone, as it is read there.
    """

    value: Value
    holder: Value
    op: Op
    primitive: str
    is_unnamed: bool = False
    operand: int | None = None


class Seeds(Protocol):
    """Plans propagated from the shardings of inputs, results and some variables."""

    def variables(self) -> Sequence[Variable | None]:
        """The variables of the plan's own program; the number of a variable is its place."""
        ...

    def plan(self, pins: Mapping[int, TensorSharding], *, results: bool = True) -> tuple[PlanRecord, Sequence[Variable | None]]:
        """The plan by propagation, without a region, and its variables."""
        ...


Try = Callable[[Trial], Outcome]
"""Propagates a trial."""


class Trials:
    """Trials of a search, each layout of arguments and results once."""

    def __init__(self, model: Model, arguments: Sequence[Value], attempt: Try, enough: float, has_time: Callable[[], bool]) -> None:
        self.model, self.attempt, self.enough, self.has_time = model, attempt, enough, has_time
        self.numbers = {c: i for i, c in enumerate(model.variables)}
        self.arguments = sorted(arguments, key=lambda value: -math.prod(value.type.shape))
        self.outcomes: dict[object, Outcome] = {}

    def run(self, starts: Sequence[Trial]) -> Outcome:
        """The best outcome of trials, the first of which always runs, and of those next to it, unless it is good enough."""
        best, *others = (self.outcome(start) for start in starts if not self.outcomes or self.has_room)
        for other in others:
            best = other if other.is_better(best) else best
        while True:
            before = best
            for group in self.groups(best.trial.assignment):
                for assignment in self.neighbours(group, best.trial.assignment):
                    if (not best.over and best.seconds <= self.enough) or not self.has_room:
                        return best
                    outcome = self.outcome(replace(best.trial, name="", assignment=assignment))
                    best = outcome if outcome.is_better(best) else best
            if best is before:
                return best

    @property
    def has_room(self) -> bool:
        """Whether trials and time are left."""
        return len(self.outcomes) < TRIALS and self.has_time()

    def outcome(self, trial: Trial) -> Outcome:
        """The outcome of a trial, propagated unless it has been."""
        key = self.key(trial)
        if key not in self.outcomes:
            self.outcomes[key] = self.attempt(trial)
        return self.outcomes[key]

    def key(self, trial: Trial) -> object:
        """The layouts that tell trials apart."""
        full = self.model.assignment(trial.assignment)
        values = self.model.values if trial.results else self.arguments
        return trial.results, tuple(self.model.space.layout(value, full) for value in values)

    def groups(self, assignment: Sequence[int]) -> Iterator[tuple[Value, ...]]:
        """Arguments to move at once, the largest first: all of one shape that lie alike, then each by itself."""
        full = self.model.assignment(assignment)
        alike: dict[tuple[tuple[int, ...], Layout], list[Value]] = {}
        for value in self.arguments:
            if any(c in self.numbers for c in self.model.space.classes[value]):
                alike.setdefault((value.type.shape, self.model.space.layout(value, full)), []).append(value)
        yield from (tuple(group) for group in alike.values())
        yield from ((value,) for group in alike.values() if len(group) > 1 for value in group)

    def neighbours(self, group: Sequence[Value], assignment: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Assignments in which some arguments of one shape lie otherwise, all alike."""
        space = self.model.space
        for layout in itertools.product(*(space.strategies[c] for c in space.classes[group[0]])):
            chosen = list(assignment)
            for value in group:
                for c, axes in zip(space.classes[value], layout):
                    if c in self.numbers and axes in space.strategies[c]:
                        chosen[self.numbers[c]] = space.strategies[c].index(axes)
            if tuple(chosen) != tuple(assignment) and self.is_allowed(chosen):
                yield tuple(chosen)

    def is_allowed(self, assignment: Sequence[int]) -> bool:
        """Whether no argument or result has an axis twice."""
        full = self.model.assignment(assignment)
        layouts = (self.model.space.layout(value, full) for value in self.model.values)
        return all(len(set(axes)) == len(axes) for axes in (tuple(itertools.chain(*layout)) for layout in layouts))
