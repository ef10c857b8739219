"""Operations per op and the roofline, by hand-counted examples and by XLA's own count."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.cost.compute import MOVEMENT, POINTWISE, TRANSCENDENTALS, Accessed, Work, roofline_seconds
from shardy_py.cost.hardware_table import hardware

MESH = {"x": 2, "y": 4}


def struct(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def cost(fun: Callable[..., Any], *args: Any, specs: Any = None) -> Any:
    return sp.auto_shard(fun, mesh=MESH, in_shardings=specs, lowering="jit").plan(*args).cost_analysis()


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    return a @ b


@pytest.mark.parametrize(
    ("specs", "parts"),
    [
        ((None, None), 1),
        ((P("x"), P(None, "y")), 8),
        ((P(None, "y"), P("y")), 4),  # each device a part of the sum
        ((P("x", "y"), P("y")), 8),
        ((P("x"), P("y")), 8),  # to add up parts of the result is less than to gather the side that alone is cut
        ((P(("x", "y")), P(("x", "y"))), 8),
    ],
)
def test_matrix_product(specs: tuple[P | None, P | None], parts: int) -> None:
    assert cost(product, struct(64, 128), struct(128, 256), specs=specs).flops == pytest.approx(2 * 64 * 128 * 256 / parts, rel=1e-4)


def test_batched_product_and_complex() -> None:
    found = cost(lambda a, b: jnp.einsum("bik,bkj->bij", a, b), struct(8, 4, 16), struct(8, 16, 32), specs=(P("y"), None))
    assert found.flops == 2 * 8 * 4 * 16 * 32 / 4
    assert cost(product, struct(4, 8, dtype=jnp.complex64), struct(8, 4, dtype=jnp.complex64)).flops == 8 * 4 * 8 * 4


def conv(x: jax.Array, w: jax.Array, strides: Any = (1, 1), padding: Any = "SAME", **options: Any) -> jax.Array:
    return lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"), **options)


@pytest.mark.parametrize(
    "fun",
    [
        conv,
        lambda x, w: conv(x, w, strides=(2, 2)),
        lambda x, w: conv(x, w, rhs_dilation=(2, 2)),
        lambda x, w: conv(x, w, lhs_dilation=(2, 2), padding=((1, 1), (1, 2))),
        lambda x, w: conv(x, jnp.tile(w[:, :, :2], (1, 1, 1, 1)), feature_group_count=4),
        jax.grad(lambda x, w: jnp.sum(conv(x, w)), argnums=1),
        jax.grad(lambda x, w: jnp.sum(conv(x, w, strides=(2, 2)))),
    ],
)
def test_convolutions_are_counted_as_xla_counts_them(fun: Callable[..., Any]) -> None:
    args = struct(4, 10, 12, 8), struct(3, 3, 8, 16)
    ours = sum(op.flops for op in cost(fun, *args).ops if op.primitive == "conv_general_dilated")
    lowered = jax.jit(fun).lower(*args).cost_analysis()
    assert lowered is not None
    assert ours == pytest.approx(lowered["flops"], rel=0.01)


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: x + x * 2,
        lambda x: jnp.sum(x, axis=0),
        lambda x: jnp.max(x),
        lambda x: jnp.where(x > 0, x, -x),
        lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 2), (2, 2), "VALID"),
    ],
)
def test_other_ops_are_counted_as_xla_counts_them(fun: Callable[..., Any]) -> None:
    lowered = jax.jit(fun).lower(struct(32, 64)).cost_analysis()
    assert lowered is not None
    assert cost(fun, struct(32, 64)).flops == pytest.approx(lowered["flops"], rel=0.02)


@pytest.mark.parametrize("length", [1, 7, 16, 64, 250, 4096])
@pytest.mark.parametrize("function", [jnp.cumsum, jnp.cumprod, lax.cummax, lambda x, axis: jnp.cumsum(x[:, ::-1], axis=axis)[:, ::-1]])
def test_cumulative_ops_are_counted_as_xla_rewrites_them(function: Callable[..., Any], length: int) -> None:
    compiled = jax.jit(functools.partial(function, axis=1)).lower(struct(8, length)).compile().cost_analysis()
    assert compiled is not None
    assert cost(functools.partial(function, axis=1), struct(8, length)).flops == pytest.approx(compiled.get("flops", 0), rel=0.02)


def test_transcendentals_are_counted_apart() -> None:
    found = cost(lambda x: jnp.tanh(jnp.exp(x)), struct(64, 64), specs=(P("x", "y"),))
    assert (found.flops, found.transcendentals) == (0, 2 * 64 * 64 / 8)


def test_a_sort_and_a_factorization() -> None:
    assert cost(lambda x: jnp.sort(x, axis=1), struct(16, 64), specs=(P("x"),)).flops == 16 * 64 * 6 / 2
    (factor,) = [op for op in cost(jnp.linalg.cholesky, struct(30, 30)).ops if op.primitive == "cholesky" and op.flops > 1e3]
    assert factor.flops == pytest.approx(30**3 / 3)


def test_pivots_of_a_gpu_are_no_matrix() -> None:
    """There the permutation of an LU decomposition is a call of its own, of the same primitive."""
    planned = sp.auto_shard(lax.linalg.lu, mesh={"x": 2}, options=sp.Options(platform="cuda"), lowering="jit")
    assert planned.plan(struct(128, 64)).cost_analysis("h100").flops == pytest.approx(2 / 3 * 128 * 64**2, rel=0.05)


def test_what_is_not_known_is_said() -> None:
    found = cost(lambda x: jnp.linalg.eigh(x)[0], struct(16, 16))
    assert found.unknown == ("eigh",)
    assert "no formula for eigh" in found.as_text()


def test_loops_count_their_trips() -> None:
    def loop(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=7)[0]

    found = cost(loop, struct(8, 16), struct(16, 16), specs=(P("x"), None))
    (dot,) = [op for op in found.ops if op.primitive == "dot_general"]
    assert (dot.flops, dot.trips, found.exact) == (7 * 2 * 4 * 16 * 16, 7, True)

    def until(x: jax.Array) -> jax.Array:
        return lax.while_loop(lambda c: jnp.sum(c) < 100.0, lambda c: c * 2, x)

    assert not cost(until, struct(8)).exact


def test_of_branches_the_costliest_counts() -> None:
    def branch(p: jax.Array, x: jax.Array) -> jax.Array:
        return lax.cond(p, lambda: x @ x, lambda: x + 1)

    assert cost(branch, struct(dtype=bool), struct(32, 32)).flops == pytest.approx(2 * 32**3, rel=0.01)


def test_tables_do_not_overlap() -> None:
    assert not POINTWISE & TRANSCENDENTALS
    assert not MOVEMENT & (POINTWISE | TRANSCENDENTALS)


def test_roofline() -> None:
    h100 = hardware("h100")
    big = Work(2 * 8192**3, matrix="bfloat16")
    assert roofline_seconds(big, Accessed(3 * 8192**2 * 2), h100) == big.flops / h100.flops["bfloat16"]
    thin = Work(2 * 8192**2, matrix="bfloat16")
    assert roofline_seconds(thin, Accessed(8192**2 * 2), h100) == 8192**2 * 2 / h100.hbm_bandwidth
    ridge = h100.flops["bfloat16"] / h100.hbm_bandwidth
    assert roofline_seconds(Work(1e15, matrix="bfloat16"), Accessed(1e15 / ridge), h100) == pytest.approx(1e15 / h100.flops["bfloat16"])


def test_calibrated_hardware_charges_kernels_and_packed_elements() -> None:
    v5e = hardware("v5e")
    rates = v5e.calibration
    assert rates is not None
    bytes_, packed = 1 << 28, 1 << 26
    seconds = roofline_seconds(Work(1.0), Accessed(bytes_, packed, 1), v5e)
    assert seconds == pytest.approx(bytes_ / rates.bandwidth + packed * rates.pack_seconds + rates.kernel_seconds)
    plain = v5e.with_figures(calibration=None)
    assert roofline_seconds(Work(1.0), Accessed(bytes_, packed, 1), plain) == bytes_ / v5e.hbm_bandwidth


@pytest.mark.parametrize(("dtype", "packed"), [("bfloat16", 1 << 16), ("float32", 0)])
def test_a_fused_kernel_packs_what_it_writes_in_narrow_types(dtype: str, packed: int) -> None:
    plan = sp.auto_shard(lambda x: jnp.exp(x) * 2 + 1, mesh={"x": 1}).plan(jax.ShapeDtypeStruct((256, 256), dtype))
    calibrated, plain = plan.cost_analysis("v5e"), plan.cost_analysis("v5e", calibrated=False)
    rates = hardware("v5e").calibration
    assert rates is not None
    assert calibrated.compute_seconds is not None
    assert plain.compute_seconds is not None
    kernel = calibrated.compute_seconds - packed * rates.pack_seconds - rates.kernel_seconds
    assert kernel == pytest.approx(plain.compute_seconds, rel=0.02)  # memory's rate is that of the data sheet, nearly


@given(st.floats(0, 1e18), st.floats(0, 1e15), st.floats(0, 1e15), st.floats(1, 100), st.sampled_from(["", "bfloat16", "float8_e4m3fn"]))
def test_roofline_grows_with_work_and_falls_with_speed(flops: float, special: float, moved: float, factor: float, dtype: str) -> None:
    h100 = hardware("h100")
    once = roofline_seconds(Work(flops, special, dtype), Accessed(moved), h100)
    assert roofline_seconds(Work(flops * factor, special, dtype), Accessed(moved), h100) >= once
    assert roofline_seconds(Work(flops, special, dtype), Accessed(moved * factor), h100) >= once
    assert (
        roofline_seconds(Work(flops, special, dtype), Accessed(moved), h100.with_figures(hbm_bandwidth=h100.hbm_bandwidth * factor)) <= once
    )
    faster = h100.with_figures(flops={name: rate * factor for name, rate in h100.flops.items()})
    assert roofline_seconds(Work(flops, special, dtype), Accessed(moved), faster) <= once
