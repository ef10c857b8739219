"""Writing programs as MLIR modules: what is read with `keep=True` comes back as it was."""

from __future__ import annotations

import functools
import json
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardy_py.dialect import TensorSharding
from shardy_py.errors import ShardyError
from shardy_py.ir import Op
from shardy_py.opt.from_mlir import from_mlir, parse_module
from shardy_py.opt.to_mlir import to_mlir
from tests.reference import lower

SHARED = pathlib.Path(os.environ.get("SHARDY_SHARED") or pathlib.Path(__file__).parents[3] / "shared")
MESH = 'sdy.mesh @mesh = <["a"=2, "b"=4]>\n'

KEPT = {
    "compare": """func.func @f(%x: tensor<8xf32>) -> tensor<8xi1> {
      %0 = stablehlo.compare GE, %x, %x, TOTALORDER : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xi1>
      return %0 : tensor<8xi1>
    }""",
    "precision and algorithm of a dot": """func.func @f(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
      %0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0], precision = [HIGH, DEFAULT] {mhlo.frontend_attributes = {a = "b"}}
        : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
      return %0 : tensor<8x8xf32>
    }""",
    "custom call": r"""func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
      %0 = stablehlo.custom_call @kernel(%x) {
        api_version = 4 : i32, backend_config = {n = 1 : i32, s = "\00\FF\22"}, called_computations = [@f], has_side_effect = true,
        operand_layouts = [dense<0> : tensor<1xindex>], result_layouts = [dense<0> : tensor<1xindex>],
        sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a", ?}]>]>
      } : (tensor<8xf32>) -> tensor<8xf32>
      return %0 : tensor<8xf32>
    }""",
    "regions": """func.func @f(%x: tensor<8xf32>, %k: tensor<8xi32>, %i: tensor<f32>) -> (tensor<f32>, tensor<8xi32>, tensor<8xf32>) {
      %0 = stablehlo.reduce(%x init: %i) across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
        reducer(%a: tensor<f32>, %b: tensor<f32>) {
          %c = stablehlo.constant dense<2.0> : tensor<f32>
          %m = stablehlo.maximum %a, %b : tensor<f32>
          %n = stablehlo.multiply %m, %c : tensor<f32>
          stablehlo.return %n : tensor<f32>
      }
      %1:2 = "stablehlo.sort"(%k, %x) <{dimension = 0 : i64, is_stable = true}> ({
        ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<f32>, %d: tensor<f32>):
          %p = stablehlo.compare LT, %a, %b, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %p : tensor<i1>
      }) : (tensor<8xi32>, tensor<8xf32>) -> (tensor<8xi32>, tensor<8xf32>)
      return %0, %1#0, %1#1 : tensor<f32>, tensor<8xi32>, tensor<8xf32>
    }""",
    "a region that uses a value from outside": """func.func @f(%x: tensor<8xf32>, %p: tensor<i1>) -> tensor<8xf32> {
      %0 = "stablehlo.if"(%p) ({
        %1 = stablehlo.add %x, %x : tensor<8xf32>
        stablehlo.return %1 : tensor<8xf32>
      }, {
        stablehlo.return %x : tensor<8xf32>
      }) : (tensor<i1>) -> tensor<8xf32>
      return %0 : tensor<8xf32>
    }""",
    "function attributes": """module @jit_f attributes {mhlo.num_partitions = 8 : i32} {
      func.func public @main(%x: tensor<8xf32> {jax.buffer_donor = true, tf.aliasing_output = 0 : i32})
          -> (tensor<8xf32> {jax.result_info = "x['a']"}) attributes {execution_thread = "main", other = [1 : i8]} {
        return %x : tensor<8xf32>
      }
      func.func private @declared(tensor<8xf32> {jax.a = unit}) -> tensor<8xf32>
      func.func private @"a name"(%x: tensor<8xf32>) -> tensor<8xf32> attributes {no_inline} {
        %0 = call @declared(%x) {random = 3 : i16} : (tensor<8xf32>) -> tensor<8xf32>
        %1 = call @"a name"(%0) : (tensor<8xf32>) -> tensor<8xf32>
        return %1 : tensor<8xf32>
      }
    }""",
    "constants": """func.func @f() -> (tensor<2xcomplex<f32>>, tensor<4xbf16>, tensor<2x2xi64>, tensor<f32>, tensor<3xi1>) {
      %0 = stablehlo.constant {a.b = 1 : i32} dense<[(1.0, -2.0), (0.0, 3.5)]> : tensor<2xcomplex<f32>>
      %1 = stablehlo.constant dense<[1.0, 0x7F80, 2.5, -0.0]> : tensor<4xbf16>
      %2 = sdy.constant dense<[[1, 2], [3, 4]]> : tensor<2x2xi64>
      %3 = stablehlo.constant dense<0x7FC00001> : tensor<f32>
      %4 = stablehlo.constant dense<[true, false, true]> : tensor<3xi1>
      return %0, %1, %2, %3, %4 : tensor<2xcomplex<f32>>, tensor<4xbf16>, tensor<2x2xi64>, tensor<f32>, tensor<3xi1>
    }""",
    "data of constants": """module {
      func.func @f() -> tensor<4xf32> {
        %0 = stablehlo.constant dense_resource<blob> : tensor<4xf32>
        return %0 : tensor<4xf32>
      }
    }
    {-# dialect_resources: { builtin: { blob: "0x040000000000803F000000400000404000008040" } } #-}""",
    "unknown dialect": """func.func @f(%x: tensor<8xf32>) -> tensor<?xf32, #stablehlo.bounds<8>> {
      %0:2 = "other.op"(%x) <{p = 1 : i32, q = "a, {b}>"}> ({}, {
        ^bb0(%a: tensor<8xf32>):
          "other.end"(%a) {"odd name" = 1 : i8} : (tensor<8xf32>) -> ()
      }) {other.x = @f, y} : (tensor<8xf32>) -> (tensor<?xf32, #stablehlo.bounds<8>>, !other.type)
      "other.use"(%0#1) : (!other.type) -> ()
      return %0#0 : tensor<?xf32, #stablehlo.bounds<8>>
    }""",
    "top-level op of an unknown dialect": """"other.global"() {sym_name = "g"} : () -> ()
    func.func @f() {
      return
    }""",
    "meshes": """sdy.mesh @one = <["x"=2], device_ids=[1, 0]> {stablehlo.mesh = {axes = []}}
    sdy.mesh @maximal = <[], device_ids=[3]>
    func.func @f(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<mesh<["q"=2]>, [{"q", ?}p1]>}) {
      stablehlo.custom_call @sink(%x) {has_side_effect = true, sdy.sharding = #sdy.sharding_per_value<[<@maximal, []>]>}
        : (tensor<8xf32>) -> ()
      return
    }""",
    "replica groups": """func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
      %0 = "stablehlo.all_reduce"(%x) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
          replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %1 = stablehlo.add %a, %b : tensor<f32>
          stablehlo.return %1 : tensor<f32>
      }) : (tensor<8xf32>) -> tensor<8xf32>
      return %0 : tensor<8xf32>
    }""",
    "computations": """func.func @f(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
      %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"a", ?}, {?}], replicated={"b"}>] out_shardings=[<@mesh, [{"a"}, {}]>]
          manual_axes={"a"} (%l: tensor<4x8xf32>) {
        sdy.return %l : tensor<4x8xf32>
      } {other = 1 : i8} : (tensor<8x8xf32>) -> tensor<8x8xf32>
      %1 = sdy.named_computation<"a\\"b">(%0) out_shardings=[<@mesh, [{?}, {?}]>] (%l: tensor<8x8xf32>) {
        %2 = sdy.propagation_barrier %l allowed_direction=BACKWARD : tensor<8x8xf32>
        sdy.sharding_group %2 group_id=7 : tensor<8x8xf32>
        sdy.return %2 : tensor<8x8xf32>
      } : (tensor<8x8xf32>) -> tensor<8x8xf32>
      sdy.manual_computation() in_shardings=[] out_shardings=[] manual_axes={} () {
        sdy.return
      } : () -> ()
      return %1 : tensor<8x8xf32>
    }""",
    "collectives": """func.func @f(%x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}) -> tensor<8x8xf32> {
      %0 = sdy.all_gather [{"a"}, {}] %x out_sharding=<@mesh, [{}, {}]> : tensor<8x8xf32>
      %1 = sdy.all_slice [{}, {"b":(1)2}] %0 out_sharding=<@mesh, [{}, {"b":(1)2}]> : tensor<8x8xf32>
      %2 = sdy.all_to_all [{"b":(1)2}: 1->0] %1 out_sharding=<@mesh, [{"b":(1)2}, {}]> : tensor<8x8xf32>
      %3 = sdy.collective_permute %2 out_sharding=<@mesh, [{"a"}, {}]> : tensor<8x8xf32>
      %4 = sdy.all_reduce {"b"} %3 out_sharding=<@mesh, [{"a"}, {}]> : tensor<8x8xf32>
      %5 = sdy.reduce_scatter [{}, {"b"}] %4 out_sharding=<@mesh, [{"a"}, {"b"}]> : tensor<8x8xf32>
      %6 = sdy.sharded_to_unreduced [{}, {"b"}] %5 out_sharding=<@mesh, [{"a"}, {}], unreduced={"b"}> : tensor<8x8xf32>
      %7 = sdy.reshard %6 <@mesh, [{"b", ?}, {?}]> : tensor<8x8xf32>
      %8 = sdy.sharding_constraint %7 <@mesh, [{"a", ?}, {?}]> {sdy.sharding_origin_name = "c"} : tensor<8x8xf32>
      return %8 : tensor<8x8xf32>
    }""",
    "rules": """func.func @f(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
      %0 = stablehlo.custom_call @k(%x) {
        sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i, k]) {i=8, j=8, k=8} reduction={j}, custom>
      } : (tensor<8x8xf32>) -> tensor<8x8xf32>
      return %0 : tensor<8x8xf32>
    }""",
}


def normal(text: str) -> str:
    """The text as MLIR prints it."""
    return str(parse_module(text))


@pytest.mark.parametrize("name", KEPT)
def test_what_is_read_is_written(name: str) -> None:
    text = KEPT[name] if KEPT[name].startswith("module") or "sdy.mesh" in KEPT[name] else MESH + KEPT[name]
    assert to_mlir(from_mlir(text, keep=True)) == normal(text)


@pytest.mark.parametrize("name", KEPT)
def test_plain_text_is_the_same_module(name: str) -> None:
    text = KEPT[name] if KEPT[name].startswith("module") or "sdy.mesh" in KEPT[name] else MESH + KEPT[name]
    assert normal(to_mlir(from_mlir(text, keep=True), pretty=False)) == normal(text)


def _mlp(params: dict[str, Any], x: jax.Array) -> jax.Array:
    x = lax.with_sharding_constraint(jax.nn.gelu(x @ params["w"] + params["b"]), NamedSharding(_mesh(), P("x", None)))
    return jnp.sort(x, axis=1) + jnp.cumsum(x, axis=0) * jnp.argmax(x) + jax.random.normal(jax.random.key(0), x.shape)


def _loop(x: jax.Array) -> jax.Array:
    def step(carry: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.where(y.sum() > 0, carry + y, carry), carry * 2

    carry, ys = lax.scan(step, x[0], x)
    return lax.cond(carry.sum() > 0, lambda: ys.at[1].add(carry), lambda: ys[::-1])


def _mapped(x: jax.Array) -> jax.Array:
    return jax.shard_map(lambda y: lax.psum(y, "x") * 2, mesh=_mesh(), in_specs=P("x"), out_specs=P())(x)


def _mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((2, 4), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def _programs() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    params = {"w": np.ones((8, 16), "float32"), "b": np.ones(16, "float32")}
    x = np.ones((4, 8), "float32")
    yield "mlp", _mlp, (params, x)
    yield "gradient", jax.grad(lambda p, x: jnp.sum(_mlp(p, x))), (params, x)
    yield "loop", _loop, (x,)
    yield "shard_map", _mapped, (x,)
    yield "fft", lambda x: jnp.fft.rfft(x).real + jnp.linalg.norm(jnp.fft.fft(x)), (x,)
    yield "convolution", lambda x: lax.conv_general_dilated(x, x, (1, 1), "SAME"), (np.ones((2, 2, 5, 5), "float32"),)
    yield "pooling", lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 2), "VALID"), (x,)
    yield "constant", lambda x: x + np.arange(32, dtype="float32").reshape(4, 8), (x,)


@pytest.mark.parametrize(("fun", "args"), [pytest.param(fun, args, id=name) for name, fun, args in _programs()])
def test_lowered_jax_programs(fun: Callable[..., Any], args: tuple[Any, ...]) -> None:
    module = lower(fun, *args)
    assert to_mlir(from_mlir(module, keep=True)) == str(module)


def test_locations_on_request() -> None:
    text = """func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
      %0 = stablehlo.abs %x : tensor<8xf32> loc("here")
      return %0 : tensor<8xf32>
    }"""
    program = from_mlir(text, keep=True)
    assert 'loc("here")' in to_mlir(program, locations=True)
    assert "loc(" not in to_mlir(program)


def test_results_without_a_sharding_beside_one_are_open() -> None:
    text = MESH + (
        "func.func @f(%x: tensor<8xf32>, %y: tensor<4xf32>) -> (tensor<8xf32>, tensor<4xf32>) {\n"
        "%0:2 = stablehlo.optimization_barrier %x, %y : tensor<8xf32>, tensor<4xf32>\n"
        "return %0#0, %0#1 : tensor<8xf32>, tensor<4xf32>\n}"
    )
    program = from_mlir(text, keep=True)
    op = program.main.body.ops[0]
    op.results[1].sharding = TensorSharding.parse('<@mesh, [{"a"}]>')
    assert 'sdy.sharding_per_value<[<@mesh, [{?}]>, <@mesh, [{"a"}]>]>' in to_mlir(program)


def test_what_a_program_lacks_is_an_error() -> None:
    program = from_mlir(KEPT["compare"])
    with pytest.raises(ShardyError, match="comparison_direction") as error:
        to_mlir(program)
    assert "keep=True" in str(error.value)


def test_an_operand_that_is_not_defined_is_an_error() -> None:
    program = from_mlir("func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> { return %x : tensor<8xf32> }", keep=True)
    stray = Op("stablehlo.abs", [program.main.arguments[0]], [program.main.arguments[0].type])
    program.main.body.terminator.set_operand(0, stray.results[0])
    with pytest.raises(ShardyError, match="invalid SSA name"):
        to_mlir(program)


def test_reading_without_keeping_is_as_before() -> None:
    (op,) = (op for op in from_mlir(KEPT["regions"]).walk() if op.name == "stablehlo.sort")
    assert not op.regions
    assert "mlir.kept" not in op.attributes


@functools.cache
def corpus(name: str) -> list[dict[str, Any]]:
    path = SHARED / "corpus" / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["ir-roundtrip", "sdy-populate-op-sharding-rules", "sdy-propagation-pipeline", "sdy-reshard-to-collectives"]
)
def test_modules_of_the_corpus(name: str) -> None:
    cases = [case for case in corpus(name) if case["status"] == "ok"]
    if not cases:
        pytest.skip("the golden corpus is not here")
    for case in cases:
        assert to_mlir(from_mlir(case["output"], keep=True)) == normal(case["output"]), case["id"]
