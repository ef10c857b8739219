"""Temporaries by hand: which values lie in memory, from when to when, and in one place with which others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardy_py as sp

N = 32
KB = N * N * 4
SQUARE = jax.ShapeDtypeStruct((N, N), jnp.float32)


def temporaries(fun: Callable[..., Any], *args: jax.ShapeDtypeStruct, donated: Any = (), hardware: str | None = "h100") -> float:
    """Temporaries at the fullest step, in squares; in program order unless `hardware` is None."""
    plan = sp.auto_shard(fun, mesh={"x": 1}, donate_argnums=donated).plan(*(args or (SQUARE,)))
    return plan.memory_analysis(hardware).temp_size_in_bytes / KB


def sort(x: jax.Array) -> jax.Array:
    return lax.sort(x, dimension=0)


def total(*values: jax.Array) -> jax.Array:
    """One number of several squares, so that no result has room for temporaries."""
    return sum((jnp.sum(v) for v in values), jnp.float32(0))


@pytest.mark.parametrize(
    ("fun", "squares"),
    [
        (lambda a: jnp.sum(jnp.tanh(a + 1) * 3), 0),  # pointwise ops are computed in the sum
        (lambda a: jnp.sum(a @ a), 1),
        (lambda a: jnp.sum((a @ a) @ a), 2),  # a product does not write over what it reads
        (lambda a: jnp.sum(jnp.tanh(a @ a) @ a), 2),  # tanh lies over the product
        (lambda a: (lambda b: total(b @ a, a @ b))(jnp.tanh(a)), 3),  # what is dear is computed once
        (lambda a: (lambda b: total(b, b * b))(a @ a + 1), 1),  # what is cheap wherever it is read
        (lambda a: (lambda b, c: (lambda d: total(d, d * d))(b + c))(a @ a, a.T @ a), 2),  # of two arrays once, over one of them
        (lambda a: jnp.sum(sort(a @ a)), 1),  # a sort is in place
        (lambda a: jnp.sum(sort(a)), 1),  # but not in an argument
        (lambda a: total(sort(jnp.zeros((N, N))) @ a), 2),  # constants are made for their reader
        (lambda a: jnp.sum((a @ a).reshape(N * N)[: N * N // 2]), 1),  # another shape is no other array
        (lambda a: jnp.sum(jnp.einsum("abc,adb->dc", a.reshape(4, 8, N), a.reshape(4, N, 8))), 2),  # one is turned
    ],
)
def test_values_in_memory(fun: Callable[..., Any], squares: float) -> None:
    assert temporaries(fun) == pytest.approx(squares, abs=0.1)


def test_a_result_is_no_temporary_and_has_room_for_them() -> None:
    assert temporaries(lambda a: a @ a) == 0
    assert temporaries(lambda a: jnp.tanh(jnp.sum(a @ a)) + a) == pytest.approx(0, abs=0.1)  # the product lies where the result will
    assert temporaries(lambda a: (a @ a) @ a) == 1  # not while that is written


def test_donation_saves_the_result() -> None:
    plan = sp.auto_shard(lambda a: a + 1, mesh={"x": 1}, donate_argnums=0).plan(SQUARE)
    memory = plan.memory_analysis("h100")
    assert (memory.peak_memory_in_bytes, memory.temp_size_in_bytes) == (KB, 0)
    # The result is needed while the argument is still read: it is made elsewhere, and copied.
    assert temporaries(lambda a: (lambda b: (b, jnp.sum(a @ b)))(a @ a), donated=0) == pytest.approx(2, abs=0.1)


def scanned(a: jax.Array, remat: bool, steps: int) -> jax.Array:
    def body(c: jax.Array, _: None) -> tuple[jax.Array, None]:
        return jnp.tanh(c @ a), None

    step = jax.checkpoint(body) if remat else body  # pyright: ignore[reportPrivateImportUsage]
    return jnp.sum(lax.scan(step, a @ a, None, length=steps)[0])


def test_a_loop_carries_in_place() -> None:
    assert temporaries(lambda a: jnp.sum(lax.fori_loop(0, 3, lambda _, c: c + 1, a @ a))) == pytest.approx(1, abs=0.1)
    assert temporaries(lambda a: jnp.sum(lax.fori_loop(0, 3, lambda _, c: c @ c, a @ a))) == pytest.approx(2, abs=0.1)  # read while written


def test_residuals_are_written_in_place() -> None:
    def each(remat: bool) -> float:
        """Squares for each step."""
        few, many = (temporaries(jax.grad(functools.partial(scanned, remat=remat, steps=n))) for n in (8, 24))
        return (many - few) / 16

    assert each(remat=True) == pytest.approx(1, abs=0.1)
    assert round(each(remat=False)) in (2, 3)  # by the version of JAX


def test_what_a_loop_reads_lives_until_it_ends() -> None:
    def loop(a: jax.Array) -> jax.Array:
        b = a @ a
        return jnp.sum(lax.fori_loop(0, 3, lambda _, c: jnp.tanh(c) @ b, jnp.zeros((N, N))))

    assert temporaries(loop) == pytest.approx(3, abs=0.2)


def test_of_branches_the_larger_counts() -> None:
    def either(a: jax.Array) -> jax.Array:
        return jnp.sum(lax.cond(a[0, 0] > 0, lambda: a @ a, lambda: (a @ a) @ sort(a)))

    assert temporaries(either) == pytest.approx(3, abs=0.2)


def test_an_update_is_in_place() -> None:
    def update(a: jax.Array) -> jax.Array:
        return jnp.sum(lax.dynamic_update_slice(a @ a, jnp.ones((1, N)), (3, 0)))

    assert temporaries(update) == pytest.approx(1, abs=0.1)
    assert temporaries(lambda a: jnp.sum(a.at[jnp.arange(3)].add(1.0) @ a)) == pytest.approx(2, abs=0.1)  # not in an argument


def test_cpus_run_what_is_ready() -> None:
    """Independent chains are alive at once, where a program in order has one after the other."""

    def chains(a: jax.Array) -> jax.Array:
        return total(*(jnp.sum(jnp.cumsum(a @ (a + i), 0)) for i in range(6)))

    assert temporaries(chains) <= 3
    assert temporaries(chains, hardware=None) >= 6


def test_cpus_compute_bfloat16_in_float32() -> None:
    half = jax.ShapeDtypeStruct((N, N), jnp.bfloat16)
    assert temporaries(lambda a: jnp.sum(a @ a), half) == pytest.approx(0.5, abs=0.1)
    assert temporaries(lambda a: jnp.sum(a @ a), half, hardware=None) == pytest.approx(2, abs=0.1)  # and both operands


def test_select_and_scatter_finds_positions() -> None:
    def pooled(x: jax.Array) -> jax.Array:
        return jnp.sum(lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") ** 2)

    image = jax.ShapeDtypeStruct((2, 16, 16, 2), jnp.float32)
    assert temporaries(jax.grad(pooled), image) >= 4 * image.size * 4 / KB  # one array of positions for each dimension


def test_a_device_has_its_piece() -> None:
    step = sp.auto_shard(lambda a: jnp.sum(jnp.cumsum(a, 1)), mesh={"x": 8}, in_shardings=P("x"))
    assert step.plan(SQUARE).memory_analysis("h100").temp_size_in_bytes == pytest.approx(KB / 8, abs=128)
