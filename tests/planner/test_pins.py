"""The fewest constraints of a planner's plan: what they are, that they give the plan back, and plans as `in_shardings`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shardy_py as sp
from shardy_py.cost.hardware_table import hardware
from shardy_py.dialect import TensorSharding
from shardy_py.planner.pins import TOLERANCE, PinnedOutcome, Place, fewest_pins
from tests.planner.test_model import attention, f32, indexing, mlp

MESH = {"x": 2, "y": 4}

H100 = replace(hardware("h100"), host_bandwidth=None)
"""Feeding costs nothing, so that even a plan of a small step needs constraints."""


def scanned(params: Any, batch: jax.Array) -> Any:
    def layer(h: jax.Array, w: Any) -> tuple[jax.Array, None]:
        return h + jnp.tanh(h @ w["in"]) @ w["out"], None

    grads = jax.grad(lambda params: jnp.mean(lax.scan(layer, batch, params)[0] ** 2))(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def tied(table: jax.Array, tokens: jax.Array) -> jax.Array:
    grads = jax.grad(lambda table: jnp.mean(jax.nn.logsumexp(table[tokens] @ table.T, axis=-1)))(table)
    return table - grads


def counted(x: jax.Array, w: jax.Array) -> Any:
    return lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, jnp.tanh(c[1] @ w)), (0, x))


def noise() -> jax.Array:
    """Of constants alone, and yet no constant expression: its values are not copied for each reader."""
    x = jax.random.normal(jax.random.key(1), (4096, 4096))
    return x @ x.T


WEIGHTS = {"in": f32(2048, 8192), "bias": f32(8192), "out": f32(8192, 2048)}
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]] = {
    # First, so that a sample of the tests has it: it depends most on the version of jax.
    "scan": (scanned, ({"in": f32(6, 2048, 8192), "out": f32(6, 8192, 2048)}, f32(16384, 2048)), (0,)),
    "training step": (mlp, (WEIGHTS, WEIGHTS, f32(4096, 2048)), (0, 1)),
    "attention": (attention, (f32(32, 512, 1024), f32(3, 1024, 16, 64)), ()),
    "while": (counted, (f32(8192, 4096), f32(4096, 4096)), ()),
    "tied table": (tied, (f32(65536, 512), jax.ShapeDtypeStruct((16, 512), jnp.int32)), (0,)),
    "indexing": (indexing, (f32(65536, 512), jax.ShapeDtypeStruct((512,), jnp.int32), f32(512, 512)), ()),
    "noise": (noise, (), ()),
}


@dataclass(frozen=True, eq=False)
class Planned:
    """A program with its plan."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    donated: tuple[int, ...]
    plan: sp.Plan

    def over(self, in_shardings: Any, **options: Any) -> sp.Plan:
        """The plan that propagation makes of input shardings."""
        donated = {"donate_argnums": self.donated, "lowering": "jit", **options}
        return sp.auto_shard(self.function, mesh=MESH, in_shardings=in_shardings, **donated).plan(*self.arguments)


@pytest.fixture(scope="module")
def planned() -> Callable[[str], Planned]:
    plans: dict[str, Planned] = {}

    def of(name: str) -> Planned:
        if name not in plans:
            function, arguments, donated = PROGRAMS[name]
            planner = sp.Planner(hardware=H100, time_limit_s=60)
            step = sp.auto_shard(function, mesh=MESH, planner=planner, donate_argnums=donated, lowering="jit")
            plans[name] = Planned(function, arguments, donated, step.plan(*arguments))
        return plans[name]

    return of


def seconds(plan: sp.Plan) -> float:
    step = plan.cost_analysis(H100).step_seconds
    assert step is not None
    return step.high


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in ("tied table", "indexing") else ()) for name in PROGRAMS]
)
def test_the_constraints_of_a_stored_plan_give_it_back(name: str, planned: Callable[[str], Planned]) -> None:
    this = planned(name)
    search = this.plan.search
    assert search is not None
    assert len(search.constraints) <= 16
    stored = sp.Plan.from_json(this.plan.to_json())
    assert stored.search is not None
    assert stored.search.constraints == search.constraints
    again = this.over(stored)
    assert again.input_shardings == this.plan.input_shardings
    assert again.output_shardings == this.plan.output_shardings
    assert again.platform == this.plan.platform == "cuda"
    assert seconds(again) <= seconds(this.plan) * 1.6  # the cheaper of two regions was chosen
    assert again.memory_analysis("h100").peak_memory_in_bytes <= (search.budget_bytes or 0)


def test_what_a_checkpoint_reads_lies_as_planned() -> None:
    """Under a budget one matrix is gathered once, in front of the loop; its slices and what is behind the barrier are whole as well."""

    def step(params: Any, moments: Any, x: jax.Array, y: jax.Array) -> Any:
        def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
            return x + jax.nn.relu(x @ w["in"]) @ w["out"], None

        grads = jax.grad(lambda params: jnp.mean((lax.scan(jax.checkpoint(layer), x, params)[0] - y) ** 2))(params)
        first, second = moments
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
        second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, second, grads)
        return jax.tree.map(lambda p, m, v: p - m * lax.rsqrt(v), params, first, second), (first, second)

    weights, x = {"in": f32(16, 4096, 4096), "out": f32(16, 4096, 4096)}, f32(4096, 4096)
    options: dict[str, Any] = {"mesh": {"x": 16}, "donate_argnums": (0, 1)}
    planner = sp.Planner(hardware="v5e", memory_bytes=2600 << 20, time_limit_s=60)
    plan = sp.auto_shard(step, planner=planner, **options).plan(weights, (weights, weights), x, x)
    again = sp.auto_shard(step, in_shardings=plan, **options).plan(weights, (weights, weights), x, x)
    assert plan.search is not None
    assert "remat2" in {constraint.primitive for constraint in plan.search.constraints}
    assert seconds(again) <= seconds(plan) * 1.06  # its equations are chosen by bytes; those of the plan along the planner's axes


def test_constants_of_a_loop_lie_as_planned() -> None:
    """A table whose rows are gathered stays whole, though its product with the states would cut it."""

    def decode(table: jax.Array, w: jax.Array, tokens: jax.Array) -> Any:
        def step(tokens: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            tokens = jnp.argmax(jnp.tanh(table[tokens] @ w) @ table.T, axis=-1)
            return tokens, tokens

        return lax.scan(step, tokens, None, length=4)

    planner = sp.Planner(hardware="v6e", time_limit_s=60)
    arguments = f32(32000, 2048), f32(2048, 2048), jax.ShapeDtypeStruct((64,), jnp.int32)
    plan = sp.auto_shard(decode, mesh={"x": 8}, planner=planner, lowering="jit").plan(*arguments)
    over = sp.auto_shard(decode, mesh={"x": 8}, in_shardings=sp.Plan.from_json(plan.to_json()), lowering="jit").plan(*arguments)
    assert plan.search is not None
    assert over.cost_analysis("v6e").step_seconds.high <= 1.1 * plan.search.objective_seconds


@pytest.mark.parametrize("name", ["scan"])
def test_every_constraint_is_needed(name: str, planned: Callable[[str], Planned]) -> None:
    this = planned(name)
    search = this.plan.search
    assert search is not None
    assert search.constraints
    for constraint in search.constraints:
        others = tuple(each for each in search.constraints if each is not constraint)
        fewer = this.over(replace(this.plan, search=replace(search, pricer=None, stored_constraints=others)))
        assert seconds(fewer) > search.objective_seconds * (1 + TOLERANCE / 2)


@pytest.mark.slow
@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
def test_a_plan_as_in_shardings_gives_the_numbers_of_the_function(lowering: str) -> None:
    draw = np.random.default_rng(0)
    params = {"in": draw.normal(size=(3, 64, 256)), "out": draw.normal(size=(3, 256, 64))}
    arguments = jax.tree.map(lambda x: jnp.asarray(0.1 * x, jnp.float32), (params, draw.normal(size=(512, 64))))
    chosen = sp.auto_shard(scanned, mesh=MESH, planner=sp.Planner(hardware="v5e"), lowering=lowering).plan(*arguments)
    stored = sp.Plan.from_json(chosen.to_json())
    result = sp.auto_shard(scanned, mesh=MESH, in_shardings=stored, lowering=lowering)(*arguments)
    for one, other in zip(jax.tree.leaves(result), jax.tree.leaves(jax.jit(scanned)(*arguments)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_the_plan_of_another_function(planned: Callable[[str], Planned]) -> None:
    this = planned("training step")

    def other(params: Any, state: Any, x: jax.Array) -> Any:
        return mlp(params, state, jnp.sin(x))

    with pytest.raises(ValueError, match="a plan of another function: it constrains"):
        sp.auto_shard(other, mesh=MESH, in_shardings=this.plan).plan(*this.arguments)
    with pytest.raises(ValueError, match="the plan has no 'y'"):
        sp.auto_shard(lambda y: y, mesh=MESH, in_shardings=this.plan).plan(f32(8, 8))
    with pytest.raises(ValueError, match="unknown mesh axis"):
        sp.auto_shard(mlp, mesh={"z": 8}, in_shardings=this.plan).plan(*this.arguments)


# ------------------------------------------------------------------ the algorithm alone


def place(number: int, kind: int, in_source: bool = True) -> Place:
    return Place(number, TensorSharding.closed("mesh", 1), (kind,), in_source)


def follows(leaders: dict[int, int], cost: dict[int, float], pinned: list[tuple[int, ...]]) -> Callable[[Collection[int]], PinnedOutcome]:
    """Values that lie as planned where they, or the value that they follow, are pinned; each that does not costs something."""
    cut = TensorSharding("mesh", [["x"]])

    def propagate(pins: Collection[int]) -> PinnedOutcome:
        pinned.append(tuple(pins))
        wrong = [value for value, leader in leaders.items() if not {value, leader} & set(pins)]
        return PinnedOutcome(1.0 + sum(cost.get(value, 0.0) for value in wrong), {v: cut if v in wrong else None for v in leaders})

    return propagate


def test_the_largest_kind_is_pinned_first() -> None:
    tried: list[tuple[int, ...]] = []
    places = [place(0, 7), place(1, 8), place(2, 8), place(3, 8)]
    pins = fewest_pins(places, follows({0: 0, 1: 1, 2: 1, 3: 1}, {0: 0.5, 2: 0.5}, tried), 1.0)
    assert pins == (0, 1)
    assert tried[:3] == [(), (1,), (1, 0)]


def test_what_costs_nothing_is_dropped() -> None:
    places = [place(number, number) for number in range(6)]
    pins = fewest_pins(places, follows({n: n for n in range(6)}, {4: 0.5}, []), 1.0)
    assert pins == (4,)


def test_of_many_the_cheapest_are_left_out() -> None:
    """Each is worth more than a pin by itself, and all that are left out together less than a plan's step may lose."""
    places = [place(number, number) for number in range(20)]
    costs = {n: 0.1 if n % 2 else 1.5e-4 for n in range(20)}
    pins = fewest_pins(places, follows({n: n for n in range(20)}, costs, []), 1.0)
    assert len(pins) == 16
    assert set(range(1, 20, 2)) <= set(pins)


def test_values_with_a_line_come_first() -> None:
    places = [place(0, 1, in_source=False), place(1, 1), place(2, 1, in_source=False)]
    assert fewest_pins(places, follows({0: 1, 1: 1, 2: 1}, {2: 1.0}, []), 1.0) == (1,)


def test_a_value_is_pinned_in_further_places_where_the_first_does_not_do() -> None:
    """What a loop carries follows the results of the function, unless it is constrained behind the loop too."""
    places = [place(0, 1), replace(place(1, 1), is_further=True), replace(place(2, 1), is_further=True), place(3, 2)]
    tried: list[tuple[int, ...]] = []
    pins = fewest_pins(places, follows({0: 2, 1: 2, 2: 2, 3: 3}, {0: 0.5, 3: 0.5}, tried), 1.0)
    assert tried[:3] == [(), (0,), (0, 3)]
    assert 3 in pins
    assert follows({0: 2, 3: 3}, {0: 0.5, 3: 0.5}, [])(pins).size == 1.0


def test_it_ends_where_pins_do_not_help() -> None:
    tried: list[tuple[int, ...]] = []
    places = [place(number, number) for number in range(100)]
    follow = follows({n: n for n in range(100)}, {}, tried)

    def propagate(pins: Collection[int]) -> PinnedOutcome:
        outcome = follow(pins)
        return PinnedOutcome(3.0, outcome.shardings)

    assert fewest_pins(places, propagate, 1.0) == ()
    assert len(tried) < 80


def test_branches_have_no_argument_for_what_decides_among_them() -> None:
    def f(x, w, v):
        return lax.cond(x[0, 0] > 0, lambda x, w, v: jnp.tanh(x @ w), lambda x, w, v: jnp.sin(x @ v), x, w, v)

    plan = sp.auto_shard(f, mesh=MESH, planner=sp.Planner(hardware="h100")).plan(f32(64, 512), f32(512, 512), f32(512, 512))
    assert plan.search is not None
    assert isinstance(plan.search.constraints, tuple)
