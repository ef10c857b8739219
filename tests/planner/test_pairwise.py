"""The pairwise solver against every choice of small random models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardy_py.planner import neighbourhood, pairwise_solver, restricted
from shardy_py.planner.dual import Messages, finite
from shardy_py.planner.moves import Walk, least_usage
from shardy_py.planner.neighbourhood import conditioned
from shardy_py.planner.pairwise import pairwise
from shardy_py.planner.reduce import Impossible, reduced
from tests.planner.random_models import best, random_model

SEEDS = range(60)


def test_usage_is_counted_over_half_open_intervals() -> None:
    model = pairwise(
        [np.zeros(1)] * 4, [[1], [2], [4], [8]], np.array([[0, 4], [4, 6], [2, 4], [5, 5]]), np.zeros((0, 2)), np.zeros(0), 100
    )
    assert model.usage(np.zeros(4, dtype=np.int64)).tolist() == [5, 2]


@pytest.mark.parametrize("seed", SEEDS)
def test_reduction_keeps_the_least_cost_and_leads_back(seed: int) -> None:
    model = random_model(seed)
    least = best(model)
    try:
        small = reduced(model)
    except Impossible:
        assert least == np.inf
        return
    assert best(small.model) + small.constant == least
    r = np.random.default_rng(seed)
    choice = np.array([r.integers(n) for n in small.model.sizes], dtype=np.int64)
    back = small.expand(choice)
    assert model.cost(back) == small.model.cost(choice) + small.constant
    assert (small.model.usage(choice) == model.usage(back)).all()


def test_a_chain_of_functional_edges_becomes_one_node() -> None:
    n, d = 40, 5
    table = np.full((d, d), np.inf)
    table[np.arange(d), (np.arange(d) + 1) % d] = np.arange(d)
    usages = [[3, 1, 4, 1, 5]] * n
    edges = np.stack([np.arange(n - 1), np.arange(1, n)], 1)
    model = pairwise([np.zeros(d)] * n, usages, np.array([[0, 2]] * n), edges, np.tile(table.ravel(), n - 1), 1e9)
    small = reduced(model)
    assert small.model.columns[-1] <= d
    assert small.constant + best(small.model) == 76


@pytest.mark.parametrize("seed", SEEDS)
def test_message_passing_bounds_the_least_cost(seed: int) -> None:
    model = random_model(seed)
    try:
        model = reduced(model).model
    except Impossible:
        return
    least = best(model)
    r = np.random.default_rng(seed)
    epochs = np.arange(len(model.base))
    multipliers = r.uniform(0, 3, len(epochs)) * (np.isfinite(model.limit))
    messages = Messages(finite(model))
    costs = model.costs + model.rows(epochs).T @ multipliers
    bounds = [messages.run(costs, 2).value for _ in range(4)]
    constant = float(multipliers @ model.room(epochs)) if np.isfinite(model.limit) else 0.0
    assert bounds == sorted(bounds) or np.allclose(bounds, sorted(bounds))
    assert bounds[-1] - constant <= least + 1e-6


def test_message_passing_is_exact_on_trees() -> None:
    r = np.random.default_rng(0)
    sizes = r.integers(2, 5, 8)
    edges = np.array([(int(r.integers(i)), i) for i in range(1, 8)])
    tables = np.concatenate([r.integers(0, 99, sizes[a] * sizes[b]) for a, b in edges]).astype(float)
    model = pairwise([r.integers(0, 99, n) for n in sizes], [np.zeros(n) for n in sizes], np.zeros((8, 2)), edges, tables, None)
    state = Messages(model).run(model.costs, 30)
    assert state.value == pytest.approx(best(model))
    assert model.cost(state.choice) == best(model)


@pytest.mark.parametrize("seed", SEEDS)
def test_moves_keep_costs_and_usage_up_to_date(seed: int) -> None:
    model = random_model(seed)
    model = finite(replace(model, costs=np.where(np.isfinite(model.costs), model.costs, 1e3)))
    walk = Walk(model, least_usage(model))
    fitted = walk.repair()
    before = model.cost(walk.choice)
    walk.improve()
    fresh = Walk(model, walk.choice)
    assert np.allclose(walk.near, fresh.near)
    assert (walk.usage == fresh.usage).all()
    assert model.cost(walk.choice) <= before
    assert not fitted or (walk.usage <= model.limit).all()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("small", [True, False], ids=["exact", "restricted"])
def test_the_search_finds_the_best_choice_and_proves_it(seed: int, small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not small:
        monkeypatch.setattr(pairwise_solver, "SMALL", -1)
    model = random_model(seed)
    least = best(model)
    answer = pairwise_solver.solve(model, 5.0 if small else 0.5)
    if least == np.inf:
        assert answer.choice is None
        assert answer.status == "infeasible" or not small
        return
    assert answer.bound <= least + 1e-6 * abs(least)
    if small:
        assert answer.cost == least
        assert answer.status == "optimal"
    if answer.choice is not None:
        assert model.cost(answer.choice) == answer.cost
        assert (model.usage(answer.choice) <= model.limit).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_neighbourhood_costs_what_the_whole_does(seed: int) -> None:
    model = random_model(seed)
    model = finite(replace(model, costs=np.where(np.isfinite(model.costs), model.costs, 1e3)))
    r = np.random.default_rng(seed)
    choices = [np.array([r.integers(n) for n in model.sizes], dtype=np.int64) for _ in range(2)]
    free = r.random(len(model.sizes)) < 0.5
    inner = conditioned(model, choices[0], free)
    costs = []
    for strategies in (choices[0][free], choices[1][free]):
        whole = choices[0].copy()
        whole[free] = strategies
        costs.append(model.cost(whole) - inner.cost(strategies))
        assert (inner.usage(strategies) == model.usage(whole)).all()
    assert costs[0] == costs[1]


def test_rounds_on_parts_of_a_model_come_close_to_its_best_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairwise_solver, "SMALL", -1)
    monkeypatch.setattr(restricted, "ENTRIES", 12)
    monkeypatch.setattr(neighbourhood, "ENTRIES", 12)
    ratios = []
    for seed in range(12):
        model = random_model(seed)
        least = best(model)
        answer = pairwise_solver.solve(model, 0.3)
        if np.isfinite(least) and answer.choice is not None:
            ratios.append(answer.cost / least)
    assert len(ratios) > 6
    assert np.mean(ratios) < 1.02
