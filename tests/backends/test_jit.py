"""Pinning: the copy of a jaxpr propagates to the plan, with few constraints."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.api import running
from shardy_py.api.running import CompiledCall
from shardy_py.backends import jit
from shardy_py.plan import jit_program
from tests.random_programs import load, program_of_seed


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


@pytest.fixture
def run_plans(monkeypatch):
    """Plans are run however little they save."""
    monkeypatch.setattr(jit_program, "MAX_BYTES_RATIO", math.inf)


def entry(step, *args):
    return CompiledCall(step.trace(*args)._planned)


A = np.arange(64, dtype=np.float32).reshape(8, 8)


def test_nothing_to_pin(mesh):
    step = sp.auto_shard(lambda a, b: jnp.tanh(a @ b).sum(), mesh=mesh, in_shardings=(P("x"), P(None, "y")), lowering="jit")
    pinned = entry(step, A, A).pinned
    assert (pinned.constraints, pinned.exact) == (0, True)


@pytest.mark.parametrize("seed", range(12))
def test_copies_that_are_not_propagated_anew_need_no_pins(seed, monkeypatch, run_plans):
    skipped, constraints = [], []

    def compared(closed, planned, auto_mesh, propagate, platform, partition, only_grows=False):
        runs = []
        quick = jit.pinned(closed, planned, auto_mesh, lambda copy: runs.append(copy) or propagate(copy), platform, partition, only_grows)
        if not runs:
            skipped.append(seed)
            anew = jit.pinned(closed, planned, auto_mesh, propagate, platform, partition)
            constraints.append((anew.constraints, anew.exact))
        return quick

    monkeypatch.setattr(running, "pinned", compared)
    loaded = load(program_of_seed(seed))
    step = sp.auto_shard(
        loaded.program, mesh=loaded.mesh, in_shardings=loaded.in_shardings, out_shardings=loaded.out_shardings, lowering="jit"
    )
    step.lower(*loaded.arguments)
    assert constraints == [(0, True)] * len(skipped)


def test_plans_without_conflicts_are_propagated_once(mesh, monkeypatch):
    monkeypatch.setattr(running, "import_and_propagate", None)
    step = sp.auto_shard(lambda a, b: jnp.tanh(a @ b).sum(), mesh=mesh, in_shardings=(P("x"), P(None, "y")), lowering="jit")
    assert entry(step, A, A).pinned.exact


def test_barriers_are_propagated_anew(mesh):
    def f(a):
        return jnp.sin(sp.propagation_barrier(jnp.tanh(a)))

    step = sp.auto_shard(f, mesh=mesh, in_shardings=P("x"), lowering="jit")
    assert entry(step, A).pinned.constraints


def conflict(a, b):
    y = jnp.sin(a) + jnp.sin(b)
    return jnp.cos(y) * 2, jnp.exp(y.T) + 1


def test_conflicts_are_pinned_and_right(mesh, run_plans):
    step = sp.auto_shard(conflict, mesh=mesh, in_shardings=(P("x", "y"), P("y", "x")), out_shardings=(P("y"), None), lowering="jit")
    pinned = entry(step, A, A).pinned
    assert pinned.exact
    for a, b in zip(step(A, A), conflict(A, A)):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_priorities_are_pinned(mesh, run_plans):
    def f(a):
        y = jnp.sin(a)
        z = sp.with_sharding_constraint(y, P("x", P.UNCONSTRAINED), priority=1)
        return (sp.with_sharding_constraint(y, P("y", P.UNCONSTRAINED), priority=0) * 2).sum() + z.sum()

    step = sp.auto_shard(f, mesh=mesh, lowering="jit")
    assert entry(step, A).pinned.exact
    np.testing.assert_allclose(step(A), f(A) if False else (jnp.sin(A) * 3).sum(), rtol=1e-5)


@pytest.mark.parametrize("kind", ["scan", "while", "cond", "remat", "custom_vjp", "jit"])
def test_bodies(kind, mesh, run_plans):
    def inner(x):
        y = jnp.tanh(x)
        return sp.with_sharding_constraint(y, P("x", P.UNCONSTRAINED), priority=2) @ sp.with_sharding_constraint(
            y, P(None, "y"), priority=1
        )

    @jax.custom_vjp
    def custom(x):
        return inner(x)

    custom.defvjp(lambda x: (inner(x), x), lambda x, g: (g * x,))
    functions = {
        "scan": lambda x: lax.scan(lambda c, _: (inner(c), c.sum()), x, None, length=3),
        "while": lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, inner(c[1])), (0, x))[1],
        "cond": lambda x: lax.cond(x.sum() > 0, inner, lambda x: x * 2, x),
        "remat": lambda x: jax.grad(lambda x: jax.checkpoint(inner)(x).sum())(x),
        "custom_vjp": lambda x: jax.grad(lambda x: custom(x).sum())(x) + custom(x),
        "jit": lambda x: jax.jit(inner)(x) + jax.jit(inner)(x + 1),
    }
    f = functions[kind]
    step = sp.auto_shard(f, mesh=mesh, in_shardings=P("y"), lowering="jit")
    pinned = entry(step, A / 64).pinned
    assert pinned.exact
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
        step(A / 64),
        jax.jit(f)(A / 64) if kind == "none" else plain(f, mesh),
    )


def plain(f, mesh):
    with jax.set_mesh(jax.make_mesh((1, 1), ("x", "y"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:1])):
        return jax.tree.map(np.asarray, jax.jit(f)(A / 64))


def test_sub_axes_reach_jax_by_a_refined_mesh(mesh):
    half = sp.AxisRef("y", 1, 2)

    def f(x):
        return sp.with_sharding_constraint(x * 2, sp.TensorSharding("mesh", [[half], ["x"]])) + 1

    step = sp.auto_shard(f, mesh=mesh, lowering="jit")
    np.testing.assert_array_equal(step(A), 2 * A + 1)
    assert '"y_0"=2, "y_1"=2' in step.lower(A).as_text()


def test_captured_arrays(mesh):
    table = jnp.arange(8.0)
    step = sp.auto_shard(lambda x: x + table, mesh=mesh, in_shardings=P("x"), lowering="jit")
    np.testing.assert_array_equal(step(A), A + np.arange(8.0))


def test_effects(mesh):
    seen = []

    def f(x):
        jax.debug.callback(lambda v: seen.append(float(v)), x.sum())
        return x * 2

    step = sp.auto_shard(f, mesh=mesh, in_shardings=P("x"), lowering="jit")
    jax.block_until_ready(step(A))
    jax.effects_barrier()
    assert seen == [A.sum()]


def test_user_shard_map_and_constraints_of_jax(mesh):
    def f(x):
        y = lax.with_sharding_constraint(x * 2, P("x"))
        return jax.shard_map(lambda t: lax.psum(t, "x"), in_specs=P("x"), out_specs=P())(y)

    step = sp.auto_shard(f, mesh=mesh, lowering="jit")
    np.testing.assert_array_equal(step(A), 2 * (A[:4] + A[4:]))
    with jax.set_mesh(mesh):
        np.testing.assert_array_equal(step(A), 2 * (A[:4] + A[4:]))
    concrete = sp.auto_shard(
        lambda x: jax.shard_map(lambda t: t * 2, mesh=mesh, in_specs=P("x"), out_specs=P("x"))(x), mesh={"x": 2, "y": 4}, lowering="jit"
    )
    np.testing.assert_array_equal(concrete(A), 2 * A)


def test_branches_whose_results_the_plan_cuts_in_different_ways() -> None:
    """XLA refuses branches that end in different constraints."""
    from tests.random_numbers import difference, text_of_seed

    assert difference(text_of_seed(309), ("jit",)) == ""
