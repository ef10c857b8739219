"""Memory of programs in floats of two bytes, against what XLA says of the compiled ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.facade import Plan
from shardy_py.plan.memory.graph import local_graph
from shardy_py.plan.memory.models import MODELS
from shardy_py.plan.memory.xla.floats import installed, support, widened

pytestmark = pytest.mark.usefixtures("usual_fusions")

MESHES = {1: {"data": 1, "model": 1}, 8: {"data": 2, "model": 4}}
Tree = Any


def loss(params: Tree, x: jax.Array) -> jax.Array:
    return jnp.mean((jax.nn.relu(x @ params["up"]) @ params["down"] - x) ** 2)


def sgd(params: Tree, x: jax.Array) -> Tree:
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, x))


def mixed(params: Tree, x: jax.Array) -> Tree:
    """Parameters in float32, computed with in the type of the data."""

    def inner(params: Tree) -> jax.Array:
        return loss(jax.tree.map(lambda p: p.astype(x.dtype), params), x).astype(jnp.float32)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(inner)(params))


def normalized(x: jax.Array, scale: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    return (centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * scale


def block_loss(params: Tree, x: jax.Array) -> jax.Array:
    batch, length, width = x.shape
    q, k, v = (a.reshape(batch, length, 4, width // 4) for a in jnp.split(normalized(x, params["scale"]) @ params["qkv"], 3, -1))
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    x = x + jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape) @ params["out"]
    x = x + jax.nn.gelu(normalized(x, params["scale"]) @ params["up"]) @ params["down"]
    return jnp.mean(x.astype(jnp.float32) ** 2)


def momentum(params: Tree, state: Tree, x: jax.Array) -> tuple[Tree, Tree]:
    """The optimizer's state is in float32."""
    grads = jax.grad(block_loss)(params, x)
    state = jax.tree.map(lambda m, g: 0.9 * m + g.astype(jnp.float32), state, grads)
    return jax.tree.map(lambda p, m: (p.astype(jnp.float32) - 0.1 * m).astype(p.dtype), params, state), state


def layers(weights: jax.Array, x: jax.Array) -> jax.Array:
    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return jnp.sin(jnp.tanh(x @ w)) * x, None

    return jnp.sum(lax.scan(layer, x, weights)[0])


def conv_loss(kernels: Tree, image: jax.Array) -> jax.Array:
    for kernel in kernels:
        image = jax.nn.relu(lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
        image = (image - image.mean((0, 1, 2))) * lax.rsqrt(image.var((0, 1, 2)) + 1e-3)
    return jnp.mean(image**2)


def moved(x: jax.Array, y: jax.Array, i: jax.Array) -> tuple[jax.Array, ...]:
    """Ops that only move data, and operands of scatters."""
    return jnp.concatenate([jnp.sin(x), y]), jnp.pad(y, 1)[i], y.at[i].add(jnp.tanh(x)[: i.size]), x.T.reshape(-1)


def cached(cache: jax.Array, new: jax.Array, i: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The cache is in float32 for the product, and as it is for the next call."""
    cache = lax.dynamic_update_slice(cache, new, (0, i, 0))
    return cache, jnp.einsum("bkd,bd->bk", cache, new[:, 0])


Shapes = Callable[..., jax.ShapeDtypeStruct]


def mlp(s: Shapes) -> tuple[Tree, ...]:
    return {"up": s(128, 512), "down": s(512, 128)}, s(256, 128)


def wide_mlp(s: Shapes) -> tuple[Tree, ...]:
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, jnp.float32), mlp(s)[0]), s(256, 128)


def transformer(s: Shapes) -> tuple[Tree, ...]:
    params = {"qkv": s(128, 384), "out": s(128, 128), "up": s(128, 512), "down": s(512, 128), "scale": s(128)}
    return params, jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, jnp.float32), params), s(8, 64, 128)


MLP = ({"up": P(None, "model"), "down": P("model")}, P("data"))
TRANSFORMER = {"qkv": P(None, "model"), "out": P("model"), "up": P(None, "model"), "down": P("model"), "scale": None}
PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[Shapes], tuple[Tree, ...]], tuple[Tree, ...], tuple[int, ...]]] = {
    "sgd": (sgd, mlp, MLP, ()),
    "mixed, donated": (mixed, wide_mlp, MLP, (0,)),
    "transformer, donated": (momentum, transformer, (TRANSFORMER, TRANSFORMER, P("data")), (0, 1)),
    "scan": (jax.grad(layers), lambda s: (s(6, 64, 64), s(128, 64)), (P(None, None, "model"), P("data")), ()),
    "convolutions": (jax.grad(conv_loss), lambda s: ([s(3, 3, 8, 16), s(3, 3, 16, 16)], s(8, 16, 16, 8)), (None, P("data")), ()),
    "cache, donated": (
        cached,
        lambda s: (s(8, 128, 64), s(8, 1, 64), jax.ShapeDtypeStruct((), jnp.int32)),
        (P("data"), None, None),
        (0,),
    ),
    "moved": (
        moved,
        lambda s: (s(64, 256), s(64, 256), jax.ShapeDtypeStruct((16,), jnp.int32)),
        (P(None, "model"), P(None, "model"), None),
        (),
    ),
}


def planned(name: str, dtype: str, devices: int, lowering: str) -> tuple[Plan, Any]:
    fun, shapes, specs, donated = PROGRAMS[name]
    step = sp.auto_shard(fun, mesh=MESHES[devices], in_shardings=specs, donate_argnums=donated, lowering=lowering)
    traced = step.trace(*shapes(lambda *shape: jax.ShapeDtypeStruct(shape, dtype)))
    return traced.plan(), traced.lower()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("name", "devices", "lowering"),
    # Regions that write one array into another twice keep less in memory than it seems, in every type.
    [(name, n, way) for name in PROGRAMS for n, way in ((1, "jit"), (8, "jit"), (8, "shard_map")) if (name, way) != ("moved", "shard_map")],
)
def test_as_xla_says(name: str, devices: int, lowering: str, dtype: str) -> None:
    plan, lowered = planned(name, dtype, devices, lowering)
    found, real = plan.memory_analysis(), lowered.compile().memory_analysis()
    assert found.argument_size_in_bytes == real.argument_size_in_bytes
    assert found.output_size_in_bytes == real.output_size_in_bytes
    peak = real.argument_size_in_bytes + real.output_size_in_bytes - real.alias_size_in_bytes + real.temp_size_in_bytes
    assert 0.9 * peak <= found.peak_memory_in_bytes <= 1.1 * peak


def ops_of(plan: Plan, compiler: str) -> list[Any]:
    return list(local_graph(plan, MODELS[compiler])[1].walk())


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
def test_only_cpus_compute_in_float32(lowering: str) -> None:
    plan, _ = planned("sgd", "bfloat16", 8, lowering)
    found = [op for op in ops_of(plan, "cpu") if op.name == "stablehlo.maximum"]
    assert {op.result.type.dtype for op in found} == ({"bfloat16"} if "stablehlo.maximum" in installed().kept else {"float32"})
    assert any(op.name == "stablehlo.convert" and op.result.type.dtype == "float32" for op in ops_of(plan, "cpu"))
    assert all(op.result.type.dtype == "bfloat16" for op in ops_of(plan, "accelerator") if op.name == "stablehlo.dot_general")
    on_cpu, elsewhere = plan.memory_analysis(), plan.memory_analysis(compiler="accelerator")
    assert on_cpu.temp_size_in_bytes > elsewhere.temp_size_in_bytes


def test_programs_in_float32_are_left_alone() -> None:
    plan, _ = planned("sgd", "float32", 8, "jit")
    assert widened(plan.program) == (plan.program, None)


def test_a_copy_is_changed_unless_the_program_may_be() -> None:
    plan, _ = planned("sgd", "bfloat16", 8, "jit")
    before = str(plan.program)
    assert widened(plan.program)[0] is not plan.program
    assert str(plan.program) == before


def test_what_is_widened_again_was_not_rounded() -> None:
    """Sums of jnp.mean and jnp.sum read what was computed in float32."""
    step = sp.auto_shard(lambda x: jnp.sum(jnp.tanh(x)), mesh=MESHES[8])
    ops = ops_of(step.plan(jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)), "cpu")
    (reduction,) = [op for op in ops if op.name == "stablehlo.reduce"]
    assert reduction.operands[0].defining_op.name == "stablehlo.tanh"


def test_support_by_version() -> None:
    old, new = support((0, 10, 2)), support((0, 12, 0))
    assert old.kept < new.kept
    assert (old.multiplies, new.multiplies) == (False, True)
