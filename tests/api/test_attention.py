"""Attention around a ring: numbers and gradients of `jax.nn.dot_product_attention`, bytes, memory, lines, errors."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp

MESH = {"data": 2, "context": 4}


def arrays(key_heads: int = 4, dtype: str = "float32", length: int = 16) -> tuple[jax.Array, ...]:
    """Queries of four heads, keys and values."""
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = [(2, 16, 4, 8), *[(2, length, key_heads, 8)] * 2]
    return tuple(jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True))


def loss(attention: Any, q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A number that weighs every output differently."""
    output = attention(q, k, v)
    return (output * jnp.cos(jnp.arange(output.size)).reshape(output.shape)).sum(), output


def gradients(attention: Any) -> Any:
    """Loss, output and the gradients of all three."""
    return jax.value_and_grad(functools.partial(loss, attention), (0, 1, 2), has_aux=True)


def assert_close(got: Any, want: Any, tolerance: float = 2e-5) -> None:
    """Every leaf."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=tolerance, rtol=tolerance), got, want)


@pytest.mark.parametrize("lowering", ["auto", "jit"])
@pytest.mark.parametrize(
    ("mesh", "spec", "key_heads", "is_causal", "length"),
    [
        ({"context": 8}, P(None, "context"), 4, True, 16),
        (MESH, P("data", "context"), 2, True, 16),
        ({"model": 2, "context": 4}, P(None, "context", "model"), 2, False, 8),
        ({"context": 1, "data": 8}, P(), 1, True, 16),
    ],
)
def test_numbers_and_gradients(mesh: Any, spec: P, key_heads: int, is_causal: bool, length: int, lowering: str) -> None:
    operands = arrays(key_heads, length=length)
    ring = functools.partial(sp.ring_attention, axis="context", is_causal=is_causal, scale=0.3)
    reference = functools.partial(jax.nn.dot_product_attention, is_causal=is_causal, scale=0.3)
    step = sp.auto_shard(gradients(ring), mesh=mesh, in_shardings=spec, lowering=lowering)
    assert_close(step(*operands), gradients(reference)(*operands))


def test_bfloat16() -> None:
    operands = arrays(dtype="bfloat16")
    output = sp.auto_shard(functools.partial(sp.ring_attention, axis="context"), mesh=MESH, in_shardings=P("data", "context"))(*operands)
    assert output.dtype == "bfloat16"
    assert_close(output.astype("float32"), jax.nn.dot_product_attention(*operands).astype("float32"), 2e-2)


@pytest.mark.parametrize("wrap", [jax.checkpoint, jax.vmap, lambda f: lambda *a: jax.lax.map(lambda t: f(*t), a)])
def test_under_transformations(wrap: Any) -> None:
    operands = arrays()
    if wrap is not jax.checkpoint:
        operands = jax.tree.map(lambda x: jnp.stack([x, x + 1]), operands)
    ring = wrap(functools.partial(sp.ring_attention, axis="context", is_causal=True))
    reference = wrap(functools.partial(jax.nn.dot_product_attention, is_causal=True))
    assert_close(sp.auto_shard(gradients(ring), mesh=MESH)(*operands), gradients(reference)(*operands))


def test_gradient_of_a_gradient() -> None:
    operands = arrays()

    def second(attention: Any, *operands: jax.Array) -> Any:
        return jax.grad(lambda *a: (jax.grad(lambda *b: loss(attention, *b)[0], 1)(*a) ** 2).sum(), (0, 1, 2))(*operands)

    got = sp.auto_shard(functools.partial(second, functools.partial(sp.ring_attention, axis="context")), mesh=MESH)(*operands)
    assert_close(got, second(jax.nn.dot_product_attention, *operands), 1e-4)


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_without_auto_shard(axis_type: AxisType) -> None:
    mesh = jax.make_mesh((2, 4), ("data", "context"), (axis_type,) * 2)
    operands = jax.device_put(arrays(), NamedSharding(mesh, P("data", "context")))
    with jax.set_mesh(mesh):
        output = jax.jit(functools.partial(sp.ring_attention, axis="context", is_causal=True))(*operands)
    assert output.sharding.is_equivalent_to(NamedSharding(mesh, P("data", "context")), 4)
    assert_close(output, jax.nn.dot_product_attention(*arrays(), is_causal=True))


def test_inside_of_shard_map() -> None:
    @sp.auto_shard(mesh=MESH)
    def attend(*operands: jax.Array) -> jax.Array:
        ring = functools.partial(sp.ring_attention, axis="context", is_causal=True)
        return jax.shard_map(ring, in_specs=P("data", "context"), out_specs=P("data", "context"))(*operands)

    assert_close(attend(*arrays()), jax.nn.dot_product_attention(*arrays(), is_causal=True))


def test_bytes_and_memory_of_a_long_sequence() -> None:
    heads = jax.ShapeDtypeStruct((1, 32768, 8, 64), "bfloat16")
    ring = functools.partial(sp.ring_attention, axis="context", is_causal=True)
    plan = sp.auto_shard(ring, mesh={"context": 8}, in_shardings=P(None, "context")).plan(heads, heads, heads)
    block = heads.size * 2 // 8
    assert {c.kind for c in plan.collectives} == {"collective_permute"}
    assert sum(c.operand_bytes * (c.trips or 0) for c in plan.collectives) == 7 * 2 * block
    scores = 8 * 4096 * 4096 * 4
    assert plan.memory_analysis().peak_memory_in_bytes < 4 * block + 3 * scores


def test_collectives_have_the_line_of_the_call() -> None:
    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return sp.ring_attention(q, k, v, axis="context")

    line = f"{__file__}:{attend.__code__.co_firstlineno + 1}"
    plan = sp.auto_shard(jax.grad(lambda *a: attend(*a).sum(), (0, 1, 2)), mesh=MESH, in_shardings=P("data", "context")).plan(*arrays())
    assert {c.location for c in plan.collectives} == {line}


@pytest.mark.parametrize(
    ("shapes", "axis", "message"),
    [
        ([(2, 16, 4, 8)] * 3, "sequence", "no mesh axis 'sequence'"),
        ([(2, 18, 4, 8)] * 3, "context", "a length is not a multiple of the 4 devices of axis 'context'"),
        ([(2, 16, 4, 8), *[(2, 16, 3, 8)] * 2], "context", "shapes do not fit each other"),
        ([(16, 4, 8)] * 3, "context", "shapes do not fit each other"),
    ],
)
def test_bad_calls(shapes: Any, axis: str, message: str) -> None:
    operands = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    with pytest.raises(sp.ShardyError, match=message):
        sp.auto_shard(functools.partial(sp.ring_attention, axis=axis), mesh=MESH).plan(*operands)


def test_outside_of_a_mesh() -> None:
    with pytest.raises(sp.MeshError, match=r"no mesh axis 'context'[\s\S]*no mesh is set"):
        sp.ring_attention(*arrays(), axis="context")
