"""Ops that are partitioned here, beside the programs that they are compiled to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.backends.compiled_text import collectives_in

pytestmark = pytest.mark.usefixtures("usual_fusions")

MESH = {"x": 2, "y": 4}
NUMBERS = ("NHWC", "HWIO", "NHWC")


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def plain(image: jax.Array, kernel: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=NUMBERS)


def strided(image: jax.Array, kernel: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(image, kernel, (2, 2), "SAME", dimension_numbers=NUMBERS)


def depthwise(image: jax.Array, kernel: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=NUMBERS, feature_group_count=8)


def in_batches(image: jax.Array, kernel: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=NUMBERS, batch_group_count=4)


def gradients(fun: Callable[..., jax.Array]) -> Callable[..., Any]:
    return jax.grad(lambda image, kernel: jnp.sum(jnp.tanh(fun(image, kernel))), (0, 1))


IMAGE, KERNEL, SMALL = f32(8, 16, 16, 8), f32(3, 3, 8, 16), f32(3, 3, 1, 16)
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...], Any]] = {
    "height": (plain, (IMAGE, KERNEL), (P(None, "y"), None), P(None, "y")),
    "height, features": (plain, (IMAGE, KERNEL), (P(None, "y"), P(None, None, None, "x")), P(None, "y", None, "x")),
    "height, summed": (plain, (IMAGE, KERNEL), (P(None, "y", None, "x"), P(None, None, "x")), P(None, "y")),
    "height to width": (plain, (IMAGE, KERNEL), (P(None, "y"), None), P(None, None, "y")),
    "strided": (strided, (IMAGE, KERNEL), (P(None, "y"), P(None, None, None, "x")), P(None, "y", None, "x")),
    "depthwise": (depthwise, (IMAGE, SMALL), (P("x", None, None, "y"), None), P("x", None, None, "y")),
    "depthwise, height": (depthwise, (IMAGE, SMALL), (P(None, "x", None, "y"), None), P(None, "x", None, "y")),
    "groups of images": (in_batches, (IMAGE, KERNEL), (P("y"), None), P(None, "x", None, "y")),
    "gradients, height": (gradients(plain), (IMAGE, KERNEL), (P("x", "y"), None), (P("x", "y"), P())),
    "gradients, depthwise": (gradients(depthwise), (IMAGE, SMALL), (P("x", None, None, "y"), None), (P("x", None, None, "y"), P())),
}


@pytest.mark.parametrize("name", CASES)
def test_as_compiled(name: str) -> None:
    fun, args, specs, out = CASES[name]
    traced = sp.auto_shard(fun, mesh=MESH, in_shardings=specs, out_shardings=out, lowering="jit").trace(*args)
    compiled = traced.lower().compile()
    theirs = sorted((c.kind, c.group_size, piece) for c in collectives_in(compiled.as_text()) for piece in c.pieces)
    ours = sorted((c.kind, c.group_size, c.operand_bytes) for c in traced.plan().collectives)
    permutes = "collective_permute"
    assert [c for c in ours if c[0] != permutes] == [c for c in theirs if c[0] != permutes]
