"""The text of programs, which MLIR reads where a `Program` holds all of it."""

# ruff: noqa: E501 - the lines of the modules are as long as MLIR makes them.

from __future__ import annotations

import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardy_py.dialect import Mesh, OpShardingRule, PropagationDirection, TensorSharding
from shardy_py.frontends.jaxpr import from_jaxpr
from shardy_py.ir import TOKEN, Block, Function, Location, Op, OpaqueType, Program, TensorType
from shardy_py.ir.attribute_text import ELIDED, attribute_text, constant_text
from shardy_py.ir.printer import print_program
from shardy_py.ir.type_text import element_text, shape_of, type_text
from shardy_py.opt.from_mlir import from_mlir, parse_module
from shardy_py.opt.to_mlir import to_mlir

# As MLIR prints them.
MODULES = {
    "named": """
        module @model {
          sdy.mesh @mesh = <["x"=2, "y"=4]>
          func.func @main(%arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {?}]>}, %arg1: tensor<16x4xf32>) -> (tensor<8x4xf32> {jax.result_info = "out", sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}) {
            %0 = sdy.named_computation<"layer">(%arg0, %arg1) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{}, {}]>] out_shardings=[<@mesh, [{}, {}]>] (%arg2: tensor<8x16xf32>, %arg3: tensor<16x4xf32>) {
              %2 = stablehlo.dot_general %arg2, %arg3, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
              %3 = stablehlo.tanh %2 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", ?}, {?}]>]>} : tensor<8x4xf32>
              sdy.return %3 : tensor<8x4xf32>
            } : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
            %1 = sdy.sharding_constraint %0 <@mesh, [{}, {"y"}p1]> : tensor<8x4xf32>
            sdy.sharding_group %1 group_id=3 : tensor<8x4xf32>
            return %1 : tensor<8x4xf32>
          }
        }
    """,
    "manual": """
        module {
          sdy.mesh @mesh = <["x"=2, "y"=4]>
          func.func @main(%arg0: tensor<8xf32>) -> tensor<8xf32> {
            %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x", "y"}]>] out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"} (%arg1: tensor<4xf32>) {
              %3 = sdy.data_flow_edge %arg1 sharding=<@mesh, [{"y"}]> : tensor<4xf32>
              %4 = sdy.propagation_barrier %3 allowed_direction=FORWARD : tensor<4xf32>
              sdy.return %4 : tensor<4xf32>
            } : (tensor<8xf32>) -> tensor<8xf32>
            %1 = sdy.data_flow_edge %0 : tensor<8xf32>
            %2 = sdy.reshard %1 <@mesh, [{}], unreduced={"x"}> : tensor<8xf32>
            return %2 : tensor<8xf32>
          }
        }
    """,
    "collectives": """
        module {
          sdy.mesh @mesh = <["x"=4, "y"=2]>
          func.func private @f(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) -> tensor<8x8xf32> {
            %0 = sdy.all_gather [{"x":(2)2}, {}] %arg0 out_sharding=<@mesh, [{"x":(1)2}, {"y"}]> : tensor<8x8xf32>
            %1 = sdy.all_slice [{"x":(2)2}, {}] %0 out_sharding=<@mesh, [{"x"}, {"y"}]> : tensor<8x8xf32>
            %2 = sdy.all_to_all [{"y"}: 1->0] %1 out_sharding=<@mesh, [{"x", "y"}, {}]> : tensor<8x8xf32>
            %3 = sdy.collective_permute %2 out_sharding=<@mesh, [{"y", "x"}, {}]> : tensor<8x8xf32>
            %4 = sdy.all_reduce {} %3 out_sharding=<@mesh, [{"y", "x"}, {}]> : tensor<8x8xf32>
            return %4 : tensor<8x8xf32>
          }
        }
    """,
    "control_flow": """
        module {
          func.func @main(%arg0: tensor<8xf32>, %arg1: tensor<i32>) -> (tensor<8xf32>, tensor<i32>) {
            %c = stablehlo.constant dense<0> : tensor<i32>
            %cst = stablehlo.constant dense<1.000000e+00> : tensor<8xf32>
            %0:2 = stablehlo.while(%iterArg = %arg0, %iterArg_0 = %c) : tensor<8xf32>, tensor<i32>
            cond {
              %c_1 = stablehlo.constant dense<true> : tensor<i1>
              stablehlo.return %c_1 : tensor<i1>
            } do {
              %2 = stablehlo.add %iterArg, %cst : tensor<8xf32>
              %3 = func.call @f(%2) : (tensor<8xf32>) -> tensor<8xf32>
              stablehlo.return %3, %iterArg_0 : tensor<8xf32>, tensor<i32>
            }
            %1 = "stablehlo.case"(%arg1) ({
              stablehlo.return %0#0 : tensor<8xf32>
            }, {
              %2 = stablehlo.negate %0#0 : tensor<8xf32>
              stablehlo.return %2 : tensor<8xf32>
            }) : (tensor<i32>) -> tensor<8xf32>
            return %1, %0#1 : tensor<8xf32>, tensor<i32>
          }
          func.func private @f(tensor<8xf32>) -> tensor<8xf32>
        }
    """,
    "shapes": """
        module {
          func.func @main(%arg0: tensor<8x4xf32>, %arg1: tensor<i1>, %arg2: tensor<f32>) -> tensor<8x4xf32> {
            %0 = stablehlo.transpose %arg0, dims = [1, 0] : (tensor<8x4xf32>) -> tensor<4x8xf32>
            %1 = stablehlo.slice %0 [0:4:2, 1:7] : (tensor<4x8xf32>) -> tensor<2x6xf32>
            %2 = stablehlo.pad %1, %arg2, low = [1, 0], high = [1, 0], interior = [0, 0] : (tensor<2x6xf32>, tensor<f32>) -> tensor<4x6xf32>
            %3 = stablehlo.reverse %2, dims = [0] : tensor<4x6xf32>
            %4 = stablehlo.reduce(%3 init: %arg2) applies stablehlo.add across dimensions = [1] : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>
            %5 = stablehlo.broadcast_in_dim %4, dims = [1] : (tensor<4xf32>) -> tensor<8x4xf32>
            %6 = stablehlo.concatenate %5, %arg0, dim = 1 : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x8xf32>
            %7 = stablehlo.reshape %6 : (tensor<8x8xf32>) -> tensor<64xf32>
            %8 = stablehlo.iota dim = 0 : tensor<64xi32>
            %9 = stablehlo.select %arg1, %arg0, %5 : tensor<i1>, tensor<8x4xf32>
            %10:2 = stablehlo.optimization_barrier %9, %7 : tensor<8x4xf32>, tensor<64xf32>
            %11 = stablehlo.custom_call @MoveToHost(%10#0) {has_side_effect = true} : (tensor<8x4xf32>) -> tensor<8x4xf32>
            return %11 : tensor<8x4xf32>
          }
        }
    """,
}


def written(text: str) -> str:
    return textwrap.dedent(text).strip()


def chain() -> Program:
    """`main(a) { b = gather(a); return b }` with a place in the source and a rule."""
    t = TensorType((8,), "float32")
    block = Block([t])
    op = Op(
        "stablehlo.gather", block.arguments, [t], {"slice_sizes": (1,), "start_index_map": ()}, location=Location("m.py", 3, "f", "g/h")
    )
    op.rule, op.rule_decided = OpShardingRule((8,), [[[0]]], [[[0]]]), True
    block.append(op)
    block.append(Op("func.return", [op.result], []))
    op.result.sharding = TensorSharding("mesh", [["x"]])
    return Program([Function("main", block, [t])], {"mesh": Mesh([("x", 2)])})


@pytest.mark.parametrize("name", MODULES)
def test_mlir_reads_the_text(name: str) -> None:
    text = written(MODULES[name])
    assert str(parse_module(to_mlir(from_mlir(text, keep=True), pretty=False))).strip() == text


def test_a_traced_program_prints_the_same_twice() -> None:
    def fun(x: jax.Array) -> jax.Array:
        return jnp.sort(jnp.sin(x) + np.arange(4, dtype=np.float32))

    def text() -> str:
        jaxpr = jax.make_jaxpr(fun)(jax.ShapeDtypeStruct((8, 4), jnp.float32))
        return print_program(from_jaxpr(jaxpr, mesh=Mesh([("x", 2)])).program)

    assert text() == text()
    assert "dense<[0.000000e+00, 1.000000e+00, 2.000000e+00, 3.000000e+00]>" in text()


def test_attributes_stand_under_their_flattened_names() -> None:
    assert print_program(chain()) == written("""
        module {
          sdy.mesh @mesh = <["x"=2]>
          func.func @main(%arg0: tensor<8xf32>) -> (tensor<8xf32>) {
            %0 = "stablehlo.gather"(%arg0) {slice_sizes = array<i64: 1>, start_index_map = array<i64>, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}]>]>} : (tensor<8xf32>) -> (tensor<8xf32>)
            "func.return"(%0) : (tensor<8xf32>) -> ()
          }
        }
    """)


def test_rules_that_a_user_gave_are_always_there() -> None:
    program = chain()
    program.main.body.ops[0].rule = OpShardingRule((8,), [[[0]]], [[[0]]], is_custom=True)
    assert "sdy.sharding_rule = #sdy.op_sharding_rule<([i])->([i]) {i=8}, custom>" in print_program(program)


def test_values_that_stand_nowhere_and_broken_ops_still_have_a_text() -> None:
    t = TensorType((8,), "float32")
    block = Block()
    block.append(Op("stablehlo.add", Block([t, t]).arguments, [t, t]))
    block.append(Op("stablehlo.slice", [], [t]))
    block.append(Op("stablehlo.constant", [], [t], {"value": object()}))
    block.append(Op("func.return", [], []))
    assert print_program(Program([Function("f", block, [])])) == written(f"""
        module {{
          func.func @f() {{
            %0:2 = "stablehlo.add"(%?, %?) : (tensor<8xf32>, tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>)
            %1 = "stablehlo.slice"() : () -> (tensor<8xf32>)
            %2 = "stablehlo.constant"() {{value = {ELIDED} : tensor<8xf32>}} : () -> (tensor<8xf32>)
            "func.return"() : () -> ()
          }}
        }}
    """)


def test_a_result_whose_sharding_is_not_known_is_open_beside_one_that_is() -> None:
    t = TensorType((8,), "float32")
    op = Op("stablehlo.custom_call", [], [t, t], {"call_target_name": "f"})
    op.results[1].sharding = TensorSharding("mesh", [["x"]])
    block = Block()
    block.append(op)
    assert '#sdy.sharding_per_value<[<@mesh, [{?}]>, <@mesh, [{"x"}]>]>' in print_program(Program([Function("f", block, [])]))


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (2.0, "float32", "dense<2.000000e+00>"),
        (1 / 3, "float32", "dense<0.333333343>"),
        (1 / 3, "float64", "dense<0.33333333333333331>"),
        (float("-inf"), "float32", "dense<-inf>"),
        (float("nan"), "bfloat16", "dense<nan>"),
        (3, "int8", "dense<3>"),
        (True, "bool", "dense<true>"),
        (1 + 2j, "complex64", "dense<(1.000000e+00,2.000000e+00)>"),
        (np.float32(0.5), "float32", "dense<5.000000e-01>"),
        (np.array([[1, 2]], np.int32), "int32", "dense<[[1, 2]]>"),
        (np.zeros(17), "float64", ELIDED),
        ("dense<7> : tensor<8xi8>", "int8", "dense<7>"),
        ("dense<" + "1, " * 400 + ">", "int8", ELIDED),
        (object(), "int8", ELIDED),
    ],
)
def test_constants(value: object, dtype: str, text: str) -> None:
    assert constant_text(value, TensorType((8,), dtype)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (np.int64(3), "3"),
        (1.5, "1.500000e+00"),
        ('a "b"', '"a \\"b\\""'),
        (((1, 2), ()), "[[1, 2], []]"),
        ({"b": 1, "a:c": "x", "none": None}, '{"a:c" = "x", b = 1}'),
        (PropagationDirection.FORWARD, "FORWARD"),
        (TensorSharding("mesh", [["x"]]), '#sdy.sharding<@mesh, [{"x"}]>'),
        (TensorType((2,), "bool"), "tensor<2xi1>"),
        (object(), "<object>"),
    ],
)
def test_attributes(value: object, text: str) -> None:
    assert attribute_text(value) == text


@pytest.mark.parametrize(
    ("type_", "text", "element", "shape"),
    [
        (TensorType((), "bfloat16"), "tensor<bf16>", "bf16", ()),
        (TensorType((2, 3), "uint8"), "tensor<2x3xui8>", "ui8", (2, 3)),
        (TensorType((2,), "complex64"), "tensor<2xcomplex<f32>>", "complex<f32>", (2,)),
        (TensorType((2,), "float8_e4m3fn"), "tensor<2xf8E4M3FN>", "f8E4M3FN", (2,)),
        (TensorType((2,), "!quant.uniform<i8:f32, 1.0>"), "tensor<2x!quant.uniform<i8:f32, 1.0>>", "!quant.uniform<i8:f32, 1.0>", (2,)),
        (TOKEN, "!stablehlo.token", "!stablehlo.token", None),
        (OpaqueType("tensor<?x4xf32>"), "tensor<?x4xf32>", "f32", (-1, 4)),
        (OpaqueType("tuple<tensor<8xf32>>"), "tuple<tensor<8xf32>>", "tuple<tensor<8xf32>>", (8,)),
    ],
)
def test_types(type_: TensorType | OpaqueType, text: str, element: str, shape: tuple[int, ...] | None) -> None:
    assert (type_text(type_), element_text(type_), shape_of(type_)) == (text, element, shape)
    if text.startswith("tensor") and "quant" not in text:
        function = from_mlir(f"func.func private @f({text})").functions[0]
        assert type_text(function.arguments[0].type) == text


@pytest.mark.parametrize(
    ("text", "why"), [("tensor<*xf32>", "only ranked tensors"), ("tuple<tensor<8xf32>, tensor<f32>>", "a tuple of size 1")]
)
def test_types_that_no_sharding_fits(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        shape_of(OpaqueType(text))
