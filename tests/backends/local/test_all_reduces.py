"""Partial results combined over devices, in every way and for every type."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import PartitionSpec

import shardy_py as sp
from shardy_py.backends.local.reshard import all_reduce
from shardy_py.dialect import AxisRef
from shardy_py.frontends.context import pmul_p
from tests.backends.local.forced import mesh
from tests.backends.local.running import eqns, sent

OVER = (AxisRef("x"), AxisRef("y"), AxisRef("z"))
FOLDS: dict[str, Any] = {
    "add": lax.add,
    "max": lax.max,
    "min": lax.min,
    "mul": lax.mul,
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
    "xor": lax.bitwise_xor,
}


def rng() -> np.random.Generator:
    """The same numbers for a test whatever ran before it: products of many small floats are as far from each other as they may be."""
    return np.random.default_rng(0)


def region(combine: str) -> Any:
    return jax.shard_map(
        lambda x: all_reduce(x[0], OVER, combine, "cpu"),
        mesh=mesh(),
        in_specs=PartitionSpec(("x", "y", "z")),
        out_specs=PartitionSpec(),
        check_vma=False,
    )


def check(x: Any, *combines: str) -> None:
    """Compares with parts combined one by one."""
    made = jax.jit(lambda x: [region(combine)(x) for combine in combines])(x)
    want = jax.jit(lambda x: [functools.reduce(FOLDS[combine], list(x)) for combine in combines])(x)
    for combine, g, w in zip(combines, made, want, strict=True):
        assert g.dtype == x.dtype
        kind = np.complex64 if g.dtype.kind == "c" else np.float32
        np.testing.assert_allclose(np.asarray(g).astype(kind), np.asarray(w).astype(kind), 1e-2, err_msg=combine)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32"])
@pytest.mark.parametrize("shape", [(), (3, 7)])
def test_integers(dtype, shape):
    check(jnp.asarray(rng().integers(0, 127, (8, *shape)), dtype), *FOLDS)


@pytest.mark.parametrize("shape", [(), (3, 7)])
def test_truth(shape):
    check(jnp.asarray(rng().random((8, *shape)) > 0.2), "max", "min", "and", "or", "xor")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "complex64"])
@pytest.mark.parametrize("shape", [(), (3, 7)])
def test_floats(dtype, shape):
    check(jnp.asarray(rng().uniform(0.5, 1.5, (8, *shape)), dtype), *(["mul", "add"] if dtype == "complex64" else ["mul", "max", "min"]))


def test_largest_complex():
    check(jnp.asarray(rng().uniform(0.5, 1.5, (8, 3, 7)) + 1j, "complex64"), "max", "min")


def names(combine: str, dtype: str, *shape: int) -> list[str]:
    """The collectives that a device runs for its part."""
    traced = jax.make_jaxpr(region(combine))(jax.ShapeDtypeStruct((8, *shape), dtype))
    return [name for name, _ in sent(traced.jaxpr)]


def test_products_are_all_reduces():
    assert names("mul", "float32", 4) == ["pmul"]
    text = jax.jit(region("mul")).lower(jax.ShapeDtypeStruct((8, 4), "float32")).as_text()
    assert text.count("stablehlo.all_reduce") == 1


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
def test_products_in_regions_of_the_user(lowering: Any) -> None:
    product = lambda x: pmul_p.bind(x, axes=("x",), axis_index_groups=None)  # noqa: E731
    own = jax.shard_map(product, in_specs=PartitionSpec("x"), out_specs=PartitionSpec(), check_vma=False)
    step = sp.auto_shard(own, mesh={"x": 4, "y": 2}, in_shardings=PartitionSpec("x"), lowering=lowering)
    x = np.arange(1, 33, dtype="float32").reshape(4, 8)
    np.testing.assert_allclose(step(x), x.prod(0, keepdims=True))
    assert [c.kind for c in step.plan(x).collectives] == ["all_reduce"]
    assert not step.plan(x).findings


def test_truth_is_sent_as_bytes_by_one_kind_of_reduction():
    for combine in ("and", "or", "max", "min"):
        traced = jax.make_jaxpr(region(combine))(jax.ShapeDtypeStruct((8, 4), "bool"))
        assert [e.invars[0].aval.dtype for e in eqns(traced.jaxpr) if e.primitive.name == "pmax"] == [jnp.bool_]
        assert names(combine, "bool", 4) == ["pmax"]


def test_bits_of_large_arrays_are_combined_in_parts():
    assert names("xor", "int32", 2) == ["all_gather"]
    assert names("xor", "int32", 3, 7) == ["all_to_all", "all_gather"]
    received = [math.prod(shape) for _, shape in sent(jax.make_jaxpr(region("xor"))(jax.ShapeDtypeStruct((8, 64), "int32")).jaxpr)]
    assert received == [64, 64]
