"""`sdy-convert-global-to-local` does what jaxlib's does."""

from __future__ import annotations

from typing import Any

import pytest

from shardy_py.dialect import AxisRef, Mesh
from shardy_py.dialect.devices import device_groups, remaining_axes
from shardy_py.errors import ShardyError
from shardy_py.opt import run_passes
from shardy_py.opt.from_mlir import from_mlir, parse_module
from shardy_py.opt.partitioner.convert_global_to_local.convert import ALWAYS, WHERE_CUT, ConvertGlobalToLocal
from tests.opt.partitioner.local_modules import KINDS, OPTIONS, has_reshard, random_module
from tests.passes.oracle import corpus, jaxlib_text
from tests.reference import NEEDS_SAME_SHARDY

NAME = ConvertGlobalToLocal.name
MESH = 'sdy.mesh @m = <["x"=2, "y"=4, "z"=2]>\n'


def normal(text: str) -> str:
    """A module as jaxlib prints it."""
    return str(parse_module(text))


def at(dims: str) -> str:
    """An argument's sharding."""
    return f"{{sdy.sharding = #sdy.sharding<@m, {dims}>}}"


def per_value(*dims: str) -> str:
    """The attribute that shards an op's results."""
    return f"sdy.sharding = #sdy.sharding_per_value<[{', '.join(f'<@m, {each}>' for each in dims)}]>"


def module(arguments: str, *lines: str) -> str:
    """A function of these lines."""
    body = "\n  ".join(lines)
    return f"{MESH}func.func @main({arguments}) {{\n  {body}\n  return\n}}\n"


def reducer(op: str, element: str = "f32") -> str:
    """The region of a scatter."""
    return (
        f"({{^bb0(%p: tensor<{element}>, %q: tensor<{element}>):\n    %r = stablehlo.{op} %p, %q : tensor<{element}>\n"
        f"    stablehlo.return %r : tensor<{element}>\n  }})"
    )


def scatter(inputs: str, indices: str, updates: str, result: str = "[{}, {}]", op: str = "add", element: str = "f32") -> str:
    """A scatter of rows, and the all-reduce that is needed where updates are cut."""
    line = f'%0 = "stablehlo.scatter"(%a, %i, %u) {reducer(op, element)} {{scatter_dimension_numbers = #stablehlo.scatter<'
    line += "update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, "
    line += f"{per_value(result)}}} : (tensor<8x4x{element}>, tensor<6x1xi32>, tensor<6x4x{element}>) -> tensor<8x4x{element}>"
    arguments = f"%a: tensor<8x4x{element}> {at(inputs)}, %i: tensor<6x1xi32> {at(indices)}, %u: tensor<6x4x{element}> {at(updates)}"
    reduced = f'%1 = sdy.all_reduce {{"x"}} %0 out_sharding=<@m, {result}> : tensor<8x4x{element}>'
    return module(arguments, line, reduced)


def gather(operand: str, numbers: str, sizes: str, result: str, axes: str, indices: str = "5x2xi64", dims: str = "[{}, {}]") -> str:
    """A gather from an 8x8x6 operand, and the all-reduce over what it looked up."""
    line = f'%0 = "stablehlo.gather"(%a, %i) {{dimension_numbers = #stablehlo.gather<{numbers}>, slice_sizes = array<i64: {sizes}>, '
    line += f"{per_value(dims)}}} : (tensor<8x8x6xf32>, tensor<{indices}>) -> tensor<{result}>"
    lines = [line] + ([f"%1 = sdy.all_reduce {axes} %0 out_sharding=<@m, {dims}> : tensor<{result}>"] if axes else [])
    return module(f"%a: tensor<8x8x6xf32> {at(operand)}, %i: tensor<{indices}>", *lines)


def convolution(lhs: str, rhs: str, result: str, groups: tuple[int, int], shapes: tuple[str, str, str], *more: str) -> str:
    """A convolution with feature and batch groups."""
    line = "%0 = stablehlo.convolution(%a, %b) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [2, 2]} "
    line += f"{{feature_group_count = {groups[0]} : i64, batch_group_count = {groups[1]} : i64, {per_value(result)}}} : "
    line += f"(tensor<{shapes[0]}>, tensor<{shapes[1]}>) -> tensor<{shapes[2]}>"
    return module(f"%a: tensor<{shapes[0]}> {at(lhs)}, %b: tensor<{shapes[1]}> {at(rhs)}", line, *more)


def dot_general(lhs: str, rhs: str, *more: str) -> str:
    """A dot over two dimensions."""
    line = "%0 = stablehlo.dot_general %a, %b, contracting_dims = [1, 2] x [0, 1], precision = [HIGH, HIGH] {foo.bar = 1 : i32} : "
    line += "(tensor<8x16x4xf32>, tensor<16x4x32xf32>) -> tensor<8x32xf32>"
    return module(f"%a: tensor<8x16x4xf32> {at(lhs)}, %b: tensor<16x4x32xf32> {at(rhs)}", line, *more)


AT_X_Y = at('[{"x"}, {"y"}]')
AT_X_Z_Y_O_O_O = at('[{"x"}, {"z"}, {"y"}, {}, {}, {}]')
AT_Y = at('[{"y"}]')
ON_O_Y = per_value('[{}, {"y"}]')
ON_X_O = per_value('[{"x"}, {}]')
ON_X_O_Y = per_value('[{"x"}, {}, {"y"}]')
ON_X_Y = per_value('[{"x"}, {"y"}]')
ON_Y_X_O = per_value('[{"y"}, {"x"}, {}]')
ON_Z_O = per_value('[{"z"}, {}]')
A = f"%a: tensor<16x8xf32> {AT_X_Y}"
ABS = f"%1 = stablehlo.abs %a {{{ON_X_Y}}} : tensor<16x8xf32>"
ROWS = "offset_dims = [1], collapsed_slice_dims = [0, 1], start_index_map = [1, 0], index_vector_dim = 1"
NHWC = '[{{}}, {{}}, {{}}, {{"{}"}}]'.format
SUM = "sdy.all_reduce {} %0 out_sharding=<@m, [{{}}, {{}}, {{}}, {{}}]> : tensor<2x4x4x16xf32>".format

SAME: dict[str, str] = {
    "elementwise": module(A, ABS, f"%2 = stablehlo.add %1, %a {{{ON_X_Y}, foo.bar = 1 : i32}} : tensor<16x8xf32>"),
    "reshape and transpose": module(
        A,
        f"%1 = stablehlo.reshape %a {{{ON_X_O_Y}}} : (tensor<16x8xf32>) -> tensor<16x1x8xf32>",
        f"%2 = stablehlo.transpose %1, dims = [2, 0, 1] {{{ON_Y_X_O}}} : (tensor<16x1x8xf32>) -> tensor<8x16x1xf32>",
    ),
    "branches": module(
        f"{A}, %i: tensor<i32>",
        '%0 = "stablehlo.case"(%i) ({',
        ABS,
        "stablehlo.return %1 : tensor<16x8xf32> }, {",
        ABS,
        '%2 = sdy.all_gather [{"x"}, {}] %1 out_sharding=<@m, [{}, {"y"}]> : tensor<16x8xf32>',
        '%3 = sdy.all_slice [{"x"}, {}] %2 out_sharding=<@m, [{"x"}, {"y"}]> : tensor<16x8xf32>',
        f"stablehlo.return %3 : tensor<16x8xf32> }}) {{{ON_X_Y}}} : (tensor<i32>) -> tensor<16x8xf32>",
        '%4 = sdy.all_gather [{}, {"y"}] %0 out_sharding=<@m, [{"x"}, {}]> : tensor<16x8xf32>',
    ),
    "manual and named": module(
        A,
        '%0:2 = sdy.manual_computation(%a, %a) in_shardings=[<@m, [{"x"}, {"y"}]>, <@m, [{"x"}, {"y"}]>] '
        'out_shardings=[<@m, [{"x"}, {"z"}]>, <@m, [{"x"}, {}]>] manual_axes={"x"} (%b: tensor<8x8xf32>, %c: tensor<8x8xf32>) {',
        '%1 = sdy.all_gather [{}, {"y"}] %b out_sharding=<@m, [{}, {}]> : tensor<8x8xf32>',
        '%2 = sdy.named_computation<"n">(%1) in_shardings=[<@m, [{}, {}]>] out_shardings=[<@m, [{}, {"z"}]>] (%d: tensor<8x8xf32>) {',
        '%3 = sdy.all_slice [{}, {"z"}] %d out_sharding=<@m, [{}, {"z"}]> : tensor<8x8xf32>',
        "sdy.return %3 : tensor<8x8xf32> } : (tensor<8x8xf32>) -> tensor<8x8xf32>",
        '%4 = sdy.all_gather [{}, {"y"}] %c out_sharding=<@m, [{}, {}]> : tensor<8x8xf32>',
        "sdy.return %2, %4 : tensor<8x8xf32>, tensor<8x8xf32>",
        "} : (tensor<16x8xf32>, tensor<16x8xf32>) -> (tensor<16x8xf32>, tensor<16x8xf32>)",
        '%5 = sdy.collective_permute %0#0 out_sharding=<@m, [{"z"}, {"x"}]> : tensor<16x8xf32>',
        '%6 = sdy.all_slice [{}, {"y"}] %0#1 out_sharding=<@m, [{"x"}, {"y"}]> : tensor<16x8xf32>',
    ),
    "calls and channels in use": f"""{MESH}
func.func @main({A}) -> tensor<16x8xf32> {{
  %0 = call @f(%a) {{{per_value("[{}, {}]")}, foo.bar = 1 : i32}} : (tensor<16x8xf32>) -> tensor<16x8xf32>
  return %0 : tensor<16x8xf32>
}}
func.func private @f({A}) -> tensor<16x8xf32> {{
  %0 = sdy.all_gather [{{"x"}}, {{"y"}}] %a out_sharding=<@m, [{{}}, {{}}]> : tensor<16x8xf32>
  %1 = "stablehlo.all_gather"(%0) {{all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>,
    channel_handle = #stablehlo.channel_handle<handle = 5, type = 0>}} : (tensor<16x8xf32>) -> tensor<32x8xf32>
  return %0 : tensor<16x8xf32>
}}""",
    "all-reduces": module(
        f"%a: tensor<16xi1> {AT_Y}, %b: tensor<i32>, %c: tensor<4xcomplex<f32>>",
        '%0 = sdy.all_reduce {"x"} %a out_sharding=<@m, [{"y"}]> : tensor<16xi1>',
        '%1 = sdy.all_reduce {"x", "z"} %b out_sharding=<@m, []> : tensor<i32>',
        '%2 = sdy.all_reduce {"y":(2)2} %c out_sharding=<@m, [{}]> : tensor<4xcomplex<f32>>',
    ),
    "all-to-all of three pairs": module(
        f"%a: tensor<8x8x8x8x8x8xf32> {AT_X_Z_Y_O_O_O}",
        '%0 = sdy.all_to_all [{"x"}: 0->5, {"z"}: 1->3, {"y"}: 2->4] %a '
        'out_sharding=<@m, [{}, {}, {}, {"z"}, {"y"}, {"x"}]> : tensor<8x8x8x8x8x8xf32>',
    ),
    "an axis of size 1": module(
        '%a: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<mesh<["o"=1, "t"=2]>, [{"o"}, {"t"}]>}',
        '%0 = sdy.all_gather [{"o"}, {}] %a out_sharding=<mesh<["o"=1, "t"=2]>, [{}, {"t"}]> : tensor<16x8xf32>',
        '%1 = stablehlo.iota dim = 0 {sdy.sharding = #sdy.sharding_per_value<[<mesh<["o"=1, "t"=2]>, [{"o"}, {}]>]>} : tensor<16x8xf32>',
    ),
    "a gather of what all devices have": gather("[{}, {}, {}]", ROWS, "1, 1, 6", "5x6xf32", ""),
    "a gather of whole dimensions": gather('[{}, {}, {"z"}]', ROWS, "1, 1, 6", "5x6xf32", "", dims='[{}, {"z"}]'),
    "a gather of two dimensions": gather('[{"x"}, {"y"}, {}]', ROWS, "1, 1, 6", "5x6xf32", '{"x", "y"}'),
    "a gather with a part of an axis": gather('[{"y":(1)2}, {}, {}]', ROWS, "1, 1, 6", "5x6xf32", '{"y":(1)2}'),
    "a gather of a dimension that no index leads into": gather(
        '[{"x"}, {"z"}, {}]', ROWS.replace("[1, 0]", "[2]"), "1, 1, 6", "5x6xf32", '{"x", "z"}', "5x1xi64"
    ),
    "a gather by scalars": gather('[{"x"}, {}, {}]', ROWS.replace("[1, 0]", "[0]"), "1, 1, 6", "5x6xf32", '{"x"}', "5xi64"),
    "a scatter into parts": scatter('[{"y"}, {}]', "[{}, {}]", "[{}, {}]", '[{"y"}, {}]'),
    "a scatter of parts": scatter("[{}, {}]", '[{"x"}, {}]', '[{"x"}, {}]'),
    "a scatter of parts into parts": scatter('[{"y"}, {}]', '[{"x"}, {}]', '[{"x"}, {}]', '[{"y"}, {}]'),
    "a scatter of windows": scatter('[{}, {"y"}]', "[{}, {}]", '[{}, {"y"}]', '[{}, {"y"}]'),
    **{
        f"a scatter with {op} of {element}": scatter("[{}, {}]", '[{"x"}, {}]', '[{"x"}, {}]', op=op, element=element)
        for op, element in (
            ("multiply", "f32"),
            ("multiply", "i8"),
            ("maximum", "f32"),
            ("maximum", "i32"),
            ("maximum", "bf16"),
            ("minimum", "f64"),
            ("minimum", "i64"),
            ("maximum", "f8E4M3FN"),
            ("and", "i1"),
            ("or", "i1"),
        )
    },
    "a convolution cut by batch groups": convolution(
        '[{"y"}, {}, {}, {}]', NHWC("y"), NHWC("y"), (1, 8), ("16x8x8x4xf32", "2x2x4x64xf32", "2x4x4x64xf32")
    ),
    "a convolution cut by feature groups": convolution(
        NHWC("y"), NHWC("y"), NHWC("y"), (8, 1), ("2x8x8x16xf32", "2x2x2x64xf32", "2x4x4x64xf32")
    ),
    "a convolution over cut features": convolution(
        NHWC("x"),
        '[{"y"}, {}, {"x"}, {}]'.replace('"y"', ""),
        "[{}, {}, {}, {}]",
        (1, 1),
        ("2x8x8x4xf32", "2x2x4x16xf32", "2x4x4x16xf32"),
        "%1 = " + SUM('{"x"}'),
    ),
    "a dot over cut dimensions": dot_general(
        '[{"z"}, {"x"}, {"y":(1)2}]',
        '[{"x"}, {"y":(1)2}, {}]',
        '%1 = sdy.all_reduce {"x", "y":(1)2} %0 out_sharding=<@m, [{}, {}]> : tensor<8x32xf32>',
    )
    .replace("{foo.bar", f"{{{ON_Z_O}, foo.bar")
    .replace("@m, [{}, {}]> : tensor<8x32", '@m, [{"z"}, {}]> : tensor<8x32'),
    "a window": module(
        f"{A}, %b: tensor<f32>",
        f'%0 = "stablehlo.reduce_window"(%a, %b) {reducer("maximum")} {{window_dimensions = array<i64: 1, 1>, '
        f"window_dilations = array<i64: 3, 1>, {ON_X_Y}}} : (tensor<16x8xf32>, tensor<f32>) -> tensor<16x8xf32>",
    ),
    "a concatenation": module(
        A.replace('{"y"}', "{}"),
        f"%0 = stablehlo.concatenate %a, %a, dim = 1 {{{ON_X_O}}} : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<16x16xf32>",
    ),
}


@NEEDS_SAME_SHARDY
@pytest.mark.parametrize("text", SAME.values(), ids=SAME)
def test_as_jaxlib(text: str) -> None:
    assert normal(run_passes(text, NAME)) == jaxlib_text(text, NAME)


@NEEDS_SAME_SHARDY
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", ["branches", "manual and named", "calls and channels in use", "all-to-all of three pairs"])
def test_options_as_jaxlib(name: str, options: str) -> None:
    assert normal(run_passes(SAME[name], NAME + options)) == jaxlib_text(SAME[name], NAME + options)


@NEEDS_SAME_SHARDY
@pytest.mark.parametrize("kind", KINDS)
def test_random_modules_as_jaxlib(kind: str) -> None:
    compared = 0
    for seed in range(60):
        text, options = random_module(kind, seed)
        if has_reshard(text):
            continue
        mine = converted(text, options)
        if mine is None:
            continue
        assert normal(mine) == jaxlib_text(text, NAME + options), text
        compared += 1
    assert compared >= 25


def converted(text: str, options: str) -> str | None:
    """A module after the pass; None where nothing is to be done or no splitting of an axis allows it, and jaxlib aborts."""
    try:
        return run_passes(text, NAME + options)
    except ShardyError as error:
        if any(part in str(error) for part in ("does not move anything", "scatters along no axis", "no splitting of the axis")):
            return None
        raise


CASES = [pytest.param(case, id=case["id"]) for case in corpus(NAME) if case["status"] == "ok"]


@pytest.mark.filterwarnings("ignore:op 'interpreter.print' is not known")
@pytest.mark.parametrize("case", CASES)
def test_golden(case: dict[str, Any]) -> None:
    assert normal(run_passes(case["input"], case["pipeline"])) == normal(case["output"])


def body(text: str, options: str = "") -> list[str]:
    """The lines in the only function."""
    lines = run_passes(text, NAME + options).splitlines()
    return [line.strip() for line in lines[3:-2]]


def test_offsets_are_looked_up_by_device() -> None:
    text = module("%a: tensor<16x8xf32>", '%0 = sdy.all_slice [{}, {"z", "x"}] %a out_sharding=<@m, [{}, {"z", "x"}]> : tensor<16x8xf32>')
    assert body(text) == [
        "%c = stablehlo.constant dense<0> : tensor<i64>",
        "%0 = stablehlo.partition_id : tensor<ui32>",
        "%1 = stablehlo.convert %0 : (tensor<ui32>) -> tensor<i64>",
        "%c_0 = stablehlo.constant dense<[0, 4, 0, 4, 0, 4, 0, 4, 2, 6, 2, 6, 2, 6, 2, 6]> : tensor<16xi64>",
        "%2 = stablehlo.dynamic_slice %c_0, %1, sizes = [1] : (tensor<16xi64>, tensor<i64>) -> tensor<1xi64>",
        "%3 = stablehlo.reshape %2 : (tensor<1xi64>) -> tensor<i64>",
        "%4 = stablehlo.dynamic_slice %arg0, %c, %3, sizes = [16, 2] : (tensor<16x8xf32>, tensor<i64>, tensor<i64>) -> tensor<16x2xf32>",
        "return",
    ]


def test_several_dimensions_are_gathered_over_a_new_one() -> None:
    text = module(A, '%0 = sdy.all_gather [{"x"}, {"y"}] %a out_sharding=<@m, [{}, {}]> : tensor<16x8xf32>')
    head = '%1 = "stablehlo.all_gather"(%0) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>'
    groups = "dense<[[0, 2, 4, 6, 8, 10, 12, 14], [1, 3, 5, 7, 9, 11, 13, 15]]> : tensor<2x8xi64>"
    assert body(text) == [
        "%0 = stablehlo.reshape %arg0 : (tensor<8x2xf32>) -> tensor<1x8x2xf32>",
        f"{head}, replica_groups = {groups}, use_global_device_ids}}> : (tensor<1x8x2xf32>) -> tensor<8x8x2xf32>",
        "%2 = stablehlo.reshape %1 : (tensor<8x8x2xf32>) -> tensor<2x4x8x2xf32>",
        "%3 = stablehlo.transpose %2, dims = [0, 2, 1, 3] : (tensor<2x4x8x2xf32>) -> tensor<2x8x4x2xf32>",
        "%4 = stablehlo.reshape %3 : (tensor<2x8x4x2xf32>) -> tensor<16x8xf32>",
        "return",
    ]
    one_by_one = body(text, "{per-dim-all-gather=true}")
    assert [line.split(" : ")[-1] for line in one_by_one] == [
        "(tensor<8x2xf32>) -> tensor<8x8xf32>",
        "(tensor<8x8xf32>) -> tensor<16x8xf32>",
        "return",
    ]
    named = body(text, "{enable-rgv3=true}")[1]
    assert 'replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @m, axes = [#sdy<axis_ref"x">, #sdy<axis_ref"y">]>' in named


def test_manual_computations_are_inlined_and_shardings_stay() -> None:
    text = module(
        A,
        '%0 = sdy.manual_computation(%a) in_shardings=[<@m, [{"x"}, {"y"}]>] out_shardings=[<@m, [{"x"}, {"y"}]>] manual_axes={"x"} '
        "(%b: tensor<8x8xf32>) {",
        f"%1 = stablehlo.abs %b {{{ON_O_Y}}} : tensor<8x8xf32>",
        "sdy.return %1 : tensor<8x8xf32> } : (tensor<16x8xf32>) -> tensor<16x8xf32>",
        f"%2 = stablehlo.sine %0 {{{ON_X_Y}}} : tensor<16x8xf32>",
    )
    assert body(text) == [
        f"%0 = stablehlo.abs %arg0 {{{ON_O_Y}}} : tensor<8x2xf32>",
        f"%1 = stablehlo.sine %0 {{{ON_X_Y}}} : tensor<8x2xf32>",
        "return",
    ]


def test_a_program_without_kept_text_is_converted_too() -> None:
    program = from_mlir(SAME["a gather of two dimensions"])
    ConvertGlobalToLocal().run(program)
    ops = [op for op in program.main.body.ops if op.name == "stablehlo.gather"]
    assert [op.attributes["slice_sizes"] for op in ops] == [(1, 1, 6)]
    assert str(program.main.arguments[0].type) == "float32[4,2,6]"


def test_device_groups() -> None:
    mesh = Mesh([("x", 2), ("y", 4)], [3, 1, 2, 0, 7, 5, 6, 4])
    assert device_groups((AxisRef("y", 2, 2),), mesh) == ((3, 1), (2, 0), (7, 5), (6, 4))
    assert device_groups((AxisRef("y", 1, 2), AxisRef("x")), mesh) == ((3, 7, 2, 6), (1, 5, 0, 4))
    assert remaining_axes([AxisRef("y", 1, 2)], mesh) == (AxisRef("x"), AxisRef("y", 2, 2))


def test_no_op_is_in_two_tables() -> None:
    assert not ALWAYS.keys() & WHERE_CUT.keys()
