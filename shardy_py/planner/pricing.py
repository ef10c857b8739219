"""Prices of decisions: the search goes on from where it ended, with an input pinned or an annotation dropped."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardy_py.dialect import AxisRef, DimensionSharding, TensorSharding
from shardy_py.dialect.axis import Axes, sort_and_merge
from shardy_py.errors import UserError
from shardy_py.ir import Value
from shardy_py.partition.layouts import Layout, parts
from shardy_py.plan.checks.specs import sharding_text
from shardy_py.plan.cost_analysis import seconds_text
from shardy_py.plan.memory.analysis import analyse as memory_of
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.search import Alternative, Constraint, Price
from shardy_py.plan.values import PlannedValue, typed
from shardy_py.planner.assignment import solve
from shardy_py.planner.pins import TOLERANCE, Seeds, constraints_of
from shardy_py.planner.problem import Solution, pinned
from shardy_py.planner.search import Candidate, Searcher
from shardy_py.planner.space import Annotations

SHARE = 0.1
"""The part of the time limit that one price may take."""

MakeSearcher = Callable[[Annotations], Searcher]
"""Makes a search with other annotations, on a separate program."""


@dataclass(frozen=True, eq=False)
class Prices:
    """Answers questions about a search.

    Attributes:
        searcher: The search; its program is that of the plan, and stays as it is.
        best: Its result.
        bound: Its lower bound.
        searcher_with: Makes searches with other annotations.
        seeds: Plans the function from fewer shardings, by propagation.
    """

    searcher: Searcher
    best: Candidate
    bound: float
    searcher_with: MakeSearcher
    seeds: Seeds

    def as_in_shardings(self) -> str:
        """The plan as code; see `Search.as_in_shardings`."""
        plan = self.best.plan
        constraints = self.constraints
        written = [each for each in constraints if each.location]
        free = self._propagated(constraints, results=False)
        planned = self._objective(plan)
        results = self._objective(free) > planned * (1 + TOLERANCE) or _specs(free.outputs) != _specs(plan.outputs)
        alone = seconds_text(self._objective(self._propagated((), results=results)))
        remark = f"# The planned step takes {seconds_text(planned)}; propagation from these shardings gives one of {alone}"
        if written:
            remark += f", with the constraints below of {seconds_text(self._objective(self._propagated(written, results=results)))}"
        imports = ["import jax"] if written else []
        lines = [f"{remark}.", *imports, "from jax.sharding import PartitionSpec as P", *_table("SHARDINGS", "in_shardings", plan.inputs)]
        lines += _table("RESULTS", "out_shardings", plan.outputs) if results else []
        if len(written) < len(constraints):
            lines.append(
                f"# Of {len(constraints)} constraints, {len(constraints) - len(written)} are of values that no line of the code makes."
            )
        lines += [*_CONSTRAIN, *map(_line, written)] if written else []
        return "\n".join(lines)

    @functools.cached_property
    def constraints(self) -> tuple[Constraint, ...]:
        """The fewest constraints with which propagation gives the plan."""
        return constraints_of(self.searcher, self.best, self.seeds)

    def _propagated(self, constraints: Sequence[Constraint], *, results: bool) -> PlanRecord:
        return self.seeds.plan({each.number: each.sharding for each in constraints}, results=results)[0]

    def _objective(self, plan: PlanRecord) -> float:
        return self.searcher.objective(plan)

    def alternatives(self) -> tuple[Alternative, ...]:
        """The templates."""
        return self.searcher.alternatives(self.best)

    def price(self, path: str, spec: Sequence[Any]) -> Price:
        """The cost of pinning a value, and what must lie as it does, beside the plan.

        Args:
            path: The value.
            spec: Its sharding; dimensions that it leaves out are whole.

        Raises:
            UserError: There is no such value, or it cannot be sharded so.
        """
        searcher = self.searcher
        paths = [v.path for v in searcher.base.inputs]
        value = self._value(path)
        if value is None:
            raise UserError(f"no value {path!r}", where="plan.search.price", why=f"the inputs are {', '.join(paths[:12])}")
        classes = searcher.space.classes[value]
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
        shares = path in paths and not searcher.space.resolution.layers
        solution, plan, constant = self._annotated(paths.index(path), layout) if shares else self._pinned(classes, layout)
        if plan is None:
            return Price(path, str(spec), math.inf, None, math.inf)
        seconds = searcher.objective(plan) - self.best.seconds
        peak = memory_of(plan, searcher.planner.hardware).peak_memory_in_bytes
        return Price(path, str(spec), seconds, peak - self.best.peak, solution.bound + constant - self.best.seconds)

    def _value(self, path: str) -> Value | int | None:
        """The value of a path in the search space; None where it has none there."""
        searcher = self.searcher
        value, _ = searcher.base.by_path.get(path, (None, None))
        copy = searcher.copies.get(value) if isinstance(value, Value) else value
        return copy if copy in searcher.space.classes else None

    def _pinned(self, classes: Sequence[int], layout: Layout) -> tuple[Solution, PlanRecord | None, float]:
        """The solution with the classes of a value in a layout, its plan, and seconds that no choice changes."""
        searcher, model = self.searcher, self.searcher.model
        problem, numbers = searcher.limited(), {c: i for i, c in enumerate(model.variables)}
        start = list(self.best.assignment)
        for axes, c in zip(layout, classes):
            if c in numbers:
                start[numbers[c]] = searcher.space.strategies[c].index(axes)
                problem = pinned(problem, numbers[c], (start[numbers[c]],))
        solution = solve(problem, [start], gap=searcher.planner.gap, seconds=self._seconds)
        if math.isinf(solution.cost):
            return solution, None, 0.0
        plan = searcher.replan(searcher.space.resolution, model.assignment(solution.assignment))
        return solution, self._as_run(plan), model.constant

    def _annotated(self, number: int, layout: Layout) -> tuple[Solution, PlanRecord | None, float]:
        """As `_pinned`, for an argument that shares its classes with others: an annotation gives it classes of its own."""
        searcher, annotations = self.searcher, self.searcher.annotations
        sharding = TensorSharding(searcher.mesh_name, [DimensionSharding(sort_and_merge(axes, searcher.space.mesh)) for axes in layout])
        inputs = (*annotations.inputs[:number], sharding, *annotations.inputs[number + 1 :])
        other = self.searcher_with(replace(annotations, inputs=inputs))
        other.prepare(searcher.space.resolution)
        solution = solve(other.limited(), gap=searcher.planner.gap, seconds=self._seconds)
        plan = None if math.isinf(solution.cost) else other.candidate("", solution.assignment).run
        return solution, plan, other.model.constant

    def _as_run(self, plan: PlanRecord) -> PlanRecord:
        """A plan under the lowering that the search compared plans under."""
        return plan if self.best.run.partitioner is not None else replace(plan, partitioner=None)

    @property
    def _seconds(self) -> float:
        return max(SHARE * self.searcher.planner.time_limit_s, 0.2)

    def price_of_annotations(self) -> tuple[Price, ...]:
        """The cost of each annotation of an input or result: seconds of the plan less those of a plan without it."""
        searcher = self.searcher
        annotations = searcher.annotations
        prices: list[Price] = []
        described = (
            *((v.path, s, True, i) for i, (v, s) in enumerate(zip(searcher.base.inputs, annotations.inputs))),
            *((v.path, s, False, i) for i, (v, s) in enumerate(zip(searcher.base.outputs, annotations.outputs))),
        )
        for path, sharding, is_input, number in described:
            if sharding is not None:
                dropped = (
                    replace(annotations, inputs=_without(annotations.inputs, number))
                    if is_input
                    else replace(annotations, outputs=_without(annotations.outputs, number))
                )
                other = self.searcher_with(dropped)
                other.prepare(searcher.space.resolution)
                solution = solve(other.limited(), gap=searcher.planner.gap, seconds=self._seconds)
                seconds = other.model.seconds(solution.assignment)
                saved, least = self.best.seconds - seconds, self.bound - seconds
                prices.append(Price(path, sharding_text(sharding), max(saved, 0.0), None, max(least, 0.0)))
        return tuple(sorted(prices, key=lambda price: -price.seconds))

    def _axes(self, entry: object) -> Axes:
        names = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry) if isinstance(entry, tuple) else (entry,)
        return tuple(part for name in names for part in parts(AxisRef(str(name)), self.searcher.space.mesh))


def _without(shardings: Sequence[TensorSharding | None], number: int) -> tuple[TensorSharding | None, ...]:
    return (*shardings[:number], None, *shardings[number + 1 :])


def _specs(values: Sequence[PlannedValue]) -> list[str]:
    """The sharding of each value as code; those of PRNG keys have dimensions that keys do not."""
    return ["P()" if v.sharding is None else sharding_text(v.sharding.with_dims(v.sharding.dims[: len(v.shape)])) for v in values]


def _table(name: str, argument: str, values: Sequence[PlannedValue]) -> list[str]:
    rows = [f"    {value.path!r}: {spec}," for value, spec in zip(values, _specs(values))]
    return [f"{name} = {{", *rows, "}", f"{argument} = lambda path, leaf: {name}[path]"]


_CONSTRAIN = (
    "# A function for constraints: that of JAX shards the cotangent of the value alike, which the plan may have otherwise.",
    "constrain = jax.custom_jvp(jax.lax.with_sharding_constraint, nondiff_argnums=(1,))",
    "constrain.defjvp(lambda spec, primals, tangents: (constrain(*primals, spec), *tangents))",
)


def _line(constraint: Constraint) -> str:
    """A constraint as a line to paste at its place."""
    reader = f", in front of the {constraint.primitive}" if constraint.is_in_front else ""
    maker = "" if constraint.is_in_front else f" of {constraint.primitive}"
    value = f"{constraint.value}, {typed(constraint.type, None)}{maker}"
    return f"# {constraint.location}{reader}: x = constrain(x, {constraint.spec}), where x is {value}"
