"""The extra time of a step that the user's constraints on values inside cause."""

from __future__ import annotations

import math
import time

from shardy_py.ir import Op
from shardy_py.ir.op_forms import UNCONSTRAINED
from shardy_py.plan.checks.specs import sharding_text
from shardy_py.plan.progress import report
from shardy_py.plan.search import Price
from shardy_py.plan.values import location_of
from shardy_py.planner.assignment import solve
from shardy_py.planner.descent import descend
from shardy_py.planner.evaluation import Evaluation
from shardy_py.planner.judge import Candidate
from shardy_py.planner.op_tables import TooLarge
from shardy_py.planner.problem import restricted
from shardy_py.planner.search import LARGE, Searcher
from shardy_py.planner.space import resolutions, stated, transferred
from shardy_py.rules.traits import is_constraint

WORTH = 0.1
"""The part of a step from which on the cost of constraints is worth a finding."""

SHARE = 0.1
"""The part of the time limit that the search without constraints may take."""

GAP = 0.02
"""How far from its bound the step without constraints may be."""

LISTED = 3
"""Lines that are named."""


def lines_of(searcher: Searcher) -> dict[str, list[Op]]:
    """The user's constraints on values inside, by source line."""
    lines: dict[str, list[Op]] = {}
    for op in searcher.program.walk():
        if is_constraint(op) and op.result.type.rank > len(op.attributes.get(UNCONSTRAINED, ())):
            lines.setdefault(location_of(searcher.program, op), []).append(op)
    return lines


def constraint_prices(searcher: Searcher, best: Candidate) -> tuple[Price, ...]:
    """What constraints cost by the model, where it is much: all of them together, and then the lines that cost most if no other held."""
    lines = lines_of(searcher)
    if not lines:
        return ()
    report("pricing constraints")
    end = time.monotonic() + SHARE * searcher.planner.time_limit_s
    free = searcher.freed(tuple(lines))
    for resolution in (searcher.space.resolution, resolutions(searcher.base.mesh)[1]):
        try:
            free.prepare(resolution, max(LARGE, 4 * searcher.entries))
            break
        except TooLarge:
            continue
    else:
        return ()
    full = searcher.model.assignment(best.assignment)
    assignment = transferred(full, (searcher.program, searcher.space), (free.program, free.space))
    start, problem = [assignment[c] for c in free.model.variables], free.limited()
    numbers = {c: i for i, c in enumerate(free.model.variables)}
    solution = solve(problem, [start], gap=GAP, seconds=max(0.0, end - time.monotonic()))
    seconds, of_start = free.model.seconds(solution.assignment), free.model.seconds(start)
    if not math.isfinite(of_start) or not of_start - seconds >= WORTH * of_start:
        return ()
    total = best.seconds - seconds * (best.seconds / of_start if searcher.planner.overlap else 1.0)
    if total < WORTH * best.seconds:
        return ()
    scale = total / (of_start - seconds)

    def alone(ops: list[Op]) -> float:
        pairs = [pair for op in ops for pair in zip(free.space.classes[op.result], searcher.space.classes[op.result])]
        pins = {numbers[c]: (assignment[c],) for c, own in pairs if c in numbers and len(searcher.space.strategies[own]) == 1}
        evaluation = Evaluation(restricted(problem, pins))
        near = [pins.get(i, (strategy,))[0] for i, strategy in enumerate(solution.assignment)]
        ends = (descend(evaluation, each).assignment.tolist() for each in (near, start))
        return scale * (min(of_start, *map(free.model.seconds, ends)) - seconds)

    specs = {place: ", ".join(dict.fromkeys(sharding_text(each) for op in ops if (each := stated(op)))) for place, ops in lines.items()}
    costs = {place: total if len(lines) == 1 else alone(ops) for place, ops in lines.items()}
    prices = [Price(place, specs[place], cost, None, 0.0) for place, cost in costs.items() if cost >= WORTH * total]
    return (Price("all constraints", "", total, None, 0.0), *sorted(prices, key=lambda price: (-price.seconds, price.path))[:LISTED])
