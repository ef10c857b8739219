"""Rules of all ops in what JAX lowers calls to, against the rules that jaxlib's Shardy attaches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.rules.reference import check

f32 = jnp.float32


def x(*shape: int, dtype: Any = f32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


key = jax.eval_shape(lambda: jax.random.key(0))

CASES: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "attention": (
        lambda q, k, v: jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k)), v),
        [x(2, 8, 4, 16)] * 3,
    ),
    "layer_norm": (
        lambda a, g, b: (a - a.mean(-1, keepdims=True)) * lax.rsqrt(a.var(-1, keepdims=True) + 1e-5) * g + b,
        [x(4, 8, 16), x(16), x(16)],
    ),
    "gelu": (lambda a: (jax.nn.gelu(a), jax.nn.gelu(a, approximate=False)), [x(4, 8)]),
    "embedding": (lambda t, i: t[i], [x(100, 16), x(4, 8, dtype=jnp.int32)]),
    "embedding_grad": (jax.grad(lambda t, i: t[i].sum()), [x(100, 16), x(4, 8, dtype=jnp.int32)]),
    "take": (lambda t, i: jnp.take(t, i, axis=1, mode="clip"), [x(8, 100, 16), x(4, dtype=jnp.int32)]),
    "take_along_axis": (lambda t, i: jnp.take_along_axis(t, i, axis=1), [x(8, 100), x(8, 3, dtype=jnp.int32)]),
    "vmap_gather": (jax.vmap(lambda t, i: t[i]), [x(8, 100, 4), x(8, 3, dtype=jnp.int32)]),
    "vmap_scatter": (jax.vmap(lambda t, i, u: t.at[i].add(u)), [x(8, 100, 4), x(8, 3, dtype=jnp.int32), x(8, 3, 4)]),
    "scatter_set": (lambda t, i, u: t.at[i].set(u), [x(100, 4), x(3, dtype=jnp.int32), x(3, 4)]),
    "scatter_max": (lambda t, i, u: t.at[i, :2].max(u), [x(100, 4), x(3, dtype=jnp.int32), x(3, 2)]),
    "segment_sum": (lambda d, i: jax.ops.segment_sum(d, i, 10), [x(64, 4), x(64, dtype=jnp.int32)]),
    "one_hot": (lambda i: jax.nn.one_hot(i, 16), [x(4, 8, dtype=jnp.int32)]),
    "cross_entropy": (
        jax.grad(lambda a, i: -jnp.take_along_axis(jax.nn.log_softmax(a), i[..., None], -1).mean()),
        [x(4, 8, 100), x(4, 8, dtype=jnp.int32)],
    ),
    "cumsum": (lambda a: (jnp.cumsum(a, 1), lax.cummax(a, 0)), [x(4, 8)]),
    "logsumexp": (lambda a: jax.nn.logsumexp(a, axis=(0, 2)), [x(4, 8, 3)]),
    "argmax": (lambda a: (jnp.argmax(a, 1), jnp.argmin(a)), [x(4, 8)]),
    "sort": (lambda a: (jnp.sort(a, 0), jnp.argsort(a, 1), lax.sort_key_val(a, a)), [x(4, 8)]),
    "top_k": (lambda a: lax.top_k(a, 3), [x(4, 8)]),
    "max_pool": (lambda a: lax.reduce_window(a, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME"), [x(2, 9, 8, 4)]),
    "max_pool_grad": (
        jax.grad(lambda a: lax.reduce_window(a, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID").sum()),
        [x(2, 8, 8, 4)],
    ),
    "avg_pool_grad": (jax.grad(lambda a: lax.reduce_window(a, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME").sum()), [x(2, 9, 9, 4)]),
    "conv": (
        lambda a, k: lax.conv_general_dilated(a, k, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")),
        [x(2, 16, 16, 3), x(3, 3, 3, 8)],
    ),
    "conv_grad": (
        jax.grad(
            lambda a, k: lax.conv_general_dilated(a, k, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")).sum(), argnums=(0, 1)
        ),
        [x(2, 16, 16, 3), x(3, 5, 3, 8)],
    ),
    "depthwise_conv": (
        jax.grad(
            lambda a, k: lax.conv_general_dilated(
                a, k, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=6
            ).sum(),
            argnums=(0, 1),
        ),
        [x(2, 16, 6), x(4, 1, 12)],
    ),
    "batch_group_conv": (
        lambda a, k: lax.conv_general_dilated(a, k, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"), batch_group_count=2),
        [x(4, 16, 6), x(3, 6, 8)],
    ),
    "dilated_conv": (
        lambda a, k: lax.conv_general_dilated(a, k, (1, 1), ((1, 2), (0, 3)), lhs_dilation=(2, 1), rhs_dilation=(1, 3)),
        [x(2, 3, 9, 9), x(4, 3, 2, 3)],
    ),
    "cholesky": (lambda a: lax.linalg.cholesky(a), [x(3, 4, 4)]),
    "triangular_solve": (lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, transpose_a=True), [x(3, 4, 4), x(3, 4, 2)]),
    "eigh": (lambda a: jnp.linalg.eigh(a), [x(3, 4, 4)]),
    "qr": (lambda a: jnp.linalg.qr(a), [x(3, 5, 4)]),
    "svd": (lambda a: jnp.linalg.svd(a), [x(5, 4)]),
    "fft": (lambda a: (jnp.fft.fft2(a), jnp.fft.rfft(a), jnp.fft.irfft(a)), [x(3, 4, 8)]),
    "random": (lambda k: (jax.random.normal(k, (4, 8)), jax.random.bits(k, (3,)), jax.random.permutation(k, 6)), [key]),
    "rng_bit_generator": (lambda k: lax.rng_bit_generator(k, (4, 8)), [x(4, dtype=jnp.uint32)]),
    "bitcast": (lambda a: (lax.bitcast_convert_type(a, jnp.uint8), lax.bitcast_convert_type(a, jnp.int32)), [x(4, 8)]),
    "roll": (lambda a: (jnp.roll(a, 1, 0), jnp.roll(a, (2, 3), (0, 1)), jnp.flip(a, 1)), [x(8, 8)]),
    "stack": (lambda a, b: (jnp.stack([a, b], 1), jnp.concatenate([a, b], 1), jnp.tile(a, (2, 3))), [x(4, 8), x(4, 8)]),
    "split": (lambda a: (jnp.split(a, 4, 1), a[1:3, ::2], a[:, 3]), [x(4, 8)]),
    "pad": (lambda a: (jnp.pad(a, ((1, 2), (0, 0))), jnp.pad(a, ((1, 2), (0, 1)), mode="reflect")), [x(4, 8)]),
    "dynamic": (
        lambda a, u, i: (lax.dynamic_slice(a, (i, 0), (2, 8)), lax.dynamic_update_slice(a, u, (i, 0)), a[i]),
        [x(4, 8), x(2, 8), x(dtype=jnp.int32)],
    ),
    "constant_update": (lambda a, u: a.at[0:2].set(u), [x(4, 8), x(2, 8)]),
    "scan": (lambda a: lax.scan(lambda c, v: (c + v, c * v), a[0], a), [x(6, 8)]),
    "while": (lambda a: lax.fori_loop(0, 3, lambda _, v: v @ v, a), [x(8, 8)]),
    "cond": (lambda p, a: lax.cond(p, lambda v: v.T @ v, lambda v: v + 1, a), [x(dtype=jnp.bool_), x(8, 8)]),
    "reshape": (lambda a: (a.reshape(6, 20), a.reshape(-1), a.transpose(2, 0, 1).reshape(15, 8), a.ravel()[:, None, None]), [x(4, 5, 6)]),
    "complex": (lambda a: (lax.complex(a, a), jnp.abs(jnp.fft.fft(a)), jnp.conj(jnp.fft.fft(a))), [x(4, 8)]),
    "integer": (lambda a: (lax.population_count(a), lax.clz(a), a << 2, a >> 1, a % 3, ~a, a ^ a), [x(4, 8, dtype=jnp.int32)]),
    "special": (
        lambda a: (lax.erf(a), lax.lgamma(a), lax.digamma(a), lax.erf_inv(a), jnp.sinh(a), jnp.arctan2(a, a), lax.cbrt(a)),
        [x(4, 8)],
    ),
    "select": (lambda a: (jnp.where(a > 0, a, 0.0), jnp.clip(a, 0.0, 1.0), lax.clamp(0.0, a, 1.0)), [x(4, 8)]),
    "reductions": (lambda a: (a.prod(1), (a > 0).all(0), (a > 0).any(1), a.std(), jnp.nanmax(a, 0)), [x(4, 8)]),
    "dots": (
        lambda a, b: (jnp.einsum("abc,dcb->ad", a, b), jnp.einsum("abc,ace->be", a, b), jnp.outer(a[0, 0], b[0, 0]), a[0] @ b[0]),
        [x(3, 4, 5), x(3, 5, 4)],
    ),
    "remat": (jax.grad(jax.checkpoint(lambda a: jnp.sin(a @ a).sum())), [x(8, 8)]),
    "reduce_precision": (lambda a: lax.reduce_precision(a, 5, 2).astype(jnp.bfloat16), [x(4, 8)]),
}


@pytest.mark.parametrize("name", CASES)
def test_lowered(name: str) -> None:
    fun, args = CASES[name]
    check(str(jax.jit(fun).lower(*args).compiler_ir("stablehlo")))


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_lowered_for_accelerators(platform: str) -> None:
    for name in ("eigh", "qr", "top_k", "cumsum", "random", "sort", "rng_bit_generator", "special"):
        fun, args = CASES[name]
        check(str(jax.jit(fun).trace(*args).lower(lowering_platforms=(platform,)).compiler_ir("stablehlo")))
