"""Reading MLIR modules into programs."""

from __future__ import annotations

import json
import os
import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardy_py.dialect import PropagationDirection, TensorSharding
from shardy_py.errors import ShardyError
from shardy_py.ir import TOKEN, Op, OpaqueType, Program
from shardy_py.ir.attribute_text import AttributeText
from shardy_py.opt.from_mlir import from_mlir, locate, parse_module
from shardy_py.opt.to_mlir import to_mlir
from tests.reference import SAME_SHARDY, lower, programs_equal, run_pipeline

MESH = 'sdy.mesh @mesh = <["a"=2, "b"=4]>\n'
SHARED = pathlib.Path(os.environ.get("SHARDY_SHARED") or pathlib.Path(__file__).parents[3] / "shared")


def only(program: Program, name: str) -> Op:
    """The one op of that name."""
    (found,) = (op for op in program.walk() if op.name == name)
    return found


def body(ops: str, arguments: str = "%x: tensor<8x8xf32>", results: str = "") -> Program:
    """A function of these ops that returns nothing."""
    return from_mlir(f"{MESH}func.func @main({arguments}){results} {{\n{ops}\nreturn\n}}")


ATTRIBUTES: list[tuple[str, str, dict[str, Any]]] = [
    (
        """%0 = "stablehlo.gather"(%x, %i) <{
          dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
          slice_sizes = array<i64: 1, 8>
        }> : (tensor<8x8xf32>, tensor<3x1xi32>) -> tensor<3x8xf32>""",
        "stablehlo.gather",
        {
            "offset_dims": (1,),
            "collapsed_slice_dims": (0,),
            "operand_batching_dims": (),
            "start_indices_batching_dims": (),
            "start_index_map": (0,),
            "index_vector_dim": 1,
            "slice_sizes": (1, 8),
        },
    ),
    (
        "%0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>",
        "stablehlo.dot_general",
        {
            "lhs_batching_dimensions": (),
            "rhs_batching_dimensions": (),
            "lhs_contracting_dimensions": (1,),
            "rhs_contracting_dimensions": (0,),
        },
    ),
    (
        "%0 = stablehlo.fft %c, type = FFT, length = [8] : (tensor<8x8xcomplex<f32>>) -> tensor<8x8xcomplex<f32>>",
        "stablehlo.fft",
        {"fft_type": "FFT", "fft_length": (8,)},
    ),
    (
        "%0 = stablehlo.slice %x [0:8:2, 1:5] : (tensor<8x8xf32>) -> tensor<4x4xf32>",
        "stablehlo.slice",
        {"start_indices": (0, 1), "limit_indices": (8, 5), "strides": (2, 1)},
    ),
    (
        '%0 = stablehlo.custom_call @foo(%x) {backend_config = "x"} : (tensor<8x8xf32>) -> tensor<8x8xf32>',
        "stablehlo.custom_call",
        {"call_target_name": "foo"},
    ),
    ("%0 = stablehlo.constant dense<1.0> : tensor<4xf32>", "stablehlo.constant", {"value": "dense<1.000000e+00> : tensor<4xf32>"}),
    ("sdy.sharding_group %x group_id=3 : tensor<8x8xf32>", "sdy.sharding_group", {"group_id": 3}),
    (
        "%0 = sdy.propagation_barrier %x allowed_direction=BACKWARD : tensor<8x8xf32>",
        "sdy.propagation_barrier",
        {"allowed_direction": PropagationDirection.BACKWARD},
    ),
    ("%0 = stablehlo.reverse %x, dims = [0] : tensor<8x8xf32>", "stablehlo.reverse", {"dimensions": (0,)}),
    (
        '%0 = stablehlo.transpose %x, dims = [1, 0] {mhlo.note = "n"} : (tensor<8x8xf32>) -> tensor<8x8xf32>',
        "stablehlo.transpose",
        {"permutation": (1, 0), "mhlo.note": "n"},
    ),
]


@pytest.mark.parametrize(("text", "name", "attributes"), ATTRIBUTES, ids=[name for _, name, _ in ATTRIBUTES])
def test_attributes_are_plain_values(text: str, name: str, attributes: dict[str, Any]) -> None:
    program = body(text, "%x: tensor<8x8xf32>, %i: tensor<3x1xi32>, %c: tensor<8x8xcomplex<f32>>")
    assert only(program, name).attributes == attributes


def test_defaults_of_windows_are_filled_in() -> None:
    program = body(
        """%z = stablehlo.constant dense<0.0> : tensor<f32>
        %0 = "stablehlo.reduce_window"(%x, %z) <{window_dimensions = array<i64: 1, 2>}> ({
          ^bb0(%a: tensor<f32>, %b: tensor<f32>):
            %m = stablehlo.add %a, %b : tensor<f32>
            stablehlo.return %m : tensor<f32>
        }) : (tensor<8x8xf32>, tensor<f32>) -> tensor<8x7xf32>"""
    )
    assert only(program, "stablehlo.reduce_window").attributes == {
        "window_dimensions": (1, 2),
        "window_strides": (1, 1),
        "base_dilations": (1, 1),
        "window_dilations": (1, 1),
        "padding": ((0, 0), (0, 0)),
    }


@pytest.mark.parametrize(
    ("method", "body_name"),
    [("add", "stablehlo.add"), ("max", "stablehlo.maximum"), ("mul", "stablehlo.multiply"), ("set", ""), ("apply", "")],
)
def test_body_of_scatter(method: str, body_name: str) -> None:
    def f(x: Any, i: Any) -> Any:
        at = x.at[i]
        return at.apply(jnp.sin) if method == "apply" else getattr(at, method)(1.0)

    program = from_mlir(lower(f, jax.ShapeDtypeStruct((8,), "float32"), jax.ShapeDtypeStruct((3,), "int32")))
    assert only(program, "stablehlo.scatter").attributes["body"] == body_name


def test_body_of_reduce_is_the_one_op_on_both_arguments() -> None:
    program = from_mlir(lower(lambda x: (x.sum(0), jnp.argmax(x, 0)), jax.ShapeDtypeStruct((8, 8), "float32")))
    assert [op.attributes["body"] for op in program.walk() if op.name == "stablehlo.reduce"] == ["stablehlo.add", ""]


def test_shardings_stand_on_values() -> None:
    program = from_mlir(
        MESH
        + """func.func @main(
          %x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {?}]>}
        ) -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"b", ?}]>}) {
          %0 = stablehlo.negate %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"b"}, {}]>]>} : tensor<8x8xf32>
          %1 = sdy.sharding_constraint %0 <@mesh, [{"a"}, {}]> : tensor<8x8xf32>
          %2 = sdy.all_gather [{"a"}, {}] %1 out_sharding=<@mesh, [{}, {}]> : tensor<8x8xf32>
          return %2 : tensor<8x8xf32>
        }"""
    )
    assert list(program.meshes) == ["mesh"]
    assert program.main.arguments[0].sharding is TensorSharding.parse('#sdy.sharding<@mesh, [{"a"}, {?}]>')
    assert program.main.result_shardings == [TensorSharding.parse('#sdy.sharding<@mesh, [{}, {"b", ?}]>')]
    assert [str(op.result.sharding) for op in program.main.body.ops[:-1]] == [
        '#sdy.sharding<@mesh, [{"b"}, {}]>',
        '#sdy.sharding<@mesh, [{"a"}, {}]>',
        "#sdy.sharding<@mesh, [{}, {}]>",
    ]


def test_attached_rule_is_the_rule() -> None:
    rule = "#sdy.op_sharding_rule<([i, j])->([i, j]) {i=8, j=8}, custom>"
    program = body(f"%0 = stablehlo.custom_call @f(%x) {{sdy.sharding_rule = {rule}}} : (tensor<8x8xf32>) -> tensor<8x8xf32>")
    op = only(program, "stablehlo.custom_call")
    assert op.rule_decided
    assert op.rule is not None
    assert op.rule.is_custom
    assert "sdy.sharding_rule" not in op.attributes


def test_computations_have_regions_and_shardings() -> None:
    program = body(
        """%0 = sdy.named_computation<"f">(%x) in_shardings=[<@mesh, [{"a"}, {?}]>] (%b: tensor<8x8xf32>) {
          sdy.return %b : tensor<8x8xf32>
        } : (tensor<8x8xf32>) -> tensor<8x8xf32>
        %1 = sdy.manual_computation(%0) in_shardings=[<@mesh, [{"a"}, {}]>] out_shardings=[<@mesh, [{"a"}, {}]>]
            manual_axes={"a"} (%b: tensor<4x8xf32>) {
          sdy.return %b : tensor<4x8xf32>
        } : (tensor<8x8xf32>) -> tensor<8x8xf32>"""
    )
    named, manual = only(program, "sdy.named_computation"), only(program, "sdy.manual_computation")
    sharding = TensorSharding.parse('#sdy.sharding<@mesh, [{"a"}, {}]>')
    assert named.attributes == {
        "name": "f",
        "in_shardings": (TensorSharding.parse('#sdy.sharding<@mesh, [{"a"}, {?}]>'),),
        "out_shardings": None,
    }
    assert manual.attributes == {"in_shardings": (sharding,), "out_shardings": (sharding,), "manual_axes": ("a",)}
    assert manual.regions[0].arguments[0].type.shape == (4, 8)
    assert manual.regions[0].parent is manual


def test_types() -> None:
    arguments = "%a: tensor<i1>, %b: tensor<2xcomplex<f32>>, %c: tensor<3xf8E4M3FN>, %d: tensor<?xf32>, %t: !stablehlo.token"
    program = body("", arguments)
    types = [argument.type for argument in program.main.arguments]
    assert [str(t) for t in types[:3]] == ["bool[]", "complex64[2]", "float8_e4m3fn[3]"]
    assert isinstance(types[3], OpaqueType)
    assert str(types[3]) == "tensor<?xf32>"
    assert types[4] is TOKEN


def test_attributes_of_functions() -> None:
    program = from_mlir(
        """func.func private @f(
          %x: tensor<8xf32> {jax.buffer_donor = true, tf.aliasing_output = 0 : i32}
        ) -> (tensor<8xf32> {jax.result_info = "r"}) attributes {sdy.original_func_name = "g"} {
          return %x : tensor<8xf32>
        }"""
    )
    (function,) = program.functions
    assert function.visibility == "private"
    assert function.argument_attributes == [{"jax.buffer_donor": True, "tf.aliasing_output": 0}]
    assert function.result_attributes == [{"jax.result_info": "r"}]
    assert function.attributes == {"sdy.original_func_name": "g"}


@pytest.mark.parametrize("name", ["sdy.original_func_name", "execution_thread"])
@pytest.mark.parametrize("value", ["{}", "3 : i64", "[]"])
def test_names_in_attributes_of_functions_are_texts(name: str, value: str) -> None:
    function = f"func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> attributes {{{name} = {value}}} {{ return %x : tensor<8xf32> }}"
    for keep in (False, True):
        with pytest.raises(ShardyError, match=f"attribute '{name}' is {re.escape(value)}, which is not a text") as caught:
            from_mlir(f"module {{\n{function}\n}}", keep=keep)
        assert caught.value.where == "-:2, 'func.func'"


def test_unknown_ops_keep_their_name_and_text_attributes() -> None:
    program = body(
        '%0 = "my.op"(%x) {my.note = #sdy<manual_axes{"a"}>, other = 3 : i8, my.text = 1.5 : f32} : (tensor<8x8xf32>) -> tensor<8x8xf32>'
    )
    op = only(program, "my.op")
    assert set(op.attributes) == {"my.note", "my.text"}
    assert not isinstance(op.attributes["my.text"], AttributeText)


def test_uses_have_the_order_of_the_module() -> None:
    def f(x: Any) -> Any:
        y = jax.lax.cond(x[0] > 0, lambda: x * 2, lambda: jnp.sin(x) + x)
        return jax.lax.fori_loop(0, 3, lambda i, c: c + x * i, y) + x

    module = lower(f, jax.ShapeDtypeStruct((8,), "float32"))
    for source in (module, str(module)):
        program = from_mlir(source)
        for op in program.walk():
            for i, operand in enumerate(op.operands):
                assert (op, i) in operand.uses
    theirs = [use.operand_number for use in next(iter(module.body.operations)).regions[0].blocks[0].arguments[0].uses]
    assert [i for _, i in from_mlir(module).main.arguments[0].uses] == theirs[::-1]


def test_locations_are_those_of_the_user() -> None:
    program = from_mlir(lower(lambda x: jnp.tanh(x), jax.ShapeDtypeStruct((8,), "float32")))
    location = program.locate(only(program, "stablehlo.tanh").location)
    assert location is not None
    assert pathlib.Path(location.file).name == pathlib.Path(__file__).name
    assert location.line > 0
    assert location.scope.endswith("tanh")
    assert locate(None) is None


def test_shardings_of_jit_arrive() -> None:
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    program = from_mlir(lower(lambda x: x + 1, jax.ShapeDtypeStruct((8, 8), "float32"), in_shardings=NamedSharding(mesh, P("x"))))
    assert str(program.main.arguments[0].sharding) == '#sdy.sharding<@mesh, [{"x"}, {}]>'


def test_invalid_text_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="Unable to parse module"):
        from_mlir("func.func @main(")


def test_several_blocks_are_refused() -> None:
    text = "func.func @main() {\n cf.br ^bb1\n ^bb1:\n return\n}"
    with pytest.raises(ValueError, match="function 'main' has 2 blocks"):
        from_mlir(text)


def test_the_same_module_twice_is_equal() -> None:
    module = lower(
        lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c) @ c, c.sum()), x, None, length=3), jax.ShapeDtypeStruct((8, 8), "float32")
    )
    assert programs_equal(from_mlir(module), from_mlir(str(module))) == ""


def test_first_difference_is_named() -> None:
    one = body("%0 = stablehlo.add %x, %x : tensor<8x8xf32>")
    other = body("%0 = stablehlo.multiply %x, %x : tensor<8x8xf32>")
    assert programs_equal(one, other) == "function 'main': op 0 'stablehlo.add': name: stablehlo.add != stablehlo.multiply"


def test_broadcast_scalars_count_as_constants() -> None:
    add = "%0 = stablehlo.add %x, %b : tensor<8x8xf32>"
    one = body(
        "%c = stablehlo.constant dense<1.0> : tensor<f32>\n"
        f"%b = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<8x8xf32>\n{add}"
    )
    other = body(f"%d = stablehlo.constant dense<2> : tensor<i32>\n%b = sdy.constant dense<1.0> : tensor<8x8xf32>\n{add}")
    assert programs_equal(one, other) == ""


def test_pipelines_run_on_text() -> None:
    text = """func.func public @main(%x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}) -> tensor<8x8xf32> {
      %0 = stablehlo.negate %x : tensor<8x8xf32>
      return %0 : tensor<8x8xf32>
    }"""
    assert str(from_mlir(run_pipeline(MESH + text)).main.result_shardings[0]) == '#sdy.sharding<@mesh, [{"a"}, {}]>'


@pytest.mark.parametrize(("kind", "number"), [("", None), ("max ", 1), ("min ", 2)])
def test_kinds_of_reductions(kind: str, number: int | None) -> None:
    if kind and SAME_SHARDY:
        pytest.skip("only later versions of Shardy have reductions other than sums")
    text = f"""{MESH}func.func @f(%x: tensor<8x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"a"}}, {{}}]>}}) -> tensor<8x8xf32> {{
      %0 = sdy.all_reduce {kind}{{"b"}} %x out_sharding=<@mesh, [{{"a"}}, {{}}]> : tensor<8x8xf32>
      %1 = sdy.reduce_scatter {kind}[{{}}, {{"b"}}] %0 out_sharding=<@mesh, [{{"a"}}, {{"b"}}]> : tensor<8x8xf32>
      return %1 : tensor<8x8xf32>
    }}"""
    program = from_mlir(text, keep=True)
    assert [op.attributes.get("reduction_op") for op in program.walk()][:2] == [number, number]
    assert to_mlir(program) == str(parse_module(text))
    assert str(parse_module(to_mlir(program, pretty=False))) == str(parse_module(text))


def test_every_module_has_its_own_context() -> None:
    text = '"other.op"() : () -> ()'
    one, other = parse_module(text), parse_module(text)
    assert one.context is not other.context
    lowered = lower(jnp.sin, jax.ShapeDtypeStruct((8,), jnp.float32))
    assert one.context.allow_unregistered_dialects
    assert not lowered.context.allow_unregistered_dialects


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "corpus").is_dir(), reason="the golden corpus is not here")
def test_valid_modules_of_the_corpus_are_read() -> None:
    read = 0
    for path in sorted((SHARED / "corpus").glob("*.jsonl")):
        for line in path.read_text().splitlines()[::3]:
            case = json.loads(line)
            try:
                module = parse_module(case["input"])
            except ValueError:
                assert case["status"] == "expected_diag", case["id"]
                continue
            from_mlir(module)
            read += 1
    assert read > 300


def test_what_jax_lowers_and_exports_is_read() -> None:
    @jax.jit
    def f(x: jax.Array) -> jax.Array:
        return jnp.sin(x) @ x

    x = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    names = [op.name for op in from_mlir(f.lower(x).compiler_ir()).walk()]
    assert names == ["stablehlo.sine", "stablehlo.dot_general", "func.return"]
    assert [op.name for op in from_mlir(jax.export.export(f)(x).mlir_module()).walk()] == names
