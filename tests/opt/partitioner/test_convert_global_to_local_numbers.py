"""Local programs, run on as many devices as the mesh has, compute the parts of what the whole program computes."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from shardy_py.opt import run_passes
from shardy_py.opt.from_mlir import from_mlir
from tests.opt.partitioner.local_runs import at, check, compare, per_value, random

MESH = 'sdy.mesh @m = <["x"=2, "y"=4]>\n'
LOCAL = "sdy-convert-global-to-local{sub-axes-in-order=true}"
SETTLED = "sdy-propagation-pipeline{enable-insert-explicit-collectives=true},func.func(canonicalize{enable-patterns=sdy-collective})"
TO_LOCAL = (
    "func.func(sdy-insert-explicit-reshards{enable-full-version=true}),func.func(sdy-reshard-to-collectives),"
    "func.func(canonicalize{enable-patterns=sdy-collective}),sdy-convert-global-to-local{sub-axes-in-order=true}"
)

ROWS_X = at('[{"x"}, {}]')
COLUMNS_X = at('[{}, {"x"}]')
ROWS_Y = at('[{"y"}, {}]')
COLUMNS_Y = at('[{}, {"y"}]')
BOTH = at('[{"x"}, {"y"}]')
BOTH_SWAPPED = at('[{"y"}, {"x"}]')
ONE_XY = at('[{"x", "y"}]')
ONE_YX = at('[{"y", "x"}]')
ON_X = per_value('[{"x"}, {}]')
ON_Y = per_value('[{"y"}, {}]')
ON_BOTH = per_value('[{"x"}, {"y"}]')
F = "tensor<8x8xf32>"

PROGRAMS: dict[str, str] = {
    "a dot over a cut dimension": f"""func.func @main(%a: {F} {COLUMNS_X}, %b: {F} {ROWS_X}) -> ({F} {COLUMNS_Y}) {{
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] {{{per_value("[{}, {}]")}}} : ({F}, {F}) -> {F}
  return %0 : {F} }}""",
    "rows of a table": f"""func.func @main(%a: {F} {ROWS_Y}, %i: tensor<4x1xi32> {ROWS_X}) -> (tensor<4x8xf32> {ROWS_X}) {{
  %0 = "stablehlo.gather"(%a, %i) {{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0],
    start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 8>, {ON_X}}} : ({F}, tensor<4x1xi32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32> }}""",
    "updates of a table": f"""func.func @main(%a: {F} {ROWS_Y}, %i: tensor<4x1xi32>, %u: tensor<4x8xf32>) -> ({F} {ROWS_Y}) {{
  %0 = "stablehlo.scatter"(%a, %i, %u) ({{^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %r = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %r : tensor<f32> }}) {{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],
    inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, {ON_Y}}}
    : ({F}, tensor<4x1xi32>, tensor<4x8xf32>) -> {F}
  return %0 : {F} }}""",
    "parts of updates": f"""func.func @main(%a: {F}, %i: tensor<4x1xi32> {ROWS_X}, %u: tensor<4x8xf32> {ROWS_X}) -> ({F} {ROWS_Y}) {{
  %0 = "stablehlo.scatter"(%a, %i, %u) ({{^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %r = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %r : tensor<f32> }}) {{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],
    inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, {per_value("[{}, {}]")}}}
    : ({F}, tensor<4x1xi32>, tensor<4x8xf32>) -> {F}
  return %0 : {F} }}""",
    "a slice in steps that divide the parts": f"""func.func @main(%a: tensor<24x8xf32> {BOTH}) -> (tensor<8x4xf32> {BOTH}) {{
  %0 = stablehlo.slice %a [0:24:3, 0:8:2] {{{ON_BOTH}}} : (tensor<24x8xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32> }}""",
    "reshards": f"""func.func @main(%a: {F} {BOTH}) -> ({F} {BOTH_SWAPPED}) {{
  %0 = stablehlo.abs %a {{{ON_BOTH}}} : {F}
  %1 = stablehlo.sine %0 {{{per_value('[{}, {"x", "y"}]')}}} : {F}
  %2 = stablehlo.cosine %1 {{{per_value('[{"y", "x"}, {}]')}}} : {F}
  %3 = stablehlo.tanh %2 {{{per_value("[{}, {}]")}}} : {F}
  return %3 : {F} }}""",
    "axes in another order": f"""func.func @main(%a: tensor<16xf32> {ONE_XY}) -> (tensor<16xf32> {ONE_YX}) {{
  return %a : tensor<16xf32> }}""",
    "iota, constant and pad": f"""func.func @main(%a: {F} {BOTH}, %p: tensor<f32>) -> (tensor<8x16xf32> {BOTH}) {{
  %0 = stablehlo.iota dim = 1 {{{ON_BOTH}}} : {F}
  %1 = sdy.constant {{{ON_BOTH}}} dense<{np.arange(64.0).reshape(8, 8).tolist()}> : {F}
  %2 = stablehlo.add %a, %0 {{{ON_BOTH}}} : {F}
  %3 = stablehlo.multiply %2, %1 {{{ON_BOTH}}} : {F}
  %4 = stablehlo.pad %3, %p, low = [0, 1], high = [0, 0], interior = [0, 1] {{{ON_BOTH}}} : ({F}, tensor<f32>) -> tensor<8x16xf32>
  return %4 : tensor<8x16xf32> }}""",
    "a loop": f"""func.func @main(%a: {F} {BOTH}) -> ({F} {BOTH}) {{
  %n = stablehlo.constant dense<3> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %0:2 = stablehlo.while(%b = %a, %i = %n) : {F}, tensor<i32> attributes {{{ON_BOTH[:-2]}, <@m, []>]>}}
   cond {{
    %1 = stablehlo.compare GE, %i, %one : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
   }} do {{
    %2 = stablehlo.add %b, %b {{{ON_BOTH}}} : {F}
    %3 = stablehlo.subtract %i, %one : tensor<i32>
    stablehlo.return %2, %3 : {F}, tensor<i32>
   }}
  return %0#0 : {F} }}""",
}


@pytest.mark.parametrize("text", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("ids", ["", ", device_ids=[3, 1, 2, 0, 7, 5, 6, 4]"], ids=["in order", "permuted"])
def test_numbers(text: str, ids: str) -> None:
    check(MESH.replace("]>", f"]{ids}>") + text, TO_LOCAL)


def layers(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
    return jax.nn.softmax(jnp.maximum(x @ w, 0) @ v)


def attention(x: jax.Array, w: jax.Array) -> jax.Array:
    weights = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", x @ w, x))
    return jnp.einsum("bqk,bkd->bqd", weights, x)


def convolution(x: jax.Array, k: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(x, k, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def lookup(table: jax.Array, i: jax.Array) -> jax.Array:
    return table[i.astype(jnp.int32) % 8].sum(1)


def update(table: jax.Array, i: jax.Array, u: jax.Array) -> jax.Array:
    return table.at[i.astype(jnp.int32) % 8].add(u)


def derivative(f: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return jax.grad(lambda *xs: (f(*xs) ** 2).sum(), argnums=1)


FUNCTIONS: dict[str, tuple[Callable[..., jax.Array], list[tuple[int, ...]], list[P]]] = {
    "layers": (layers, [(16, 32), (32, 64), (64, 32)], [P("x", None), P(None, "y"), P("y", None)]),
    "layers' derivative": (derivative(layers), [(16, 32), (32, 64), (64, 32)], [P("x", None), P(None, "y"), P("y", None)]),
    "attention": (attention, [(4, 16, 32), (32, 32)], [P("x", "y"), P(None, "y")]),
    "attention's derivative": (derivative(attention), [(4, 16, 32), (32, 32)], [P("x", "y"), P(None, "y")]),
    "convolution": (convolution, [(8, 8, 8, 16), (3, 3, 16, 32)], [P("x", None, None, "y"), P(None, None, "y", None)]),
    "convolution's derivative": (derivative(convolution), [(8, 8, 8, 16), (3, 3, 16, 32)], [P("x"), P(None, None, None, "y")]),
    "lookup": (lookup, [(8, 32), (8, 4)], [P("y", None), P("x", None)]),
    "update": (update, [(8, 32), (8,), (8, 32)], [P("y", None), P("x"), P("x", None)]),
}


@pytest.mark.parametrize(("function", "shapes", "specs"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions(function: Callable[..., jax.Array], shapes: list[tuple[int, ...]], specs: list[P]) -> None:
    devices = np.array(jax.devices()[:8]).reshape(2, 4)
    jax_mesh = jax.sharding.Mesh(devices, ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    inputs = [random(shape, "float32", seed) for seed, shape in enumerate(shapes)]
    given = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=jax.sharding.NamedSharding(jax_mesh, s)) for a, s in zip(inputs, specs)]
    text = run_passes(str(jax.jit(function).lower(*given).compiler_ir("stablehlo")), SETTLED)
    program = from_mlir(text)
    compare(run_passes(text, LOCAL), program, inputs, np.asarray(jax.jit(function)(*inputs)))
