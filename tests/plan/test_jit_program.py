"""The program under `lowering="jit"`: the plan, or, where it moves less, XLA's own of inputs, results and constraints."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.backends.compiled_text import collectives_in
from shardy_py.plan.executed import explicit_of
from shardy_py.plan.jit_program import jit_program_of
from shardy_py.plan.partitioner import partition

WIDTH = 32
TOKENS = jax.ShapeDtypeStruct((64, 8), jnp.int32)
SPECS = ({"table": P("x"), "gain": P("x"), "up": P("x"), "down": P("x")}, P("x"))
"""Fully sharded: every weight and the batch are cut over one axis, which conflicts in every op that has both."""
WEIGHTS = {
    "table": jax.ShapeDtypeStruct((64, WIDTH), jnp.float32),
    "gain": jax.ShapeDtypeStruct((WIDTH,), jnp.float32),
    "up": jax.ShapeDtypeStruct((WIDTH, 2 * WIDTH), jnp.float32),
    "down": jax.ShapeDtypeStruct((2 * WIDTH, WIDTH), jnp.float32),
}


@pytest.fixture(scope="module")
def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def block(weights: Any, x: jax.Array) -> jax.Array:
    h = weights["gain"] * x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)
    return x + jax.nn.silu(h @ weights["up"]) @ weights["down"]


def train(weights: Any, tokens: jax.Array) -> Any:
    return jax.grad(lambda w: (block(w, block(w, w["table"][tokens])) ** 2).mean())(weights)


def sent(step: Any, *args: Any) -> int:
    return sum(c.received_bytes * (c.trips or 1) for c in collectives_in(step.lower(*args).compile().as_text()))


def predicted(plan: sp.Plan) -> int:
    return sum(c.received_bytes * (c.trips or 1) for c in plan.collectives)


def sharded(fun: Any, mesh: Any, **options: Any) -> Any:
    return sp.auto_shard(fun, mesh=mesh, in_shardings=SPECS, out_shardings=SPECS[0], **{"lowering": "jit", **options})


def test_conflicts_are_left_to_xla_where_that_moves_less(mesh: jax.sharding.Mesh) -> None:
    step = sharded(train, mesh)
    named = lambda specs: jax.tree.map(lambda s: jax.sharding.NamedSharding(mesh, s), specs)  # noqa: E731
    alone = jax.jit(train, in_shardings=named(SPECS), out_shardings=named(SPECS[0]))
    plan = step.plan(WEIGHTS, TOKENS)
    assert not jit_program_of(plan).follows_plan
    assert str(plan).splitlines()[1].endswith("; where shardings conflict, XLA decides, not the plan")
    assert "sharding_constraint" not in step.lower(WEIGHTS, TOKENS).as_text()
    assert sent(step, WEIGHTS, TOKENS) == sent(alone, WEIGHTS, TOKENS)
    assert predicted(plan) < sum(t.collective.received_bytes for t in partition(plan.program, str).transfers)


def test_what_is_left_to_xla_is_a_finding(mesh: jax.sharding.Mesh) -> None:
    def fitted(width: int, rows: int = 512, **options: Any) -> Any:
        weights = {name: jax.ShapeDtypeStruct([n * (width // WIDTH) for n in w.shape], w.dtype) for name, w in WEIGHTS.items()}
        plan = sharded(train, mesh, **options).plan(weights, jax.ShapeDtypeStruct((rows, 64), jnp.int32))
        return [f for f in plan.findings if f.kind == "left-to-xla"]

    (finding,) = fitted(256)
    assert (finding.severity, finding.bytes >= 1 << 20, finding.path[0]) == ("info", True, "%")
    assert finding.location.rpartition("/")[2].startswith("test_jit_program.py:")
    planned_as, expected = finding.message.removeprefix("planned as ").split(", and XLA")
    assert planned_as not in expected.partition(":")[0]
    assert "lowering='shard_map'" in finding.fix
    assert not fitted(256, lowering="shard_map")
    assert not fitted(256, options=sp.Options(conservative=True))
    assert not fitted(32, rows=16)  # of a few KiB


def test_collectives_are_said_of_the_ops_of_the_plan(mesh: jax.sharding.Mesh) -> None:
    plan = sharded(train, mesh).plan(WEIGHTS, TOKENS)
    ops = set(plan.program.walk())
    origins = [transfer.origin for transfer in explicit_of(plan).transfers]
    assert origins
    assert all(origin is not None and origin.op in ops for origin in origins)
    assert all(c.location.rpartition("/")[2].startswith("test_jit_program.py:") for c in plan.collectives)
    assert {c.value for c in plan.collectives} & {f"weights['{name}']" for name in WEIGHTS}


def test_numbers_and_ends_are_as_planned(mesh: jax.sharding.Mesh) -> None:
    random = np.random.default_rng(0)
    weights = {name: (random.standard_normal(w.shape) / 4).astype(np.float32) for name, w in WEIGHTS.items()}
    tokens = random.integers(0, 64, TOKENS.shape)
    got = sharded(train, mesh)(weights, tokens)
    for name, gradient in jax.jit(train)(weights, tokens).items():
        np.testing.assert_allclose(got[name], gradient, rtol=1e-4, atol=1e-5)
        assert got[name].sharding.spec == SPECS[0][name]


def test_what_the_user_annotates_is_held(mesh: jax.sharding.Mesh) -> None:
    def annotated(weights: Any, tokens: jax.Array) -> Any:
        def loss(w: Any) -> jax.Array:
            x = w["table"][tokens]
            h = block(w, x)
            sp.sharding_group(h, x)
            return (block(w, sp.propagation_barrier(h)) ** 2).mean()

        return jax.grad(loss)(weights)

    step = sharded(annotated, mesh)
    assert not jit_program_of(step.plan(WEIGHTS, TOKENS)).follows_plan
    assert step.lower(WEIGHTS, TOKENS).as_text().count("sharding_constraint") >= 2


def test_a_plan_of_other_options_is_run_as_it_is(mesh: jax.sharding.Mesh) -> None:
    assert jit_program_of(sharded(train, mesh, options=sp.Options(conservative=True)).plan(WEIGHTS, TOKENS)).follows_plan


def test_without_conflicts_the_plan_is_run(mesh: jax.sharding.Mesh) -> None:
    step = sp.auto_shard(train, mesh=mesh, in_shardings=(None, P("x")), lowering="jit")
    plan = step.plan(WEIGHTS, TOKENS)
    assert jit_program_of(plan).follows_plan
    assert jit_program_of(plan).program is plan.program


def test_what_xla_may_get_wrong_runs_as_planned(mesh: jax.sharding.Mesh) -> None:
    """Ops at risk are held to the plan, by which what stands in their place is partitioned."""
    shifted = lambda weights, tokens: train(weights, jax.lax.pad(tokens, 0, [(0, 0, 0), (-1, 1, 0)]))  # noqa: E731
    step = sharded(shifted, mesh)
    assert not jit_program_of(step.plan(WEIGHTS, TOKENS)).follows_plan
    assert step.lower(WEIGHTS, TOKENS).as_text().count("sharding_constraint") >= 2


def smoothed(weights: Any, x: jax.Array) -> Any:
    """Fully sharded, with a depthwise convolution, a running maximum and the largest of all in between."""

    def loss(weights: Any) -> jax.Array:
        h = jax.nn.silu(weights["gain"] * x @ weights["up"]) @ weights["down"]
        numbers = ("NWC", "WIO", "NWC")
        mixed = jax.lax.conv_general_dilated(h, weights["taps"], (1,), "SAME", dimension_numbers=numbers, feature_group_count=WIDTH)
        return (jnp.sin(mixed) * jax.lax.cummax(mixed, axis=1)).mean() + mixed.max(axis=(0, 2)).sum()

    return jax.value_and_grad(loss)(weights)


def test_numbers_where_conflicts_are_left_to_xla(mesh: jax.sharding.Mesh) -> None:
    draw = np.random.default_rng(0)
    weights = {name: draw.normal(size=WEIGHTS[name].shape).astype(np.float32) for name in ("gain", "up", "down")}
    weights["taps"] = draw.normal(size=(3, 1, WIDTH)).astype(np.float32)
    x = draw.normal(size=(8, 12, WIDTH)).astype(np.float32)
    x[3, 5, 7] = np.nan
    specs = {name: P("x") for name in weights} | {"taps": P(None, None, "y")}
    step = sp.auto_shard(smoothed, mesh=mesh, in_shardings=(specs, P("x")), lowering="jit")
    assert not jit_program_of(step.plan(weights, x)).follows_plan
    for x_now in (x, np.nan_to_num(x)):
        for ours, theirs in zip(jax.tree.leaves(step(weights, x_now)), jax.tree.leaves(jax.jit(smoothed)(weights, x_now)), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)
