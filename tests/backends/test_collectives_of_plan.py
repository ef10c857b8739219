"""With explicit collectives, a plan has the collectives of the compiled program: kind, devices, bytes and trips of each."""

from __future__ import annotations

import pathlib
import runpy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.backends.compiled_text import collectives_in
from shardy_py.plan.compiled import differences

MESH = {"x": 2, "y": 4}
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Machine code that need not be fast; the collectives are the same."""

S = jax.ShapeDtypeStruct
F32 = jnp.float32
Program = tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]
PROGRAMS: dict[str, Callable[[], Program]] = {}


def program(make: Callable[[], Program]) -> Callable[[], Program]:
    PROGRAMS[make.__name__] = make
    return make


def gpt(scanned: bool, fully_sharded: bool) -> Program:
    model = runpy.run_path(str(pathlib.Path(__file__).parents[2] / "benchmarks" / "gpt.py"))
    (params, moments, tokens), specs = model["arguments"](2, 64, scanned=scanned, batch=4, length=8)
    axes = {"data": "y", "model": "x"}
    if fully_sharded:
        cut = lambda leaf: P(*[None] * (leaf.ndim - 1), "x") if leaf.shape and leaf.shape[-1] % 2 == 0 else None  # noqa: E731
        return model["train_step"], (params, moments, tokens), (jax.tree.map(cut, params), None, P("x"))
    rename = lambda spec: None if spec is None else P(*(axes.get(a) for a in spec))  # noqa: E731
    return model["train_step"], (params, moments, tokens), jax.tree.map(rename, specs, is_leaf=lambda s: s is None or isinstance(s, P))


@program
def gpt_megatron() -> Program:
    return gpt(scanned=False, fully_sharded=False)


@program
def gpt_scanned_fully_sharded() -> Program:
    return gpt(scanned=True, fully_sharded=True)


def layers(body: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    def loss(ws: Any, x: Any) -> Any:
        return lax.scan(lambda h, w: (body(h, w), None), x, ws, **options)[0].sum()

    return jax.value_and_grad(loss)


STACK = (S((5, 16, 16), F32), S((8, 16), F32))


@program
def gathered_behind_a_stopped_gradient() -> Program:
    return lambda x: (jnp.fft.rfft(lax.stop_gradient(x)), jnp.fft.fft(x)), (S((8, 32), F32),), (P(None, "y"),)


@program
def sorts_whose_operands_nothing_reads() -> Program:
    """The second sort reads a result of the first, but its own result of it is not read, nor is the first in the loop."""

    def step(x: Any, y: Any) -> Any:
        _, order, _ = lax.sort((x, y, x * y), dimension=0, num_keys=1)
        sorted_by, _ = lax.sort((y, order), dimension=0, num_keys=1)
        return sorted_by, lax.scan(lambda c, _: (lax.sort((c, y), dimension=0, num_keys=1)[0] * 1.5, None), x, None, length=3)[0]

    return step, (S((16, 8), F32), S((16, 8), F32)), (P("x"), P("y"))


@program
def unrolled_scan() -> Program:
    return layers(lambda h, w: jnp.tanh(h @ w), unroll=2), STACK, (P(None, "y"), P("x"))


@program
def fully_unrolled_scan() -> Program:
    forward = lambda ws, x: lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws, unroll=5)[0].sum()  # noqa: E731
    return forward, STACK, (P(None, None, "y"), P("x"))


@program
def rematerialized_layers() -> Program:
    body = jax.checkpoint(lambda h, w: jnp.tanh(h @ w) @ w.T)

    def loss(ws: Any, x: Any) -> Any:
        for w in ws:
            x = body(x, w)
        return x.sum()

    return jax.value_and_grad(loss), ([S((16, 16), F32)] * 2, S((8, 16), F32)), ([P("x")] * 2, P("x"))


@program
def rematerialized_scan() -> Program:
    return layers(jax.checkpoint(lambda h, w: jnp.tanh(h @ w) @ w.T)), STACK, (P(None, "x"), P("x"))


@program
def idle_carries() -> Program:
    def fun(w: Any, x: Any) -> Any:
        def step(state: Any, v: Any) -> Any:
            a, b, total = state
            return (b, a, total + (v @ a).sum()), a.sum()

        (_, kept, total), sums = lax.scan(step, (w, w, 0.0), x)
        return kept @ kept, total, sums

    return fun, (S((16, 16), F32), S((3, 8, 16), F32)), (P("x", "y"), P(None, "x"))


@program
def loops_with_conditions() -> Program:
    def fun(x: Any, w: Any) -> Any:
        step = lambda v: jnp.tanh(v @ w)  # noqa: E731
        one = lax.while_loop(lambda v: v.sum() > 1.0, step, x)
        return one, jax.vmap(lambda row: lax.while_loop(lambda v: v.sum() > 1.0, step, row))(x)

    return fun, (S((8, 16), F32), S((16, 16), F32)), (P("x"), P("y"))


@program
def equal_sums() -> Program:
    def fun(x: Any) -> Any:
        standardized = lambda v: (v - v.mean(0)) * lax.rsqrt(v.var(0) + 1e-5)  # noqa: E731
        return standardized(x) + standardized(x[:, :]) + jnp.pad(x, 0).sum(0)

    return fun, (S((16, 8), F32),), (P("x", "y"),)


@program
def values_without_elements() -> Program:
    return lambda x: lax.associative_scan(jnp.add, x, axis=0), (S((8, 16), F32),), (P(None, "y"),)


@program
def microbatches() -> Program:
    def fun(w: Any, xs: Any) -> Any:
        grad = jax.grad(lambda w, x: jnp.square(jnp.tanh(x @ w)).sum())
        return lax.scan(lambda total, x: (total + grad(w, x), None), jnp.zeros_like(w), xs)[0]

    return fun, (S((16, 8), F32), S((4, 8, 16), F32)), (P(None, "y"), P(None, "x"))


@program
def small_types() -> Program:
    def fun(x: Any, w: Any, flags: Any) -> Any:
        return x @ w, x.max(1), x.T[:3], flags.any(0), flags.T, x.astype(jnp.float8_e4m3fn).T

    return fun, (S((8, 16), jnp.bfloat16), S((16, 8), jnp.bfloat16), S((8, 16), jnp.bool_)), (P("x", "y"), P("y"), P("x", "y"))


@program
def bfloat16_sums() -> Program:
    """Whole, scattered, in a loop, and added up in float32."""

    def fun(x: Any, w: Any) -> Any:
        total = lax.scan(lambda c, row: (c + (x * row) @ w, None), jnp.zeros((64, 32), F32), x[:3].astype(F32))[0]
        return (
            x @ w,
            sp.with_sharding_constraint(x @ (2 * w), P("y")),
            lax.scan(lambda c, _: (jnp.tanh(c @ w) @ w.T, None), x, None, length=3)[0],
            total,
        )

    return fun, (S((64, 64), jnp.bfloat16), S((64, 32), jnp.bfloat16)), (P(None, "y"), P("y"))


@program
def windows() -> Program:
    def fun(x: Any, k: Any) -> Any:
        y = lax.conv_general_dilated(x, k, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME").sum(), jnp.concatenate([x, x[:, :3]], 1)

    return jax.grad(lambda x, k: sum(v.sum() for v in fun(x, k)), (0, 1)), (S((4, 8, 8, 4), F32), S((3, 3, 4, 8), F32)), (P("x", "y"), None)


@program
def lookups() -> Program:
    def fun(table: Any, ids: Any, updates: Any) -> Any:
        return table[ids].sum(1), table.at[ids[:, 0]].add(updates), jnp.sort(table, 0), jnp.argmax(updates, 1)

    return fun, (S((32, 8), F32), S((8, 4), jnp.int32), S((8, 8), F32)), (P("y"), P("x"), P("x"))


@program
def branches() -> Program:
    def fun(i: Any, x: Any, w: Any) -> Any:
        return lax.switch(i, [lambda: x @ w, lambda: (x * 2) @ w, lambda: jnp.sin(x)])

    return fun, (S((), jnp.int32), S((8, 16), F32), S((16, 16), F32)), (None, P("x", "y"), P("y"))


def differing(make: Callable[[], Program]) -> list[str]:
    fun, args, specs = make()
    step = sp.auto_shard(fun, mesh=MESH, in_shardings=specs, lowering="shard_map")
    compiled = step.lower(*args).compile(compiler_options=QUICK)
    return differences(step.plan(*args).collectives, collectives_in(compiled.as_text()))


@pytest.mark.parametrize("name", PROGRAMS)
def test_plan_has_the_compiled_collectives(name: str) -> None:
    assert differing(PROGRAMS[name]) == []


def test_zero_and_minus_zero_are_two_values() -> None:
    def fun(x: Any) -> Any:
        return lax.div(1.0, x * 0.0), lax.div(1.0, x * -0.0)

    got = sp.auto_shard(fun, mesh=MESH, in_shardings=P("x"), lowering="shard_map")(np.ones(4, np.float32))
    assert np.asarray(got[0])[0] == np.inf
    assert np.asarray(got[1])[0] == -np.inf


def test_reshapes_whose_blocks_do_not_match() -> None:
    x = np.arange(36, dtype=np.float32).reshape(3, 12)
    step = sp.auto_shard(lambda x: x.reshape(2, 18), mesh=MESH, in_shardings=P(None, "y"), lowering="shard_map")
    np.testing.assert_array_equal(step(x), x.reshape(2, 18))


def test_gathers_of_arguments_name_them_in_loops_too():
    def layers(params, x):
        return lax.scan(lambda c, w: (jnp.tanh(c @ w + c @ params["head"]), None), x, params["layers"])[0]

    specs = {"head": P("data"), "layers": P(None, "data")}
    step = sp.auto_shard(layers, mesh={"data": 8}, in_shardings=(specs, P("data")))
    shapes = {"head": jax.ShapeDtypeStruct((64, 64), jnp.float32), "layers": jax.ShapeDtypeStruct((4, 64, 64), jnp.float32)}
    plan = step.plan(shapes, jax.ShapeDtypeStruct((4096, 64), jnp.float32))
    assert [(c.kind, c.value, c.trips) for c in plan.collectives] == [
        ("all_gather", "params['head']", 1),
        ("all_gather", "params['layers']", 4),
    ]
