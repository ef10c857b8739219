"""Whole programs go through all passes of Shardy's partitioner, and devices compute the parts of what the whole program computes."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardy_py.errors import ShardyError
from shardy_py.opt import run_passes
from shardy_py.opt.from_mlir import from_mlir
from tests.opt.partitioner.local_runs import at, check, compare, per_value, random

Function = Callable[..., jax.Array]

MESH = 'sdy.mesh @m = <["x"=4, "y"=2]>\n'
SETTLED = "func.func(sdy-insert-explicit-reshards{enable-full-version=true})"
COLLECTIVES = "func.func(sdy-reshard-to-collectives),func.func(sdy-pad-for-divisibility)"
PLAIN = f"{SETTLED},sdy-resolve-permutation-factors,{COLLECTIVES},sdy-convert-global-to-local"
RIGHT = f"{SETTLED},sdy-resolve-permutation-factors,{COLLECTIVES},sdy-convert-global-to-local{{sub-axes-in-order=true}}"

F = "tensor<8x8xf32>"
X = '[{"x"}, {}]'
Y = '[{"y"}, {}]'
XY = '[{"x"}, {"y"}]'
YX = '[{"y"}, {"x"}]'


def on(dims: str) -> str:
    """An op's attributes with its sharding."""
    return f"{{{per_value(dims)}}}"


SAME: dict[str, str] = {
    "a dot over a cut dimension": f"""func.func @main(%a: {F} {at('[{}, {"x"}]')}, %b: {F} {at(X)}) -> ({F} {at(YX)}) {{
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] {on("[{}, {}]")} : ({F}, {F}) -> {F}
  return %0 : {F} }}""",
    "a reversal": f"""func.func @main(%a: {F} {at(X)}) -> ({F} {at(X)}) {{
  %0 = stablehlo.reverse %a, dims = [0, 1] {on(X)} : {F}
  return %0 : {F} }}""",
    "a slice": f"""func.func @main(%a: {F} {at(XY)}) -> (tensor<4x8xf32> {at(X)}) {{
  %0 = stablehlo.slice %a [2:6, 0:8] {on(X)} : ({F}) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32> }}""",
    "uneven rows": f"""func.func @main(%a: tensor<7x6xf32>) -> tensor<6x7xf32> {{
  %0 = stablehlo.cosine %a {on(XY)} : tensor<7x6xf32>
  %1 = stablehlo.transpose %0, dims = [1, 0] {on(YX)} : (tensor<7x6xf32>) -> tensor<6x7xf32>
  return %1 : tensor<6x7xf32> }}""",
}
"""Programs that come out right without the option."""

RESHARDS = f"""func.func @main(%a: {F} {at(XY)}) -> ({F} {at(YX)}) {{
  %0 = stablehlo.abs %a {on(XY)} : {F}
  %1 = stablehlo.sine %0 {on('[{}, {"x", "y"}]')} : {F}
  %2 = stablehlo.cosine %1 {on('[{"y", "x"}, {}]')} : {F}
  return %2 : {F} }}"""


@pytest.mark.parametrize("text", SAME.values(), ids=SAME)
@pytest.mark.parametrize("pipeline", [PLAIN, RIGHT], ids=["plain", "sub-axes in order"])
def test_programs(text: str, pipeline: str) -> None:
    check(MESH + text, pipeline)


@pytest.mark.parametrize("ids", ["", ", device_ids=[3, 1, 2, 0, 7, 5, 6, 4]"], ids=["in order", "permuted"])
def test_reshards_need_sub_axes_in_order(ids: str) -> None:
    text = MESH.replace("]>", f"]{ids}>") + RESHARDS
    check(text, RIGHT)
    with pytest.raises(AssertionError):
        check(text, PLAIN)


def mlp(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
    return jnp.maximum(x @ w, 0) @ v


def normed(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
    h = mlp(x, w, v) + x
    return (h - h.mean(-1, keepdims=True)) * jax.lax.rsqrt(h.var(-1, keepdims=True) + 1e-5)


def derivative(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
    return jax.grad(lambda w: (mlp(x, w, v) ** 2).sum())(w)


def flipped(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
    return jnp.pad(mlp(x, w, v)[::-1], ((1, 2), (0, 0)))[2:10] * 2


@pytest.mark.parametrize("function", [mlp, normed, derivative, flipped], ids=lambda f: f.__name__)
def test_megatron(function: Function) -> None:
    """Columns of the first weights and rows of the second are cut, so that one all-reduce is enough."""
    devices = np.array(jax.devices()[:8]).reshape(4, 2)
    mesh = jax.sharding.Mesh(devices, ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    shapes = ((8, 12), (12, 40), (40, 12))
    inputs = [random(shape, "float32", seed) for seed, shape in enumerate(shapes)]
    specs = (P("y", None), P(None, "x"), P("x", None))
    given = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=NamedSharding(mesh, s)) for a, s in zip(inputs, specs, strict=True)]
    text = run_passes(str(jax.jit(function).lower(*given).compiler_ir("stablehlo")), "sdy-propagation-pipeline")
    compare(run_passes(text, RIGHT), from_mlir(text), inputs, np.asarray(jax.jit(function)(*inputs)))


def test_rejoined_slices_of_a_cut_dimension() -> None:
    """As in jaxlib, the slices are resolved before the concatenate, which is then no longer seen to be a rotation."""
    text = f"""{MESH}func.func @main(%a: {F} {at(Y)}) -> {F} {{
  %0 = stablehlo.slice %a [5:8, 0:8] {on(Y)} : ({F}) -> tensor<3x8xf32>
  %1 = stablehlo.slice %a [0:5, 0:8] {on(Y)} : ({F}) -> tensor<5x8xf32>
  %2 = stablehlo.concatenate %0, %1, dim = 0 {on(Y)} : (tensor<3x8xf32>, tensor<5x8xf32>) -> {F}
  return %2 : {F} }}"""
    with pytest.raises(ShardyError, match="dimension 0 is padded, so it cannot be concatenated"):
        run_passes(text, RIGHT)
