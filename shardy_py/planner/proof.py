"""Finds the dual values of a certificate, from the plan that a search ended with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from shardy_py.planner import relaxation
from shardy_py.planner.assignment import COLUMNS, MESSAGE_ROUNDS, NARROWER
from shardy_py.planner.certificate import ROUNDING, Certificate, Duals, bound_and_rest, encode, proven
from shardy_py.planner.elimination import reduced
from shardy_py.planner.judge import Candidate
from shardy_py.planner.messages import Ascent
from shardy_py.planner.problem import Problem, cost, entries, weight
from shardy_py.planner.search import Searcher

Array = Any

STAGES = 8
"""The most duals, each of a smaller problem than those before."""

LINEAR_SECONDS = 60.0
"""A backstop of a linear program, whose columns are counted."""

FORBIDDEN = 1e30
"""The price of a strategy that no table has."""


def certificate_of(searcher: Searcher, best: Candidate, bound: float) -> str:
    """The certificate of a search, as text."""
    planner, model = searcher.planner, searcher.model
    problem = searcher.limited()
    if any(weight(limit, entries(problem, best.assignment)) > limit.limit for limit in problem.limits):
        problem = model.problem  # results lie as they follow by propagation
    problem = replace(problem, tables=tuple(replace(table, ties=np.zeros(len(table.costs))) for table in problem.tables))
    own = cost(problem, best.assignment)
    stages = stages_of(problem, own)
    links = planner.links or {}
    is_listed = isinstance(planner.hardware, str) and all(isinstance(each, str) for each in links.values())
    facts = {"objective": own + model.constant, "bound": proven(problem, own, stages) + model.constant, "constant": model.constant}
    facts |= {"searched": bound, "overlap": planner.overlap, "listed": is_listed, "links": dict(links) if is_listed and links else None}
    return encode(Certificate(problem, best.assignment, stages, facts))


def stages_of(problem: Problem, most: float) -> tuple[Duals, ...]:
    """Duals of a problem, and then of what is left where it costs at most so much."""
    stages: list[Duals] = []
    left = most
    for _ in range(STAGES):
        small = reduced(problem)
        left -= small.cost
        stages.append(_duals(small.problem, left) if small.feasible else Duals(np.zeros((0, 2), np.int64), *[np.zeros(0)] * 3))
        if not small.feasible or not small.problem.tables:
            break
        _, problem = bound_and_rest(small.problem, stages[-1], left + ROUNDING * abs(most))
        if sum(len(t.costs) for t in problem.tables) > NARROWER * sum(len(t.costs) for t in small.problem.tables):
            break
    return tuple(stages)


def _duals(problem: Problem, most: float) -> Duals:
    """Duals by messages, and by the linear program where it is small, in seven digits, which are enough."""
    of = relaxation.program(problem)
    prices = Ascent(of, 2 * max(most, 0.0)).run(of.prices(), rounds=sum(MESSAGE_ROUNDS), enough=most, end=float("inf"))
    if 0 < len(of.costs) <= COLUMNS and prices.bound(of) < most:
        relaxed = relaxation.relax(of, max(most, 0.0), LINEAR_SECONDS)
        if relaxed.values is not None:
            prices = max(prices, relaxation.priced(of, relaxed.duals), key=lambda each: each.bound(of))
    numbers = {start: n for n, start in enumerate(of.starts.tolist()[:-1])}
    links: list[tuple[int, int]] = []
    messages: list[Array] = [np.zeros(0)]
    for link in of.links:
        child, message = numbers[link.child.start], prices.equal[link.rows]
        if (place := child - len(problem.tables)) >= 0:
            whole = np.full(problem.strategies[of.classes[place]], FORBIDDEN)
            whole[of.strategies[place]] = message
            child, message = len(problem.tables) + of.classes[place], whole
        links.append((numbers[link.parent.start], child))
        messages.append(message)
    shifts, shares = (np.array([float(f"{x:.7g}") for x in each]) for each in (np.concatenate(messages), np.maximum(prices.shares, 0.0)))
    multipliers = np.maximum(-prices.limits, 0.0) / relaxation.scales(problem.limits)
    return Duals(np.array(links, np.int64).reshape(-1, 2), shifts, shares, multipliers)
