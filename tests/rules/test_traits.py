from __future__ import annotations

import pytest

from shardy_py.dialect import PropagationDirection
from shardy_py.ir import Block, Op, TensorType
from shardy_py.opt.from_mlir import from_mlir
from shardy_py.rules import is_elementwise, is_pure, pass_through_direction
from shardy_py.rules.elementwise import RULES
from shardy_py.rules.traits import ELEMENTWISE
from tests.rules.mlir_text import COMPARE, Slicing, array, combiner, gather, pairs, scatter
from tests.rules.reference import run_passes

f32 = TensorType((4, 8), "float32")

GROUPS = "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>"
REDUCER = combiner()
SLICING = Slicing((10, 6), (4, 1), (1,), (0,), (), (), (0,), 1, (1, 6))


def last_line(function: str) -> str:
    """The op of a function, with the arguments renamed to those of `DEAD`."""
    return function.split("{\n", 1)[1].rsplit("\n  return", 1)[0].replace("%0:1 = ", "")


X, T, U = "tensor<4x8xf32>", "!stablehlo.token", "tensor<ui32>"

DEAD = {
    "add": f"stablehlo.add %x, %x : {X}",
    "divide": f"stablehlo.divide %x, %x : {X}",
    "constant": f"stablehlo.constant dense<1.0> : {X}",
    "sdy constant": f"sdy.constant dense<1.0> : {X}",
    "iota": f"stablehlo.iota dim = 0 : {X}",
    "reshape": f"stablehlo.reshape %x : ({X}) -> tensor<32xf32>",
    "transpose": f"stablehlo.transpose %x, dims = [1, 0] : ({X}) -> tensor<8x4xf32>",
    "slice": f"stablehlo.slice %x [0:2, 0:8] : ({X}) -> tensor<2x8xf32>",
    "pad": f"stablehlo.pad %x, %s, low = [1, 0], high = [0, 0], interior = [0, 0] : ({X}, tensor<f32>) -> tensor<5x8xf32>",
    "dynamic slice": f"stablehlo.dynamic_slice %x, %i, %i, sizes = [1, 8] : ({X}, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>",
    "dynamic update slice": f"stablehlo.dynamic_update_slice %x, %x, %i, %i : ({X}, {X}, tensor<i32>, tensor<i32>) -> {X}",
    "dot": f"stablehlo.dot_general %x, %x, contracting_dims = [1] x [1] : ({X}, {X}) -> tensor<4x4xf32>",
    "custom call": f"stablehlo.custom_call @my_kernel(%x) : ({X}) -> {X}",
    "custom call with effects": f"stablehlo.custom_call @my_kernel(%x) {{has_side_effect = true}} : ({X}) -> {X}",
    "all gather": f'"stablehlo.all_gather"(%x) {{all_gather_dim = 0 : i64, {GROUPS}}} : ({X}) -> tensor<8x8xf32>',
    "all reduce": f'"stablehlo.all_reduce"(%x) ({REDUCER}) {{{GROUPS}}} : ({X}) -> {X}',
    "collective permute": f'"stablehlo.collective_permute"(%x) {{source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}} : ({X}) -> {X}',
    "all to all": f'"stablehlo.all_to_all"(%x) {{split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 2 : i64, {GROUPS}}}'
    f" : ({X}) -> {X}",
    "reduce": f'"stablehlo.reduce"(%x, %s) ({REDUCER}) {{dimensions = array<i64: 0>}} : ({X}, tensor<f32>) -> tensor<8xf32>',
    "reduce window": f'"stablehlo.reduce_window"(%x, %s) ({REDUCER}) {{window_dimensions = {array((1, 1))}}} : ({X}, tensor<f32>) -> {X}',
    "select and scatter": f'"stablehlo.select_and_scatter"(%x, %x, %s) ({COMPARE}, {REDUCER})'
    f" {{window_dimensions = {array((1, 1))}, padding = {pairs([(0, 0), (0, 0)])}}} : ({X}, {X}, tensor<f32>) -> {X}",
    "rng bit generator": "stablehlo.rng_bit_generator %k, algorithm = DEFAULT : (tensor<2xui64>) -> (tensor<2xui64>, tensor<4xui32>)",
    "rng": "stablehlo.rng %s, %s, %d, distribution = UNIFORM : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<4xf32>",
    "partition id": f"stablehlo.partition_id : {U}",
    "replica id": f"stablehlo.replica_id : {U}",
    "after all": f"stablehlo.after_all %t : {T}",
    "create token": f"stablehlo.create_token : {T}",
    "infeed": f'"stablehlo.infeed"(%t) : ({T}) -> ({X}, {T})',
    "outfeed": f'"stablehlo.outfeed"(%x, %t) : ({X}, {T}) -> {T}',
    "send": f'"stablehlo.send"(%x, %t) {{channel_handle = #stablehlo.channel_handle<handle = 1, type = 2>, is_host_transfer = true}}'
    f" : ({X}, {T}) -> {T}",
    "recv": f'"stablehlo.recv"(%t) {{channel_handle = #stablehlo.channel_handle<handle = 1, type = 3>, is_host_transfer = true}}'
    f" : ({T}) -> ({X}, {T})",
    "optimization barrier": f"stablehlo.optimization_barrier %x : {X}",
    "composite": f'stablehlo.composite "my.op" %x {{decomposition = @g}} : ({X}) -> {X}',
    "call": f"func.call @g(%x) : ({X}) -> {X}",
    "erf": f"chlo.erf %x : {X} -> {X}",
    "top k": f"chlo.top_k(%x, k = 2) : {X} -> (tensor<4x2xf32>, tensor<4x2xi32>)",
    "constraint": f"sdy.sharding_constraint %x <@mesh, [{{}}, {{?}}]> : {X}",
    "reshard": f"sdy.reshard %x <@mesh, [{{}}, {{?}}]> : {X}",
    "barrier": f"sdy.propagation_barrier %x allowed_direction=FORWARD : {X}",
    "group": f"sdy.sharding_group %x group_id=3 : {X}",
    "data flow edge": f"%w = stablehlo.optimization_barrier %x : {X}\n%z = sdy.data_flow_edge %w : {X}",
    "manual computation": "sdy.manual_computation(%x) in_shardings=[<@mesh, [{}, {}]>] out_shardings=[<@mesh, [{}, {}]>] manual_axes={}"
    f" (%y: {X}) {{\n sdy.return %y : {X}\n}} : ({X}) -> {X}",
    "named computation": f'sdy.named_computation<"foo">(%x) (%y: {X}) {{\n sdy.return %y : {X}\n}} : ({X}) -> {X}',
    "case": f'"stablehlo.case"(%i) ({{\nstablehlo.return %x : {X}\n}}) : (tensor<i32>) -> {X}',
    "case with effects": f'"stablehlo.case"(%i) ({{\n%z = stablehlo.custom_call @f(%x) {{has_side_effect = true}} : ({X}) -> {X}\n'
    f"stablehlo.return %z : {X}\n}}) : (tensor<i32>) -> {X}",
    "while": f'"stablehlo.while"(%x) ({{\n^bb0(%y: {X}):\nstablehlo.return %p : tensor<i1>\n}}, '
    f"{{\n^bb0(%y: {X}):\nstablehlo.return %y : {X}\n}}) : ({X}) -> {X}",
    "while with effects": f'"stablehlo.while"(%x) ({{\n^bb0(%y: {X}):\nstablehlo.return %p : tensor<i1>\n}}, {{\n^bb0(%y: {X}):\n'
    f"%z = stablehlo.custom_call @f(%y) {{has_side_effect = true}} : ({X}) -> {X}\nstablehlo.return %z : {X}\n}}) : ({X}) -> {X}",
    "gather": last_line(gather(SLICING)).replace("%a0", "%ta").replace("%a1", "%in"),
    "scatter": last_line(scatter(SLICING)).replace("%a0", "%ta").replace("%a1", "%in").replace("%a2", "%up"),
    "cholesky": "stablehlo.cholesky %q, lower = true : tensor<4x4xf32>",
    "fft": "stablehlo.fft %c, type = FFT, length = [8] : (tensor<8xcomplex<f32>>) -> tensor<8xcomplex<f32>>",
    "sort": f'"stablehlo.sort"(%x) ({COMPARE}) {{dimension = 0 : i64}} : ({X}) -> {X}',
    "concatenate": f"stablehlo.concatenate %x, %x, dim = 0 : ({X}, {X}) -> tensor<8x8xf32>",
    "convolution": f"stablehlo.convolution(%x, %x) dim_numbers = [b, f]x[o, i]->[b, f], window = {{}}"
    f" {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}} : ({X}, {X}) -> tensor<4x4xf32>",
    "bitcast": f"stablehlo.bitcast_convert %x : ({X}) -> tensor<4x8xi32>",
}


@pytest.mark.parametrize("name", DEAD)
def test_dead_ops_are_erased_where_the_reference_erases_them(name: str) -> None:
    text = f"""
      sdy.mesh @mesh = <["a"=2]>
      func.func @main(%x: {X}, %s: tensor<f32>, %i: tensor<i32>, %k: tensor<2xui64>, %t: {T}, %p: tensor<i1>, %q: tensor<4x4xf32>,
                      %c: tensor<8xcomplex<f32>>, %ta: tensor<10x6xf32>, %in: tensor<4x1xi32>, %up: tensor<4x6xf32>) -> {X} {{
        %d = stablehlo.constant dense<4> : tensor<1xi64>
        {DEAD[name]}
        return %x : {X}
      }}
      func.func private @g(%x: {X}) -> {X} {{ return %x : {X} }}"""
    op = from_mlir(text).main.body.ops[-2]
    kept = [other.name for other in from_mlir(run_passes(text, "sdy-basic-propagate")).main.body.ops]
    assert is_pure(op) == (op.name not in kept)


@pytest.mark.parametrize(
    ("name", "attributes", "result", "direction"),
    [
        ("stablehlo.tanh", {}, f32, PropagationDirection.BOTH),
        ("stablehlo.reshape", {}, TensorType((32,), "float32"), PropagationDirection.BOTH),
        ("stablehlo.transpose", {}, TensorType((8, 4), "float32"), PropagationDirection.BOTH),
        ("sdy.data_flow_edge", {}, f32, PropagationDirection.BOTH),
        ("sdy.sharding_constraint", {}, f32, PropagationDirection.BOTH),
        ("stablehlo.custom_call", {"call_target_name": "MoveToHost"}, f32, PropagationDirection.BOTH),
        ("stablehlo.custom_call", {"call_target_name": "mhlo.erf"}, f32, PropagationDirection.NONE),
        ("stablehlo.dynamic_slice", {}, f32, PropagationDirection.FORWARD),
        ("stablehlo.dynamic_update_slice", {}, f32, PropagationDirection.FORWARD),
        ("stablehlo.bitcast_convert", {}, TensorType((4, 8), "int32"), PropagationDirection.BOTH),
        ("stablehlo.bitcast_convert", {}, TensorType((4, 8, 2), "int16"), PropagationDirection.NONE),
        ("stablehlo.slice", {}, f32, PropagationDirection.NONE),
        ("stablehlo.reverse", {}, f32, PropagationDirection.NONE),
        ("stablehlo.broadcast_in_dim", {}, f32, PropagationDirection.NONE),
        ("stablehlo.dot_general", {}, f32, PropagationDirection.NONE),
    ],
)
def test_direction_in_the_first_rounds(
    name: str, attributes: dict[str, object], result: TensorType, direction: PropagationDirection
) -> None:
    assert pass_through_direction(Op(name, Block([f32]).arguments, [result], attributes)) is direction


def test_elementwise_ops_have_pointwise_rules() -> None:
    without_rule = {"stablehlo.uniform_quantize", "stablehlo.uniform_dequantize", "sdy.propagation_barrier", "sdy.reshard"}
    assert RULES.keys() == ELEMENTWISE - without_rule
    assert is_elementwise("stablehlo.add")
    assert not is_elementwise("stablehlo.map")
