"""The solver for problems of programs, against every assignment tried in turn."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardy_py.planner.assignment import least, solve, stages_of
from shardy_py.planner.certificate import Duals, proven
from shardy_py.planner.elimination import reduced
from shardy_py.planner.problem import Limit, Problem, Table, cost_of_entries, entries, limited, restricted, weighed, weight
from shardy_py.planner.relaxation import Ascent, program

ROUNDING = 1e-6


def table(classes: tuple[int, ...], strategies: Any, costs: Any, moves: Any) -> Table:
    return Table(classes, strategies, costs, moves, np.zeros((len(costs), 0)))


def random_problem(seed: int, *, classes: int = 5) -> Problem:
    """Tables of one to three classes with forbidden combinations, shared moves and limits."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, classes + 1))
    strategies = tuple(int(n) for n in rng.integers(1, 4, count))
    moves = int(rng.integers(0, 5))
    tables: list[Table] = []
    for _ in range(int(rng.integers(1, 7))):
        members = tuple(int(c) for c in rng.permutation(count)[: rng.integers(1, min(count, 3) + 1)])
        rows = np.array(list(itertools.product(*[range(strategies[c]) for c in members])))
        keep = rng.random(len(rows)) < rng.choice([0.8, 1.0])
        keep[0] |= not keep.any()
        rows = rows[keep]
        needed = rng.integers(-1, moves, (len(rows), 2)) if moves else np.zeros((len(rows), 0), int)
        tables.append(table(members, rows, rng.integers(0, 20, len(rows)) / 4, needed))
    return limited(Problem(strategies, tuple(tables), rng.integers(0, 12, moves) / 4), random_limits(rng, tables))


def random_limits(rng: np.random.Generator, tables: list[Table]) -> list[Limit]:
    limits: list[Limit] = []
    for _ in range(int(rng.integers(0, 3))):
        of = tuple(sorted(int(t) for t in rng.permutation(len(tables))[: rng.integers(1, len(tables) + 1)]))
        weights = tuple(rng.integers(0, 10, len(tables[t].costs)).astype(float) for t in of)
        limits.append(Limit(of, weights, float(rng.integers(0, 8 * len(of)))))
    return limits


def allowed(problem: Problem) -> list[tuple[int, ...]]:
    """All assignments that tables and limits allow."""
    result: list[tuple[int, ...]] = []
    for assignment in itertools.product(*map(range, problem.strategies)):
        chosen = entries(problem, assignment)
        if -1 not in chosen and problem.keeps(chosen):
            result.append(assignment)
    return result


def cost(problem: Problem, assignment: tuple[int, ...]) -> float:
    return cost_of_entries(problem, entries(problem, assignment))


def optimum(problem: Problem) -> float:
    return min((cost(problem, assignment) for assignment in allowed(problem)), default=math.inf)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(0, 1 << 30))
def test_cost_and_bound_are_those_of_the_best_assignment(seed: int) -> None:
    problem = random_problem(seed)
    solution, best = solve(problem), optimum(problem)
    if math.isinf(best):
        assert solution.status == "infeasible"
        assert math.isinf(solution.cost)
        return
    assert solution.status == "optimal"
    assert solution.assignment in allowed(problem)
    assert solution.cost == pytest.approx(cost(problem, solution.assignment))
    assert best - 1e-6 <= solution.bound
    assert solution.bound <= best + 1e-9 <= solution.cost + 2e-9
    assert solution.cost <= best + ROUNDING


@pytest.mark.parametrize("seed", range(100))
def test_large_problems_are_solved_in_parts(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few messages, then branch and bound: as problems of a million entries."""
    monkeypatch.setattr("shardy_py.planner.assignment.MESSAGE_ROUNDS", 1)
    problem = random_problem(seed)
    solution, best = solve(problem), optimum(problem)
    assert solution.status == ("infeasible" if math.isinf(best) else "optimal")
    assert solution.bound <= best + 1e-9 or math.isinf(best)
    assert best <= solution.cost <= best + ROUNDING


@pytest.mark.parametrize("seed", range(40))
def test_messages_raise_the_bound_and_never_above_the_optimum(seed: int) -> None:
    problem = random_problem(seed)
    best = optimum(problem)
    stage = reduced(problem)
    if not stage.feasible or not stage.problem.tables:
        assert math.isinf(best) or cost(problem, stage.completed((0,) * len(problem.strategies))) >= best
        return
    ascent = Ascent(program(stage.problem), 1e3)
    bounds = [ascent.bound + stage.cost]
    for _ in range(4):
        ascent.run(rounds=1, enough=math.inf, end=math.inf)
        bounds.append(ascent.bound + stage.cost)
    assert all(later >= earlier - 1e-9 for earlier, later in itertools.pairwise(bounds))
    assert bounds[-1] <= best + 1e-9


def test_messages_are_exact_on_a_chain() -> None:
    rng = np.random.default_rng(0)
    rows = np.array(list(itertools.product(range(4), repeat=2)))
    none = np.zeros((len(rows), 0), np.int64)
    tables = tuple(table((c, c + 1), rows, rng.random(len(rows)), none) for c in range(8))
    problem = Problem((4,) * 9, tables, np.zeros(0))
    ascent = Ascent(program(problem), 1e3)
    ascent.run(rounds=4, enough=math.inf, end=math.inf)
    assert ascent.bound == pytest.approx(solve(problem).cost)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("unit", [1e-9, 1e6])
def test_units_do_not_matter(seed: int, unit: float) -> None:
    problem = random_problem(seed)
    tables = tuple(dataclasses.replace(t, costs=t.costs * unit) for t in problem.tables)
    scaled = solve(Problem(problem.strategies, tables, problem.moves * unit, problem.limits))
    assert scaled.cost == pytest.approx(optimum(problem) * unit)
    assert scaled.status == ("infeasible" if math.isinf(scaled.cost) else "optimal")


def ring(classes: int = 24, strategies: int = 3, seed: int = 0) -> Problem:
    """Tables of three neighbours in a ring, with moves that several share."""
    rng = np.random.default_rng(seed)
    rows = np.array(list(itertools.product(range(strategies), repeat=3)))
    tables: list[Table] = []
    for c in range(classes):
        needed = np.where(rows[:, :2] != rows[:, 1:], (c + rng.integers(0, 3, (len(rows), 2))) % classes, -1)
        members = (c, (c + 1) % classes, (c + 2) % classes)
        tables.append(table(members, rows, rng.random(len(rows)), needed))
    return Problem((strategies,) * classes, tuple(tables), rng.random(classes))


def test_a_gap_is_kept_and_ends_the_search() -> None:
    problem = ring()
    rough, exact = solve(problem, gap=0.2), solve(problem, gap=1e-6)
    assert rough.status == exact.status == "optimal"
    assert rough.bound <= exact.cost <= rough.cost
    assert rough.cost - rough.bound <= 0.2 * rough.cost
    assert exact.cost - exact.bound <= 1e-6 * exact.cost


def test_the_solution_is_never_worse_than_a_start() -> None:
    problem = ring()
    best = solve(problem)
    hurried = solve(problem, [best.assignment, (0,) * 24], seconds=0.0)
    assert hurried.cost == pytest.approx(best.cost)
    assert hurried.bound <= best.cost


def test_two_runs_give_the_same_answer() -> None:
    first, second = (dataclasses.astuple(solve(ring(), gap=0.01)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("seed", range(15))
def test_a_pin_removes_strategies_and_costs_what_it_costs(seed: int) -> None:
    problem = random_problem(seed)
    free = solve(problem)
    for strategy in range(problem.strategies[0]):
        solution = solve(restricted(problem, {0: [strategy]}), [free.assignment])
        best = min(
            (cost(problem, a) for a in allowed(problem) if a[0] == strategy or not any(0 in t.classes for t in problem.tables)),
            default=math.inf,
        )
        assert solution.cost == pytest.approx(best)


@pytest.mark.parametrize("seed", range(60))
def test_duals_of_a_certificate_prove_a_bound_and_never_above_the_optimum(seed: int) -> None:
    problem = random_problem(seed)
    costs = [cost(problem, assignment) for assignment in allowed(problem)]
    if not costs:
        return
    rng, of_best, of_worst = np.random.default_rng(seed), stages_of(problem, min(costs)), stages_of(problem, max(costs))
    assert 0.4 * min(costs) <= proven(problem, min(costs), of_best) <= min(costs)
    assert proven(problem, max(costs), of_worst) <= min(costs) + 1e-9
    for duals in of_worst[:1]:
        messages = duals.messages + rng.normal(size=len(duals.messages))
        shares, multipliers = (rng.random(len(each)) for each in (duals.shares, duals.multipliers))
        assert proven(problem, max(costs), [Duals(duals.links, messages, shares, multipliers)]) <= min(costs) + 1e-9


@pytest.mark.parametrize("seed", range(15))
def test_the_least_that_a_limit_can_be(seed: int) -> None:
    problem = random_problem(seed)
    rng = np.random.default_rng(seed)
    every = range(len(problem.tables))
    limit = Limit(tuple(every), tuple(rng.integers(0, 9, len(t.costs)).astype(float) for t in problem.tables), 0.0)
    sums = [weight(limit, entries(problem, assignment)) for assignment in allowed(problem)]
    result = least(problem, limit)
    if not sums:
        assert result.status == "infeasible"
        return
    assert result.cost == result.bound == pytest.approx(min(sums))
    at_least = Limit(limit.tables, limit.weights, min(sums))
    tight = solve(limited(problem, [at_least]), [result.assignment])
    assert weight(at_least, entries(problem, tight.assignment)) <= at_least.limit
    assert solve(limited(problem, [Limit(limit.tables, limit.weights, min(sums) - 1)])).status == "infeasible"


def test_a_problem_with_nothing_to_decide() -> None:
    assert solve(Problem((), (), np.zeros(0))).status == "optimal"
    one = table((0,), np.array([[2]]), np.array([1.5]), np.array([[0]]))
    solution = solve(Problem((3, 2), (one,), np.array([0.5])), [(0, 1)])
    assert (solution.assignment, solution.cost, solution.bound, solution.status) == ((2, 1), 2.0, 2.0, "optimal")


def test_tables_that_exclude_each_other_have_no_solution() -> None:
    none = np.zeros((1, 0), int)
    tables = [table((0, 1), np.array([row]), np.zeros(1), none) for row in ([0, 0], [0, 1])]
    solution = solve(Problem((2, 2), tuple(tables), np.zeros(0)))
    assert solution.status == "infeasible"
    assert math.isinf(solution.cost)


def test_weights_become_costs() -> None:
    problem = random_problem(3)
    limit = Limit((0,), (np.arange(len(problem.tables[0].costs)) * 1.0,), 0.0)
    for assignment in allowed(problem):
        assert cost(weighed(problem, limit), assignment) == weight(limit, entries(problem, assignment))
