"""Checks stored plans of the planner: `python -m shardy_py.planner.certificate plan.json`.

A certificate has the problem that was solved, as tables of costs, the assignment that is the plan, and dual values: messages between
tables, shares of moves and multipliers of limits. They shift costs between tables and leave the cost of every assignment as it is, so
that the minima of all tables add up to a lower bound. What is then above the plan's cost is left out, and the next duals are of the rest.

The check needs numpy alone, neither JAX nor SciPy, and nothing that searches. It takes the tables as they are: the tests of the model
hold that these are the prices of `cost_analysis`.
"""

from __future__ import annotations

import base64
import json
import math
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardy_py.cost.hardware_table import hardware
from shardy_py.errors import ShardyError
from shardy_py.plan.costing import analyse
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.search import Search
from shardy_py.plan.store.document import load_plan
from shardy_py.planner.elimination import reduced
from shardy_py.planner.evaluation import EntryIndex
from shardy_py.planner.problem import Problem, Table, cost_of_entries, entries, with_entries

Array = Any

ROUNDING = 1e-9
"""Of sums of costs, in parts of them."""

MOST_BYTES = 1 << 28
"""More is not unpacked."""


class CertificateError(ShardyError):
    """A certificate that does not add up, or none."""


@dataclass(frozen=True, eq=False)
class Duals:
    """Dual values of a problem.

    Attributes:
        messages: What each link shifts, link by link: a cost for each entry of the contained table, or each strategy of the class.
        shares: Per table and move that some of its entries need, in order: the part of the move's cost that these entries bear.
        multipliers: Per limit, the price of a unit.
    """

    links: Array
    messages: Array
    shares: Array
    multipliers: Array


@dataclass(frozen=True, eq=False)
class Certificate:
    """The proof of a lower bound.

    Attributes:
        stages: Duals of the problem as `reduced` leaves it, of what these leave of it, and so on.
        facts: Objective and bound of the model, and the options of the planner that they depend on.
    """

    problem: Problem
    assignment: tuple[int, ...]
    stages: tuple[Duals, ...]
    facts: dict[str, Any]


def shifted(problem: Problem, duals: Duals) -> tuple[float, list[Array], list[Array]]:
    """A constant, and the costs of entries per table, and of strategies per class, as duals shift them."""
    tables, constant = problem.tables, 0.0
    costs = [table.costs.astype(float) for table in tables] + [np.zeros(count) for count in problem.strategies]
    if (duals.shares < 0).any() or (duals.multipliers < 0).any():
        raise CertificateError("a share of a move or a multiplier of a limit is negative")
    ends = np.cumsum([len(costs[child]) for _, child in duals.links])
    for (parent, child), message in zip(duals.links, np.split(duals.messages, ends[:-1])):
        inner = tables[child].classes if child < len(tables) else (child - len(tables),)
        places = tables[parent].strategies[:, [tables[parent].classes.index(c) for c in inner]]
        if child < len(tables):
            index = EntryIndex(tables[child], problem.strategies)
            places = index(places @ index.strides)
        costs[parent] -= message[places.ravel()]
        costs[child] += message
    paid, place = np.zeros(len(problem.moves) + 1), 0
    for table, own in zip(tables, costs):
        rows, columns = np.nonzero(table.moves >= 0)
        needed, places = np.unique(table.moves[rows, columns], return_inverse=True)
        share = duals.shares[place : place + len(needed)]
        place += len(needed)
        paid[needed] += share
        np.add.at(own, rows, share[places])
    constant -= float(duals.multipliers @ problem.limits)
    for table, own in zip(tables, costs):
        own += table.weights @ duals.multipliers
    return constant + float(np.minimum(problem.moves - paid[:-1], 0.0).sum()), costs[: len(tables)], costs[len(tables) :]


def bound_and_rest(problem: Problem, duals: Duals, most: float) -> tuple[float, Problem]:
    """The bound that duals prove, and the problem without entries and strategies all of whose assignments cost more than `most`."""
    constant, of_tables, of_classes = shifted(problem, duals)
    bound = constant + math.fsum(float(each.min()) for each in (*of_tables, *of_classes))
    masks: list[Array] = []
    for table, costs in zip(problem.tables, of_tables):
        mask = bound + costs - costs.min() <= most
        for column, c in enumerate(table.classes):
            mask &= (bound + of_classes[c] - of_classes[c].min() <= most)[table.strategies[:, column]]
        masks.append(mask)
    return bound, with_entries(problem, masks)


def proven(problem: Problem, cost: float, stages: Sequence[Duals]) -> float:
    """The lower bound of all assignments that stages prove; `cost` is that of one of them."""
    bound, constant = -math.inf, 0.0
    for duals in stages:
        small = reduced(problem)
        constant += small.cost
        if not small.feasible:
            return cost  # nothing is left that costs less
        of_rest, problem = bound_and_rest(small.problem, duals, cost - constant + ROUNDING * abs(cost))
        bound = max(bound, min(constant + of_rest, cost))
    return bound


def encode(certificate: Certificate) -> str:
    """A certificate as text: packed JSON in base 64, arrays by column."""
    problem = certificate.problem
    tables = [(t.classes, t.strategies, t.costs, t.moves, t.weights) for t in problem.tables]
    stages = [(d.links, d.messages, d.shares, d.multipliers) for d in certificate.stages]
    data = (problem.strategies, tables, problem.moves, problem.limits, certificate.assignment, stages, certificate.facts)
    return base64.b64encode(zlib.compress(json.dumps(data, default=lambda array: array.T.tolist()).encode(), 9)).decode("ascii")


def decode(text: str) -> Certificate:
    """The inverse of `encode`."""
    unpacked = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), MOST_BYTES)
    strategies, of_tables, moves, limits, assignment, of_stages, facts = json.loads(unpacked)
    tables: list[Table] = []
    for classes, *columns in of_tables:
        costs = np.array(columns.pop(1), float)
        rows, needs, weights = (np.array(each).reshape(len(each), len(costs)).T for each in columns)
        tables.append(Table(tuple(classes), rows.astype(np.int64), costs, needs.astype(np.int64), weights.astype(float)))
    stages = tuple(
        Duals(np.array(links, np.int64).reshape(2, -1).T, *(np.array(each, float) for each in rest)) for links, *rest in of_stages
    )
    return Certificate(Problem(tuple(strategies), tuple(tables), np.array(moves), tuple(limits)), tuple(assignment), stages, facts)


def check(plan: PlanRecord) -> str:
    """What a plan's certificate proves, in words; raises CertificateError if something does not add up."""
    if plan.search is None or not plan.search.certificate:
        why = "a planner did not choose its shardings, or the file was changed"
        raise CertificateError("the plan has no certificate", why=why, fix="plan with auto_shard(planner=...), and save that plan")
    try:
        return _checked(plan, plan.search, decode(plan.search.certificate))
    except (zlib.error, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise CertificateError(f"the certificate is damaged: {error}") from None


def _checked(plan: PlanRecord, search: Search, certificate: Certificate) -> str:
    facts, problem, objective = certificate.facts, certificate.problem, search.objective_seconds
    step = analyse(plan, hardware(search.hardware), facts["links"]).step_seconds if facts["listed"] else None
    if step is not None:
        _equal("the step of the stored plan", step.high - facts["overlap"] * (step.high - step.low), objective)
    chosen = entries(problem, certificate.assignment)
    if -1 in chosen or not problem.keeps(chosen):
        raise CertificateError("a table or a limit forbids the assignment that is the plan")
    cost = cost_of_entries(problem, chosen)
    _equal("the model's cost of the plan", cost + facts["constant"], facts["objective"])
    bound = proven(problem, cost, certificate.stages) + facts["constant"]
    _equal("the bound of the duals", bound, facts["bound"])
    if search.lower_bound_seconds > min(facts["searched"], objective) * (1 + ROUNDING):
        raise CertificateError(
            f"the stated bound, {search.lower_bound_seconds:.12g} s, is above what was found, {facts['searched']:.12g} s"
        )
    most = min((1 - facts["overlap"]) * bound, objective)
    gap = 1 - most / objective if objective else 0.0
    text = f"step {objective:.9g} s{'' if facts['listed'] else ' (not recomputed: hardware or links of the user)'}\n"
    text += f"at least {most:.9g} s, proven by duals ({gap:.2%} gap, stages: {len(certificate.stages)})"
    if most < search.lower_bound_seconds * (1 - ROUNDING):
        text += f"\nat least {search.lower_bound_seconds:.9g} s by the plan: branch and bound, which leaves no duals, found the rest"
    return text


def _equal(name: str, value: float, stated: float) -> None:
    if not math.isclose(value, stated, rel_tol=ROUNDING, abs_tol=1e-15):
        raise CertificateError(f"{name} is {value:.12g} s, and {stated:.12g} s is stated")


def main(paths: Sequence[str]) -> int:
    """Checks the plans in some files; 1 if one does not add up."""
    bad = 0
    for path in paths:
        try:
            text = check(load_plan(path, PlanRecord))
        except (ShardyError, OSError) as error:
            bad, text = 1, f"refused: {error}"
        sys.stdout.write(f"{path}: {text}\n")
    return bad


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
