"""Kernels and calls of compiled code in functions with a sharding rule run on parts of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from jax.experimental import pallas as pl
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.backends.compiled_text import collectives_in

R = np.random.default_rng(0).standard_normal((8, 2, 6, 6)).astype("float32")
A = R @ R.swapaxes(-1, -2) + 6 * np.eye(6, dtype="float32")
jnp.linalg.cholesky(A[0, 0])  # registers LAPACK


def factor(a: Any, vmap_method: str = "broadcast_all") -> Any:
    """LAPACK's Cholesky factorization of a batch, and an integer for each matrix."""
    shapes = jax.ShapeDtypeStruct(a.shape, a.dtype), jax.ShapeDtypeStruct(a.shape[:-2], jnp.int32)
    batch = tuple(range(a.ndim - 2))
    layout = (*batch, a.ndim - 1, a.ndim - 2)
    call = jax.ffi.ffi_call("lapack_spotrf_ffi", shapes, input_layouts=[layout], output_layouts=[layout, batch], vmap_method=vmap_method)
    return call(a, uplo=np.uint8(ord("L")))


def of_fixed_shape(a: Any) -> Any:
    """The same for one shape."""
    return factor(jnp.reshape(a, (8, 6, 6)))


def turned(a: Any) -> Any:
    """The same of an array whose batch is not at the front."""
    return jnp.moveaxis(factor(jnp.moveaxis(a, 1, 0))[0], 0, 1)


def first(function: Callable[..., Any], rule: str, **types: Any) -> Callable[..., Any]:
    """The factors by a function with a rule."""
    ruled = sp.sharding_rule(rule, **types)(lambda a: function(a)[0])
    return lambda a: jnp.tril(ruled(a))


def both(a: Any) -> Any:
    return jnp.tril(sp.sharding_rule("b i j -> b i j, b")(factor)(a)[0])


ON_PARTS: dict[str, tuple[Callable[..., Any], Any, P]] = {
    "two results": (both, A[:, 0], P("x")),
    "one result": (first(factor, "b i j -> b i j"), A[:, 0], P(("x", "y"))),
    "two dimensions of the batch": (first(factor, "a b i j -> a b i j"), A, P("x", "y")),
    "mapped": (jax.vmap(first(factor, "i j -> i j")), A[:, 0], P("x")),
    "mapped one by one": (jax.vmap(first(lambda a: factor(a, "sequential"), "i j -> i j")), A[:, 0], P("x")),
    "in a loop": (lambda a: jax.lax.fori_loop(0, 3, lambda i, a: both(a) + 6 * jnp.eye(6), a), A[:, 0], P("x")),
}
WHOLE: dict[str, tuple[Callable[..., Any], Any, P]] = {
    "rows that the rule lets pass": (both, A[:, 0], P(None, "y")),
    "rows of a call without a batch": (first(factor, "i j -> i j"), A[0, 0], P("y")),
    "rows of a call with a batch of one": (first(lambda a: [factor(a[None])[0][0]], "i j -> i j"), A[0, 0], P("y")),
    "a batch that may not be sharded": (first(factor, "b i j -> b i j", need_replication="b"), A[:, 0], P("x")),
    "a function for one shape": (first(of_fixed_shape, "b i j -> b i j"), A[:, 0], P("x")),
    "a batch in the middle": (lambda a: jnp.tril(sp.sharding_rule("i b j -> i b j")(turned)(a).swapaxes(0, 1)), A[:6, 0], P(None, "y")),
}


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
@pytest.mark.parametrize("name", [*ON_PARTS, *WHOLE])
def test_compiled_code_runs_on_parts_of_its_batch(name: str, lowering: Any) -> None:
    function, a, spec = (ON_PARTS | WHOLE)[name]
    step = sp.auto_shard(function, mesh={"x": 4, "y": 2}, in_shardings=spec, lowering=lowering)
    np.testing.assert_allclose(step(a), jax.jit(function)(a), rtol=1e-4, atol=1e-4)
    sent = sum(c.total_bytes for c in collectives_in(step.lower(a).compile().as_text()))
    assert bool(sent) == (name in WHOLE)
    if lowering == "shard_map" or name in ON_PARTS:
        assert sum(c.total_bytes for c in step.plan(a).collectives) == sent


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
def test_kernels_for_tpu_run_on_parts_of_their_batch(lowering: Any) -> None:
    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...] * 2

    @sp.sharding_rule("b d -> b d")
    def double(x: Any) -> Any:
        block = pl.BlockSpec((8, 128), lambda i: (i, 0))
        return pl.pallas_call(
            kernel, grid=(len(x) // 8,), in_specs=[block], out_specs=block, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype)
        )(x)

    step = sp.auto_shard(
        double, mesh=AbstractMesh((4,), ("x",)), in_shardings=P("x"), lowering=lowering, options=sp.Options(platform="tpu")
    )
    traced = step.trace(jax.ShapeDtypeStruct((64, 128), np.float32))
    text = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert not traced.plan().collectives
    assert "all_gather" not in text
    assert "tensor<16x128xf32>) -> tensor<16x128xf32>" in next(line for line in text.splitlines() if "@tpu_custom_call" in line)


def test_a_call_without_a_rule_says_how_to_write_one() -> None:
    plan = sp.auto_shard(lambda a: jnp.tril(factor(a)[0]), mesh={"x": 8}, in_shardings=P("x"), lowering="shard_map").plan(A[:, 0])
    (whole,) = [f for f in plan.findings if f.kind == "runs-whole"]
    assert "@sp.sharding_rule" in whole.fix
