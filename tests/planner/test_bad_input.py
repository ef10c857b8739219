"""Input that the planner cannot use, and input that leaves it no choice."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import Primitive
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from tests.planner.test_model import f32
from tests.planner.test_search import SMALL, STEP, planner, step

unknown_p = Primitive("unknown")
unknown_p.def_abstract_eval(lambda x: x)


def planned(mesh: Any = None, fun: Callable[..., Any] = step, args: Any = STEP, options: Any = None, **keywords: Any) -> sp.Plan:
    mesh = {"x": 8} if mesh is None else mesh
    return sp.auto_shard(fun, mesh=mesh, planner=planner(**(options or {})), **keywords).plan(*args)


def placed_otherwise() -> sp.Plan:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=NamedSharding(mesh, P(None, "x")))
    return planned(mesh, jnp.sin, (x,), in_shardings=P("x"))


def residuals(weights: jax.Array, x: jax.Array) -> jax.Array:
    return jax.grad(lambda weights: jnp.sum(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0]))(weights)


def grouped(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    a, b = sp.sharding_group(a, b)
    return a + 1, b + 1


def constrained_group(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    one = sp.with_sharding_constraint(a * 2, P("x", P.UNCONSTRAINED))
    return grouped(one, sp.with_sharding_constraint(a * 3, P("y", P.UNCONSTRAINED)))


MISTAKES: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "no hardware": (lambda: sp.Planner(), TypeError, "'hardware'"),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    "hardware of another type": (lambda: planner(hardware=None), TypeError, "hardware is a name or a shardy_py.Hardware, not NoneType"),
    "unknown hardware": (lambda: planner(hardware="abacus"), sp.ShardyError, "unknown hardware 'abacus'.*known are v4,.*h100"),
    "memory": (lambda: planner(memory_bytes="16 apples"), sp.ShardyError, r"'16 apples' is not a number of bytes.*memory_bytes=\.\.\."),
    "no memory": (lambda: planner(memory_bytes="0"), sp.ShardyError, "memory_bytes is '0'.*a positive number of bytes"),
    "gap": (lambda: planner(gap=2), sp.ShardyError, "gap is 2.*between 0 and 1"),
    "templates": (lambda: planner(templates=[1]), sp.ShardyError, r"templates is \[1\]"),
    "overlap": (lambda: planner(overlap="much"), sp.ShardyError, "overlap is 'much'"),
    "time limit": (lambda: planner(time_limit_s=math.nan), sp.ShardyError, "time_limit_s is nan.*seconds, at least 0"),
    "annotations": (lambda: planner(annotations="drop"), sp.ShardyError, "annotations is 'drop'.*\"keep\", \"hint\" or \"ignore\""),
    "negative time": (lambda: planner(time_limit_s=-1), sp.ShardyError, "time_limit_s is -1"),
    "planner of another type": (lambda: sp.auto_shard(step, planner="h100"), TypeError, r"planner is a str.*pass sp\.Planner"),  # type: ignore[call-overload]  # pyright: ignore
    "devices without a planner": (lambda: sp.auto_shard(step, mesh=8), sp.MeshError, r"mesh is 8, a number.*pass planner=sp\.Planner"),
    "no devices": (lambda: planned(0), sp.MeshError, "mesh is 0.*a number of devices must be positive"),
    "true devices": (lambda: planned(True), sp.MeshError, "mesh is True.*a number of devices must be positive"),
    "half a device": (lambda: planned(2.5), sp.MeshError, "mesh is a float"),
    "an empty mesh": (lambda: planned({}), sp.MeshError, "the mesh has no axes"),
    "links of no axis": (lambda: planned(options={"links": {"z": "dcn"}}), sp.ShardyError, "unknown mesh axis 'z'.*x=8.*name one of x"),
    "links of another number": (lambda: planned(4, options={"links": {"x": "dcn"}}), sp.ShardyError, "unknown mesh axis 'x'.*axis0=4"),
    "unknown links": (lambda: planned(options={"links": {"x": "rope"}}), sp.ShardyError, r"unknown links 'rope'.*links\['x'\].*'ici'"),
    "pins that differ": (placed_otherwise, sp.SpecError, r"differs from in_shardings.*says P\('x'.*argument has P\(None, 'x'\)"),
    "a pin that does not divide": (
        lambda: planned(fun=jnp.sin, args=(f32(63, 64),), in_shardings=P("x")), sp.SpecError, "63 is not divisible by 8.*64"
    ),
    "pins of a group that differ": (
        lambda: planned(SMALL, grouped, (f32(64, 64), f32(64, 64)), in_shardings=(P("x", P.UNCONSTRAINED), P(P.UNCONSTRAINED, "x"))),
        sp.ShardyError, r"two members of a sharding group.*a and b.*annotate only one of them",
    ),
    "constraints of a group that differ": (
        lambda: planned(SMALL, constrained_group, (f32(64, 64),)), sp.ShardyError,
        r"two members of a sharding group.*test_bad_input\.py:\d+ and .*test_bad_input\.py:\d+",
    ),
    "a budget that nothing fits": (
        lambda: planned(options={"memory_bytes": 1 << 16}), sp.PlannerInfeasible,
        r"arguments and results alone take 3 MiB, however they are sharded; .* MiB \(fully sharded over x\) at .*at least 384 devices",
    ),
    "residuals that do not fit": (
        lambda: planned({"x": 4}, residuals, (f32(8, 256, 256), f32(8192, 256)), {"memory_bytes": 1 << 20}), sp.PlannerInfeasible,
        r"recompute residuals of scans \(jax\.checkpoint\), which leaves .* MiB of .*peak, or use at least 12 devices instead of 4",
    ),
    "a budget that may be met": (
        lambda: planned({"x": 4}, residuals, (f32(8, 256, 256), f32(8192, 256)), {"memory_bytes": 4 << 20}), sp.PlannerBudgetError,
        r"no plan was found that fits 4 MiB a device: the smallest plan found takes .* MiB.*microbatches of half the size, which leaves",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:sharding group")
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    call, kind, words = MISTAKES[name]
    with pytest.raises(kind, match=f"(?s){words}") as caught:
        call()
    if isinstance(caught.value, sp.PlannerInfeasible):
        error = caught.value
        assert isinstance(error, ValueError)
        assert error.budget_bytes < error.minimum_bytes
        assert (error.bound_bytes <= error.budget_bytes) is isinstance(error, sp.PlannerBudgetError)
        assert 0 < len(error.contributors) <= 5


CHOICELESS: dict[str, Callable[[], sp.Plan]] = {
    "one device": lambda: planned({"x": 1}),
    "one device, by number": lambda: planned(1),
    "an axis that divides nothing": lambda: planned({"x": 7}),
    "a prime number of devices": lambda: planned(7),
    "a number": lambda: planned(fun=lambda x: x * 2, args=(f32(),)),
    "no arguments": lambda: planned(fun=lambda: jnp.float32(1), args=()),
}


@pytest.mark.parametrize("name", CHOICELESS)
def test_nothing_to_choose(name: str) -> None:
    plan = CHOICELESS[name]()
    assert all(v.sharding is None or v.sharding.is_fully_replicated for v in plan.values)
    assert plan.search is not None
    assert plan.search.gap == pytest.approx(0, abs=1e-9)
    assert "devices share no work" in plan.search.space["nothing to choose"]


def test_no_time() -> None:
    plan = planned(SMALL, options={"time_limit_s": 0})
    assert plan.search is not None
    assert plan.search.status == "time_limit"
    assert 0 < plan.search.lower_bound_seconds <= plan.search.objective_seconds


def barred(a: jax.Array, b: jax.Array) -> jax.Array:
    (a,), (b,) = jax.lax.optimization_barrier((a,)), jax.lax.optimization_barrier((b,))
    return jnp.sin(a + b)


@pytest.mark.parametrize("fun", [barred, lambda a, b: (a + b, b)], ids=["behind barriers", "of a donated argument and its result"])
def test_pins_that_cannot_be_of_one_value(fun: Any) -> None:
    """Open dimensions do not follow a pin that would cut two dimensions along one axis."""
    free, donated = P.UNCONSTRAINED, () if fun is barred else (0,)
    out = None if fun is barred else (P(free, "x"), None)
    plan = planned(
        SMALL, fun, (f32(64, 64), f32(64, 64)), in_shardings=(P("x", free), P(free, "x")), out_shardings=out, donate_argnums=donated
    )
    assert plan.search is not None
    assert plan.input_shardings[0].spec[0] == "x"
    assert plan.input_shardings[1].spec[1] == "x"


@pytest.mark.parametrize("kind", ["callback", "primitive"])
def test_an_op_without_a_rule_runs_whole_and_is_priced_so(kind: str) -> None:
    def fun(x: jax.Array) -> Any:
        return jnp.tanh(unknown_p.bind(x) if kind == "primitive" else jax.pure_callback(lambda x: x, x, x))

    plan = planned(fun=fun, args=(f32(4096, 1024),))
    assert plan.search is not None
    assert plan.search.lower_bound_seconds <= plan.search.objective_seconds
    assert plan.inputs[0].sharding is not None
    assert plan.inputs[0].sharding.is_fully_replicated
