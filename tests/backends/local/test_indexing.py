"""Gathers and scatters on local arrays."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from tests.backends.local.forced import check

RNG = np.random.default_rng(0)


def table(dtype: str, shape: tuple[int, ...] = (10, 6)) -> jnp.ndarray:
    if dtype == "bool":
        return jnp.asarray(RNG.random(shape) < 0.5)
    if dtype.startswith(("int", "uint")):
        return jnp.asarray(RNG.integers(0, 100, shape), dtype)
    return jnp.asarray(RNG.normal(size=shape), dtype).at[0].set(-0.0).at[1].set(jnp.nan)


@pytest.mark.parametrize(
    ("mode", "dtype"),
    [
        ("clip", "float32"),
        ("fill", "bfloat16"),
        ("promise_in_bounds", "int32"),
        ("fill", "bool"),
        ("fill", "complex64"),
        ("fill", "uint8"),
    ],
)
def test_take(mode: str, dtype: str) -> None:
    """Rows of a table that is cut by rows, by columns, under indices that are cut; out of bounds, NaN and all."""
    indices = jnp.array([[0, 1, 9], [3, -20, 10], [400, 5, -1], [9, 8, 7], [2, 2, 2]])
    if mode == "promise_in_bounds":
        indices = jnp.clip(indices, 0, 9)
    check(lambda x, i: x.at[i].get(mode=mode), table(dtype), indices, name="gather", count=2, cuts=8)


def test_small_unsigned_indices() -> None:
    indices = jnp.array([0, 255, 3, 7, 9, 10, 11, 2], jnp.uint8)
    check(lambda x, i: x.at[i].get(mode="fill", fill_value=-7), table("int32"), indices, name="gather", count=1)
    check(lambda x, i: x.at[i].get(mode="clip"), table("int32", (300, 2)), indices, name="gather", count=1)


def test_batched_gather() -> None:
    """A batching dimension passes through; two indexed dimensions leave partial results each."""
    x = table("float32", (4, 10, 6))
    rows = jnp.asarray(RNG.integers(-3, 14, (4, 5)))
    check(jax.vmap(lambda a, i: a.at[i].get(mode="fill")), x, rows, name="gather", count=3, cuts=6)
    check(lambda a, i, j: a[:, i, j], x, rows[0], rows[1], name="gather", count=3, cuts=6)
    check(lambda a, i: jnp.take_along_axis(a, i, 1), x[..., 0], jnp.abs(rows), name="gather", count=3)


def test_slices_of_some_length_are_whole() -> None:
    numbers = lax.GatherDimensionNumbers(offset_dims=(1, 2), collapsed_slice_dims=(), start_index_map=(0, 1))
    starts = jnp.array([[0, 0], [2, 1], [8, 0], [9, 9]])
    for mode in ("clip", "fill"):
        check(lambda x, i, m=mode: lax.gather(x, i, numbers, (1, 6), mode=m), table("float32"), starts, name="gather", count=1, cuts=5)
        check(lambda x, i, m=mode: lax.gather(x, i, numbers, (3, 6), mode=m), table("float32"), starts, name="gather", count=1, cuts=3)


def test_keys_are_gathered() -> None:
    keys = jax.random.split(jax.random.key(0), 12).reshape(6, 2)
    check(lambda k, i: k[i], keys, jnp.array([1, 5, 0, 2]), name="gather", cuts=3)


@pytest.mark.parametrize(
    ("name", "mode"),
    [("add", "fill"), ("multiply", "clip"), ("min", "drop"), ("max", "promise_in_bounds"), ("set", "clip"), ("subtract", "drop")],
)
def test_scatter(name: str, mode: str) -> None:
    """Updates of rows, with rows hit twice and out of bounds, cut every way."""
    x = jnp.asarray(RNG.integers(-50, 50, (10, 6)), jnp.int32)
    updates = jnp.asarray(RNG.integers(-5, 5, (7, 6)), jnp.int32)
    rows = jnp.array([0, 9, 3, 3, 10, -20, 5])
    primitive = {"multiply": "scatter-mul", "set": "scatter", "subtract": "scatter-sub"}.get(name, f"scatter-{name}")
    check(lambda x, i, u: getattr(x.at[i], name)(u, mode=mode), x, rows, updates, name=primitive, count=2, cuts=4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_gradient_of_a_lookup(dtype: str) -> None:
    x, rows = table(dtype).at[1].set(1), jnp.asarray(RNG.integers(-2, 12, (5, 3)))
    check(lambda x, i, u: x.at[i].add(u), x, rows, jnp.ones((5, 3, 6), dtype), name="scatter-add", tolerance=1e-2, cuts=8)


def test_batched_scatter() -> None:
    x = jnp.asarray(RNG.integers(-50, 50, (4, 10, 6)), jnp.int32)
    rows = jnp.asarray(RNG.integers(-3, 14, (4, 5)))
    updates = jnp.asarray(RNG.integers(-5, 5, (4, 5, 6)), jnp.int32)
    for name in ("add", "set"):
        primitive = "scatter" if name == "set" else f"scatter-{name}"
        check(jax.vmap(lambda a, i, u, n=name: getattr(a.at[i], n)(u)), x, rows, updates, name=primitive, cuts=5)
    check(lambda a, i, j, u: a.at[:, i, j].add(u), x, rows[0], rows[1], updates[..., 0], name="scatter-add", cuts=5)


@pytest.mark.parametrize("rows", [1, 3, 9])
def test_scatter_of_windows(rows: int) -> None:
    """Each shard makes its part of every window, of those that overlap the last one last, and of those that do not fit nothing."""
    x = jnp.asarray(RNG.integers(-50, 50, (10, 6)), jnp.int32)
    numbers = lax.ScatterDimensionNumbers(update_window_dims=(1, 2), inserted_window_dims=(), scatter_dims_to_operand_dims=(0, 1))
    starts = jnp.array([[0, 0], [2, 1], [8, 0], [1, 2], [-1, 0], [9, 9]])
    updates = jnp.asarray(RNG.integers(-5, 5, (6, rows, 4)), jnp.int32)
    for scatter, name, mode in ((lax.scatter_add, "scatter-add", "clip"), (lax.scatter, "scatter", "drop")):
        check(lambda x, i, u, s=scatter, m=mode: s(x, i, u, numbers, mode=m), x, starts, updates, name=name, cuts=5)


@pytest.mark.parametrize(
    ("where", "dtype", "mode"),
    [
        (np.s_[3:9], "int32", "clip"),
        (np.s_[-7:-1], "bfloat16", "promise_in_bounds"),
        (np.s_[:, 1:3], "int32", "drop"),
        (np.s_[2:9, 1:5], "bool", "clip"),
        (np.s_[4, 2:5], "bfloat16", "drop"),
    ],
    ids=str,
)
def test_scatter_of_one_window(where: Any, dtype: str, mode: str) -> None:
    x = table(dtype)
    updates = table(dtype, x[where].shape) if x[where].ndim > 1 else table(dtype, (2, *x[where].shape))[0]
    for name, primitive in (("set", "scatter"), *((("add", "scatter-add"), ("max", "scatter-max")) if dtype != "bool" else ())):
        check(lambda x, u, n=name: getattr(x.at[where], n)(u, mode=mode), x, updates, name=primitive, tolerance=1e-2, cuts=3)


@pytest.mark.parametrize(("start", "mode"), [(-20, "clip"), (-2, "drop"), (6, "drop"), (8, "clip"), (8, "drop")])
def test_scatter_of_one_window_anywhere(start: int, mode: str) -> None:
    x = jnp.asarray(RNG.integers(-50, 50, (10, 6)), jnp.int32)
    numbers = lax.ScatterDimensionNumbers(update_window_dims=(0, 1), inserted_window_dims=(), scatter_dims_to_operand_dims=(0,))
    updates = jnp.asarray(RNG.integers(-5, 5, (4, 6)), jnp.int32)
    for scatter, name in ((lax.scatter_mul, "scatter-mul"), (lax.scatter, "scatter")):
        check(lambda x, i, u, s=scatter: s(x, i, u, numbers, mode=mode), x, jnp.array([start], jnp.int8), updates, name=name, cuts=3)


def test_keys_are_scattered() -> None:
    keys = jax.random.split(jax.random.key(0), 12).reshape(6, 2)
    check(lambda k, u: k.at[1:4].set(u), keys, jax.random.split(jax.random.key(1), 6).reshape(3, 2), name="scatter", cuts=2)


def test_batched_windows() -> None:
    """Caches that are written at a place of their own each: windows of several rows, along a dimension that is cut."""
    caches = jnp.asarray(RNG.integers(-50, 50, (4, 10, 6)), jnp.int32)
    rows = jnp.asarray(RNG.integers(-5, 5, (4, 3, 6)), jnp.int32)
    places = jnp.array([0, 3, 8, -20])

    def write(cache: Any, rows: Any, place: Any) -> Any:
        return lax.dynamic_update_slice(cache, rows, (place, 0))

    check(jax.vmap(write), caches, rows, places, name="scatter", cuts=6)


@pytest.mark.parametrize(
    ("write", "rows"),
    [
        (lambda x, u: x.at[3:9].set(u), 6),
        (lambda x, u: x.at[-7:-1].add(u), 6),
        (lambda x, u: x.at[2].set(u[0]).at[5, :4].multiply(u[1, :4]), 2),
        (lambda x, u: x.at[0:2].set(0).at[-2:].set(u), 2),
    ],
    ids=["set", "add", "row", "halo"],
)
def test_rows_are_written_where_they_lie(write: Any, rows: int) -> None:
    step = sp.auto_shard(write, mesh={"x": 8}, in_shardings=(P("x"), P()), out_shardings=P("x"), lowering="shard_map")
    x, u = RNG.normal(size=(64, 8)).astype(np.float32), RNG.normal(size=(rows, 8)).astype(np.float32)
    assert step.plan(x, u).collectives == ()
    np.testing.assert_array_equal(step(x, u), jax.jit(write)(x, u))


def test_apply_reads_what_it_writes() -> None:
    x = jnp.asarray(RNG.normal(size=(10, 6)), jnp.float32)
    check(lambda x, i: x.at[i].apply(jnp.sin), x, jnp.array([1, 9, 4]), name="scatter", tolerance=1e-6, cuts=3)
