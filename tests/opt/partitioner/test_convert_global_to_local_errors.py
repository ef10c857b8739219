"""Modules that `sdy-convert-global-to-local` refuses, and those that it converts where jaxlib fails."""

from __future__ import annotations

import pytest

from shardy_py.errors import ShardyError
from shardy_py.opt import run_passes

NAME = "sdy-convert-global-to-local"
MESH = 'sdy.mesh @m = <["x"=2, "y"=4, "p"=6]>\n'
F = "tensor<16x8xf32>"
ROWS = '{sdy.sharding = #sdy.sharding<@m, [{"x"}, {}]>}'
COLUMNS = '{sdy.sharding = #sdy.sharding<@m, [{}, {"x"}]>}'
SWAPPED = '{sdy.sharding = #sdy.sharding<@m, [{"y"}, {"x"}]>}'
ON_ROWS = 'sdy.sharding = #sdy.sharding_per_value<[<@m, [{"x"}, {}]>]>'
REDUCER = """({^bb0(%p: tensor<EL>, %q: tensor<EL>):
    %r = stablehlo.OP %p, %q : tensor<EL>
    stablehlo.return %r : tensor<EL> })"""


def module(arguments: str, *lines: str) -> str:
    """A function of these lines."""
    body = "\n  ".join(lines)
    return f"{MESH}func.func @main({arguments}) {{\n  {body}\n  return\n}}\n"


A = f"%a: {F} {ROWS}"
WINDOW = f"""%0 = "stablehlo.reduce_window"(%a, %b) {REDUCER.replace("EL", "f32").replace("OP", "add")}
    {{window_dimensions = array<i64: 2, 1>, window_strides = array<i64: 2, 1>, {ON_ROWS}}} : ({F}, tensor<f32>) -> tensor<8x8xf32>"""
DOT = f"%0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [1] : ({F}, {F}) -> tensor<16x16xf32>"
LOOKUP = f"""%0 = "stablehlo.gather"(%a, %i) {{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0],
    start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 8>}} : ({F}, tensor<4xi64>) -> tensor<4x8xf32>"""
CONVOLUTION = """%0 = stablehlo.convolution(%c, %d) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {}
    {feature_group_count = 1 : i64, batch_group_count = 2 : i64} :
    (tensor<16x4x4x4xf32>, tensor<2x2x4x8xf32>) -> tensor<8x3x3x8xf32>"""
BATCHED = '%c: tensor<16x4x4x4xf32> {sdy.sharding = #sdy.sharding<@m, [{"y"}, {}, {}, {}]>}, %d: tensor<2x2x4x8xf32>'


def all_reduce(axes: str, type_: str) -> str:
    """An all-reduce of %0."""
    return f"%1 = sdy.all_reduce {{{axes}}} %0 out_sharding=<@m, [{{}}, {{}}]> : {type_}"


def scatter(op: str, element: str) -> str:
    """A scatter of updates that are cut."""
    cut = '{sdy.sharding = #sdy.sharding<@m, [{"x"}, {}]>}'
    line = f"""%0 = "stablehlo.scatter"(%b, %i, %u) {REDUCER.replace("EL", element).replace("OP", op)}
    {{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0],
    scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}
    : (tensor<8x4x{element}>, tensor<6x1xi32>, tensor<6x4x{element}>) -> tensor<8x4x{element}>"""
    return module(f"%b: tensor<8x4x{element}>, %i: tensor<6x1xi32> {cut}, %u: tensor<6x4x{element}> {cut}", line)


REFUSED: dict[str, tuple[str, str]] = {
    "uneven": (
        module('%a: tensor<15x8xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {}]>}'),
        "Failed to compute local type due to non-divisible sharding",
    ),
    "reshard": (module(A, f'%0 = sdy.reshard %a <@m, [{{"y"}}, {{}}]> : {F}'), "'sdy.reshard' op has no local form"),
    "elementwise": (module(A, f"%0 = stablehlo.tanh %a : {F}"), "has operands and results that are cut along other axes"),
    "returned": (
        f"{MESH}func.func @main({A}) -> {F} {{ return %a : {F} }}",
        "result 0 of function 'main' is cut along other axes than the value that is returned",
    ),
    "group": (module(A, f"sdy.sharding_group %a group_id=3 : {F}"), "'sdy.sharding_group' op has no local form"),
    "no gather": (module(A, f'%0 = sdy.all_gather [{{}}, {{}}] %a out_sharding=<@m, [{{"x"}}, {{}}]> : {F}'), "gathers along no axis"),
    "no scatter": (
        module(A, f'%0 = sdy.reduce_scatter [{{}}, {{}}] %a out_sharding=<@m, [{{"x"}}, {{}}]> : {F}'),
        "scatters along no axis",
    ),
    "no permute": (module(A, f'%0 = sdy.collective_permute %a out_sharding=<@m, [{{"x"}}, {{}}]> : {F}'), "does not move anything"),
    "parts that do not fit": (
        module(
            '%a: tensor<12x8xf32> {sdy.sharding = #sdy.sharding<@m, [{"p":(1)2}, {}]>}',
            '%0 = sdy.collective_permute %a out_sharding=<@m, [{"p":(3)2}, {}]> : tensor<12x8xf32>',
        ),
        "cuts an axis at places that no splitting of the axis has together",
    ),
    "concatenation": (
        module(A, f"%0 = stablehlo.concatenate %a, %a, dim = 0 {{{ON_ROWS}}} : ({F}, {F}) -> tensor<32x8xf32>"),
        "dimension 0 is sharded but the concatenation is on this dimension.",
    ),
    "concatenation of one": (
        module(A, f"%0 = stablehlo.concatenate %a, %a, dim = 0 : ({F}, {F}) -> tensor<32x8xf32>"),
        "operand 0 is sharded on concatenation dimension 0. This is not supported.",
    ),
    "slice": (
        module(A, f"%0 = stablehlo.slice %a [0:8, 0:8] {{{ON_ROWS}}} : ({F}) -> tensor<8x8xf32>"),
        "dimension 0 is sharded but the slice is not a full slice and requires device communication.",
    ),
    "slice in steps that do not divide the parts": (
        module(A, f"%0 = stablehlo.slice %a [0:16:3, 0:8] {{{ON_ROWS}}} : ({F}) -> tensor<6x8xf32>"),
        "dimension 0 is sharded but the slice is not a full slice and requires device communication.",
    ),
    "slice to other axes": (
        module(A, f"%0 = stablehlo.slice %a [0:16, 0:4] : ({F}) -> tensor<16x4xf32>"),
        'dimension 0 has mismatched sharding axes ([axis_ref"x"] vs []).',
    ),
    "pad to other axes": (
        module(
            f"{A}, %b: tensor<f32>",
            f"%0 = stablehlo.pad %a, %b, low = [0, 1], high = [0, 0], interior = [0, 0] : ({F}, tensor<f32>) -> tensor<16x9xf32>",
        ),
        "dimension 0 has mismatched sharding axes",
    ),
    "dynamic slice": (
        module(
            f"{A}, %i: tensor<i32>",
            f"%0 = stablehlo.dynamic_slice %a, %i, %i, sizes = [8, 8] {{{ON_ROWS}}} : ({F}, tensor<i32>, tensor<i32>) -> tensor<8x8xf32>",
        ),
        "dimension 0 is sharded but the slice is not a full slice",
    ),
    "dynamic update": (
        module(
            f"{A}, %u: tensor<2x8xf32>, %i: tensor<i32>",
            f"%0 = stablehlo.dynamic_update_slice %a, %u, %i, %i {{{ON_ROWS}}} : ({F}, tensor<2x8xf32>, tensor<i32>, tensor<i32>) -> {F}",
        ),
        "dimension 0 is sharded but the slice is not a full slice",
    ),
    "window": (
        module(f"{A}, %b: tensor<f32>", WINDOW),
        "In op stablehlo.reduce_window dimension 0 is sharded but is not a pass-through dimension.",
    ),
    "dot without a sum": (
        module(f"%a: {F} {COLUMNS}, %b: {F} {COLUMNS}", DOT),
        "Expected sharded contracting dot_general to have one user and the user is an sdy.all_reduce.",
    ),
    "dot with another sum": (
        module(f"%a: {F} {COLUMNS}, %b: {F} {COLUMNS}", DOT, all_reduce('"y"', "tensor<16x16xf32>")),
        "The axes of the sdy.all_reduce should match the sharded contracting dimensions of the dot_general.",
    ),
    "dot of other parts": (
        module(f"%a: {F} {COLUMNS}, %b: {F}", DOT, all_reduce('"x"', "tensor<16x16xf32>")),
        "contracts dimension 1 of its first operand with dimension 1 of its second, which are cut along other axes",
    ),
    "gather without a sum": (module(f"{A}, %i: tensor<4xi64>", LOOKUP), "Expected a gather from sharded dimensions to have one user"),
    "gather with another sum": (
        module(f"{A}, %i: tensor<4xi64>", LOOKUP, all_reduce('"y"', "tensor<4x8xf32>")),
        "The axes of the sdy.all_reduce should match the sharded collapsed operand dimensions of the gather.",
    ),
    "gather of some": (
        module(
            f"{A}, %i: tensor<4xi64>",
            LOOKUP.replace("collapsed_slice_dims = [0],", "")
            .replace("offset_dims = [1]", "offset_dims = [1, 2]")
            .replace("1, 8>", "2, 8>")
            .replace("<4x8", "<4x2x8"),
        ),
        "takes slices of size 2 from dimension 0, which is sharded",
    ),
    "scatter of another reduction": (scatter("xor", "i32"), "failed to get scatter reduction identity."),
    "convolution with few groups": (module(BATCHED, CONVOLUTION), "has a batch_group_count of 2 that its sharding does not divide"),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(ShardyError) as caught:
        run_passes(text, NAME)
    assert message in str(caught.value)
    assert caught.value.fix
    assert caught.value.where


def test_an_error_says_where_and_why() -> None:
    with pytest.raises(ShardyError) as caught:
        run_passes(REFUSED["concatenation"][0], NAME)
    assert str(caught.value).splitlines() == [
        "'stablehlo.concatenate' op dimension 0 is sharded but the concatenation is on this dimension.",
        "  where: 'stablehlo.concatenate' at -:3",
        "  fix: run sdy-resolve-permutation-factors before sdy-convert-global-to-local",
        "  note: failed to legalize operation 'stablehlo.concatenate' that was explicitly marked illegal",
    ]


CALL = f"""{MESH}func.func private @f(%a: {F} {ROWS}) -> ({F} {ROWS}) {{ return %a : {F} }}
func.func @main(%a: {F} {ROWS}) -> ({F} {ROWS}) {{
  %0 = call @f(%a) {{{ON_ROWS}}} : ({F}) -> {F}
  return %0 : {F} }}
"""

MORE: dict[str, tuple[str, str]] = {
    "constant": (
        module("", f"%0 = stablehlo.constant {{{ON_ROWS}}} dense<3> : tensor<2x8xi32>"),
        "stablehlo.constant dense<3> : tensor<1x8xi32>",
    ),
    "dynamic slice": (
        module(
            f"{A}, %i: tensor<i32>",
            f"%0 = stablehlo.dynamic_slice %a, %i, %i, sizes = [16, 4] {{{ON_ROWS}}} : ({F}, tensor<i32>, tensor<i32>) -> tensor<16x4xf32>",
        ),
        "sizes = [8, 4]",
    ),
    "indices of another type": (
        module(f"{A}, %i: tensor<4xi32>", LOOKUP.replace("4xi64", "4xi32"), all_reduce('"x"', "tensor<4x8xf32>")),
        "stablehlo.clamp %c, %arg1, %c_0 : tensor<4xi32>",
    ),
    "complex updates": (scatter("add", "complex<f32>"), "stablehlo.constant dense<(0.000000e+00,0.000000e+00)> : tensor<complex<f32>>"),
    "unsigned maximum": (scatter("maximum", "ui8"), "stablehlo.constant dense<0> : tensor<ui8>"),
    "maximum of bool": (scatter("maximum", "i1"), "stablehlo.constant dense<false> : tensor<i1>"),
    "a sum that is scattered": (
        module(
            f"%a: {F} {COLUMNS}, %b: {F} {COLUMNS}",
            DOT,
            '%1 = sdy.reduce_scatter [{"x"}, {}] %0 out_sharding=<@m, [{"x"}, {}]> : tensor<16x16xf32>',
        ),
        "(tensor<16x16xf32>) -> tensor<8x16xf32>",
    ),
    "axes of a dot in another order": (
        module(
            f"%a: tensor<8x8xf32> {SWAPPED}, %b: tensor<8x8xf32> {SWAPPED}",
            "%0 = stablehlo.dot_general %a, %b, contracting_dims = [0, 1] x [0, 1] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<f32>",
            '%1 = sdy.all_reduce {"x", "y"} %0 out_sharding=<@m, []> : tensor<f32>',
        ),
        "(tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<f32>",
    ),
    "call": (
        CALL,
        "call @f(%arg0) : (tensor<8x8xf32>) -> tensor<8x8xf32>",
    ),
}


@pytest.mark.parametrize(("text", "part"), MORE.values(), ids=MORE)
def test_converted_where_jaxlib_fails(text: str, part: str) -> None:
    assert part in run_passes(text, NAME)


def test_a_combined_reduce_scatter_of_some_dimensions() -> None:
    text = module(
        "%a: tensor<8x8x8xf32>", '%0 = sdy.reduce_scatter [{"y"}, {}, {"x"}] %a out_sharding=<@m, [{"y"}, {}, {"x"}]> : tensor<8x8x8xf32>'
    )
    types = [
        line.split(" -> ")[-1]
        for line in run_passes(text, NAME + "{combine-multi-dimension-reduce-scatter=true}").splitlines()
        if " -> " in line
    ]
    assert types == ["tensor<4x2x8x2x4xf32>", "tensor<4x2x2x8x4xf32>", "tensor<8x2x8x4xf32>", "tensor<1x2x8x4xf32>", "tensor<2x8x4xf32>"]


def test_a_mesh_without_a_name_has_lists_of_devices() -> None:
    line = f'%0 = sdy.all_gather [{{"o"}}, {{}}] %a out_sharding=<mesh<["o"=2, "q"=2]>, [{{}}, {{}}]> : {F}'
    text = module(f'%a: {F} {{sdy.sharding = #sdy.sharding<mesh<["o"=2, "q"=2]>, [{{"o"}}, {{}}]>}}', line)
    assert "dense<[[0, 2], [1, 3]]>" in run_passes(text, NAME + "{enable-rgv3=true}")


def test_a_scatter_of_several_inputs() -> None:
    cut = '{sdy.sharding = #sdy.sharding<@m, [{"x"}, {}]>}'
    line = """%0:2 = "stablehlo.scatter"(%b, %c, %i, %u, %v) ({^bb0(%p: tensor<f32>, %q: tensor<i32>, %r: tensor<f32>, %s: tensor<i32>):
    %t = stablehlo.add %p, %r : tensor<f32>
    %w = stablehlo.maximum %q, %s : tensor<i32>
    stablehlo.return %t, %w : tensor<f32>, tensor<i32> }) {scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],
    inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}
    : (tensor<8x4xf32>, tensor<8x4xi32>, tensor<6x1xi32>, tensor<6x4xf32>, tensor<6x4xi32>) -> (tensor<8x4xf32>, tensor<8x4xi32>)"""
    arguments = f"%b: tensor<8x4xf32>, %c: tensor<8x4xi32>, %i: tensor<6x1xi32> {cut}, %u: tensor<6x4xf32> {cut}, %v: tensor<6x4xi32> {cut}"
    made = run_passes(module(arguments, line), NAME)
    assert "dense<0.000000e+00> : tensor<f32>" in made
    assert "dense<-2147483648> : tensor<i32>" in made
    assert made.count("stablehlo.select") == 2
