"""Bytes to and from memory: what is fused costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardy_py as sp

KB = 32 * 32 * 4


def moved(fun: Callable[..., Any], *shapes: tuple[int, ...], specs: Any = None) -> float:
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return sp.auto_shard(fun, mesh={"x": 2, "y": 4}, in_shardings=specs).plan(*args).cost_analysis().bytes_accessed


SQUARE = (32, 32)


@pytest.mark.parametrize(
    ("fun", "count", "expected"),
    [
        (lambda a: a + 1, 1, 2 * KB),
        (lambda a: jnp.tanh(a + 1) * 3, 1, 2 * KB),  # one fusion: read once, written once
        (lambda a, b: a @ b, 2, 3 * KB),
        (lambda a, b: jnp.tanh(a) @ b, 2, (2 + 3) * KB),  # tanh is written for the product
        (lambda a: jnp.sum(a * a), 1, KB + 4),  # a product that is only summed is never written
        (lambda a: a.reshape(16, 64).reshape(1024) + 1, 1, 2 * KB),
        (lambda a: a[:8] + 1, 1, 2 * KB / 4),  # a slice reads what it takes
        (lambda a, b: lax.dynamic_update_slice(a, b[:1], (3, 0)), 2, 2 * KB / 32),  # an update writes what it changes
    ],
)
def test_by_hand(fun: Callable[..., Any], count: int, expected: float) -> None:
    assert moved(fun, *(SQUARE,) * count) == pytest.approx(expected, rel=0.02)


def test_a_device_moves_its_piece() -> None:
    assert moved(lambda a: a + 1, SQUARE, specs=(P("x", "y"),)) == 2 * KB / 8


def test_scans_read_slices() -> None:
    def loop(x: jax.Array, ws: jax.Array) -> jax.Array:
        return lax.scan(lambda c, w: (c @ w, None), x, ws)[0]

    once = moved(lambda a, b: a @ b, SQUARE, SQUARE)
    assert moved(loop, SQUARE, (10, *SQUARE)) == pytest.approx(10 * (once + KB + KB), rel=0.1)


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
def test_a_tpu_reads_an_int8_weight_as_it_lies(lowering: Literal["jit", "shard_map"]) -> None:
    product = sp.auto_shard(
        lambda w, x: jnp.einsum("ij,jk->ik", x, w),
        mesh={"x": 4},
        in_shardings=(P(None, "x"), P()),
        lowering=lowering,
        options=sp.Options(platform="tpu"),
    )
    plan = product.plan(jax.ShapeDtypeStruct((512, 1024), jnp.int8), jax.ShapeDtypeStruct((8, 512), jnp.float32))
    assert plan.cost_analysis().bytes_accessed == 512 * 256 + 4 * (8 * 512 + 8 * 256)
