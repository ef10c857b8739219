"""What `lowering="jit"` runs: the user's constraints as planned, workarounds, and what a planner chose."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shardy_py as sp


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


A = np.arange(64, dtype=np.float32).reshape(8, 8)


def constraints(step, *args):
    return step.lower(*args).as_text().count("sharding_constraint")


def test_only_what_the_user_says_is_constrained(mesh):
    for specs in ((P("x"), P(None, "y")), (P("x"), P(None, "x"))):  # the second conflict
        step = sp.auto_shard(lambda a, b: jnp.tanh(jnp.sin(a) @ b), mesh=mesh, in_shardings=specs, lowering="jit")
        assert constraints(step, A, A) == 0

    def annotated(a):
        b = sp.propagation_barrier(jnp.tanh(a))
        c = jnp.sin(b)
        sp.sharding_group(b, c)
        return sp.with_sharding_constraint(c, P(None, "y")) * 2

    assert constraints(sp.auto_shard(annotated, mesh=mesh, in_shardings=P("x"), lowering="jit"), A) == 4


def test_what_xla_may_get_wrong_runs_as_planned(mesh):
    shifted = sp.auto_shard(
        lambda a: jnp.sin(lax.pad(jnp.cos(a), 0.0, [(0, 0, 0), (-1, 1, 0)])), mesh=mesh, in_shardings=P("x", "y"), lowering="jit"
    )
    assert constraints(shifted, A) >= 2


def conflict(a, b):
    y = jnp.sin(a) + jnp.sin(b)
    return jnp.cos(y) * 2, jnp.exp(y.T) + 1


def test_conflicts_are_right(mesh):
    step = sp.auto_shard(conflict, mesh=mesh, in_shardings=(P("x", "y"), P("y", "x")), out_shardings=(P("y"), None), lowering="jit")
    for a, b in zip(step(A, A), conflict(A, A)):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_priorities(mesh):
    def f(a):
        y = jnp.sin(a)
        z = sp.with_sharding_constraint(y, P("x", P.UNCONSTRAINED), priority=1)
        return (sp.with_sharding_constraint(y, P("y", P.UNCONSTRAINED), priority=0) * 2).sum() + z.sum()

    step = sp.auto_shard(f, mesh=mesh, lowering="jit")
    np.testing.assert_allclose(step(A), f(A) if False else (jnp.sin(A) * 3).sum(), rtol=1e-5)


@pytest.mark.parametrize("kind", ["scan", "while", "cond", "remat", "custom_vjp", "jit"])
def test_bodies(kind, mesh):
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


def smoothed(weights, x):
    """Fully sharded, which conflicts in every op that has weights and data, with ops in between that XLA gets wrong."""

    def loss(weights):
        h = jax.nn.silu(weights["gain"] * x @ weights["up"]) @ weights["down"]
        numbers = ("NWC", "WIO", "NWC")
        mixed = lax.conv_general_dilated(h, weights["taps"], (1,), "SAME", dimension_numbers=numbers, feature_group_count=32)
        return (jnp.sin(mixed) * lax.cummax(mixed, axis=1)).mean() + mixed.max(axis=(0, 2)).sum()

    return jax.value_and_grad(loss)(weights)


def test_numbers_where_shardings_conflict(mesh):
    draw = np.random.default_rng(0)
    shapes = {"gain": (32,), "up": (32, 64), "down": (64, 32), "taps": (3, 1, 32)}
    weights = {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    x = draw.normal(size=(8, 12, 32)).astype(np.float32)
    x[3, 5, 7] = np.nan
    specs = {name: P("x") for name in weights} | {"taps": P(None, None, "y")}
    step = sp.auto_shard(smoothed, mesh=mesh, in_shardings=(specs, P("x")), lowering="jit")
    for x_now in (x, np.nan_to_num(x)):
        for ours, theirs in zip(jax.tree.leaves(step(weights, x_now)), jax.tree.leaves(jax.jit(smoothed)(weights, x_now)), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)
