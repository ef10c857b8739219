"""Meshes of other device orders and sizes than powers of two, of one device, and of more devices than elements; both lowerings."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.backends.compiled_text import collectives_in
from shardy_py.plan.compiled import differences

QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def mesh_of(order: list[int], shape: tuple[int, ...], names: tuple[str, ...]) -> Mesh:
    return Mesh(np.array(jax.devices())[order].reshape(shape), names, axis_types=(AxisType.Auto,) * len(names))


MESHES = {
    "reversed": ([7, 6, 5, 4, 3, 2, 1, 0], (2, 4), ("x", "y"), "rows and columns"),
    "shuffled": ([3, 0, 6, 1, 7, 2, 5, 4], (2, 2, 2), ("x", "z", "y"), "both axes"),
    "some devices": ([5, 1, 6, 2], (2, 2), ("x", "y"), "rows and columns"),
    "3 by 2": ([0, 1, 2, 3, 4, 5], (3, 2), ("x", "y"), "both axes"),
    "2 by 3": ([5, 4, 3, 2, 1, 0], (2, 3), ("x", "y"), "rows and columns"),
    "6 in one": ([0, 1, 2, 3, 4, 5], (1, 6), ("x", "y"), "both axes"),
    "axis of size 1": ([0, 1, 2, 3, 4, 5, 6, 7], (8, 1), ("x", "y"), "both axes"),
    "one device": ([2], (1, 1), ("x", "y"), "rows and columns"),
}


def step(x: Any, w: Any, ids: Any) -> Any:
    def loss(w: Any) -> Any:
        h = jnp.tanh(x @ w)
        h = jax.nn.softmax(h - h.mean(0)) + jnp.cumsum(h, 0)
        total, rows = lax.scan(lambda c, row: (c * 0.5 + row, (c * row).sum()), h[0], h)
        return (jnp.concatenate([h, h[3:]], 0) ** 2).mean() + total.sum() + rows.max()

    value, slope = jax.value_and_grad(loss)(w)
    pooled = lax.reduce_window(x, -jnp.inf, lax.max, (3, 1), (1, 1), "SAME")
    return value, slope, jnp.sort(x, 0), pooled[:7], x.T.reshape(-1, 3), w[ids], x.at[ids].add(1.0), jnp.argmax(x, 0), (ids * 3) % 5


def arguments(rows: int, columns: int, inner: int) -> tuple[Any, ...]:
    generator = np.random.default_rng(rows)
    x, w = (generator.standard_normal(shape).astype(np.float32) for shape in ((rows, inner), (inner, columns)))
    return x, w, generator.integers(0, 6, columns).astype(np.int32)


CASES = {
    "rows and columns": ((12, 12, 6), (P("x"), P(None, "y"), None)),
    "both axes": ((24, 24, 24), (P(("x", "y")), P("y", "x"), P(("y", "x")))),
}


@pytest.fixture(scope="module")
def wanted() -> Any:
    return functools.cache(lambda sizes: jax.jit(step).lower(*arguments(*sizes)).compile(compiler_options=QUICK)(*arguments(*sizes)))


@pytest.mark.parametrize(
    ("name", "lowering"), [*((name, "shard_map") for name in MESHES), *((name, "jit") for name in ("shuffled", "3 by 2", "one device"))]
)
def test_unusual_meshes(name: str, lowering: str, wanted: Any) -> None:
    order, shape, names, case = MESHES[name]
    sizes, specs = CASES[case]
    args = arguments(*sizes)
    sharded = sp.auto_shard(step, mesh=mesh_of(order, shape, names), in_shardings=specs, lowering=lowering)
    compiled = sharded.lower(*args).compile(compiler_options=QUICK)
    same(compiled(*args), wanted(sizes))
    if lowering == "shard_map":
        assert not differences(sharded.plan(*args).collectives, collectives_in(compiled.as_text()))


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
def test_more_devices_than_elements(lowering: str) -> None:
    def fun(x: Any) -> Any:
        wide = lax.with_sharding_constraint(jnp.repeat(x, 8, 0), P("x"))
        few = wide[:3] * 2
        return few.sum(0), jnp.sort(few, 0), jnp.cumsum(few, 0), few.T @ few, jnp.flip(few, 0), jnp.pad(few, ((1, 0), (0, 0)))

    x = np.arange(10, dtype=np.float32).reshape(1, 10)
    same(sp.auto_shard(fun, mesh={"x": 8}, in_shardings=P(), lowering=lowering)(x), jax.jit(fun_whole)(x))


def fun_whole(x: Any) -> Any:
    few = jnp.repeat(x, 8, 0)[:3] * 2
    return few.sum(0), jnp.sort(few, 0), jnp.cumsum(few, 0), few.T @ few, jnp.flip(few, 0), jnp.pad(few, ((1, 0), (0, 0)))


def same(got: Any, want: Any) -> None:
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(g), np.asarray(w), rtol=1e-4, atol=1e-5 * np.abs(w).max(initial=1))
