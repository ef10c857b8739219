"""Rules of every op over many shapes and parameters, against the rules that jaxlib's Shardy attaches."""

from __future__ import annotations

import itertools
import json
import os
import pathlib

import pytest

from shardy_py.dialect import Semantics
from shardy_py.rules import elementwise
from shardy_py.rules.custom_call import NO_RULE_TARGETS, TARGETS
from tests.rules.mlir_text import COMPARE, Slicing, array, body, combiner, comparator, function, gather, pairs, scatter, tensor
from tests.rules.reference import POPULATE, check, differences, run_passes

SHAPES = [(), (4,), (1,), (2, 1, 4), (0, 3), (3, 8, 5, 2), (2,) * 9]

BITWISE = "and count_leading_zeros not or popcnt shift_left shift_right_arithmetic shift_right_logical xor".split()
BINARY = (
    "add and atan2 divide maximum minimum multiply or power remainder shift_left shift_right_arithmetic shift_right_logical subtract xor"
).split()


def pointwise_function(name: str, shape: tuple[int, ...]) -> str:
    short = name.removeprefix("stablehlo.")
    element = "i32" if short in BITWISE else "f32"
    operands = [(shape, element)] * (2 if short in (*BINARY, "compare", "complex") else 1)
    result, attributes = element, ""
    if short == "compare":
        result, attributes = "i1", "comparison_direction = #stablehlo<comparison_direction GE>"
    elif short == "complex":
        result = "complex<f32>"
    elif short in ("real", "imag"):
        operands = [(shape, "complex<f32>")]
    elif short == "convert":
        result = "bf16"
    elif short == "is_finite":
        result = "i1"
    elif short == "reduce_precision":
        attributes = "exponent_bits = 5 : i32, mantissa_bits = 2 : i32"
    return function(name, operands, [(shape, result)], attributes)


WITH_SCALARS = ("stablehlo.clamp", "stablehlo.select")


def test_pointwise() -> None:
    check(
        pointwise_function(name, shape)
        for name in elementwise.RULES
        if name.startswith("stablehlo.") and name not in WITH_SCALARS
        for shape in SHAPES
    )


def test_clamp_and_select() -> None:
    functions = []
    for shape in SHAPES:
        for low, high in itertools.product((shape, ()), repeat=2):
            functions.append(function("stablehlo.clamp", [(low, "f32"), (shape, "f32"), (high, "f32")], [(shape, "f32")]))
        for predicate in (shape, ()):
            functions.append(function("stablehlo.select", [(predicate, "i1"), (shape, "f32"), (shape, "f32")], [(shape, "f32")]))
    check(functions)


def test_sharding_constraint() -> None:
    mesh = 'sdy.mesh @mesh = <["a"=2]>'
    dims = [", ".join(["{?}"] * len(shape)) for shape in SHAPES]
    check([mesh, *(body(f"%a: {tensor(s)}\n%0 = sdy.sharding_constraint %a <@mesh, [{d}]> : {tensor(s)}") for s, d in zip(SHAPES, dims))])


def test_broadcast_in_dim() -> None:
    cases = [
        ((), (), ()),
        ((), (2, 1, 3), ()),
        ((1,), (4,), (0,)),
        ((1,), (1,), (0,)),
        ((1,), (4, 1), (1,)),
        ((2, 13, 1), (2, 64, 13, 1), (0, 2, 3)),
        ((2, 13, 1), (2, 64, 13, 7), (0, 2, 3)),
        ((2, 3, 5, 1, 7), (2, 5, 3, 11, 7, 13), (0, 2, 1, 3, 4)),
        ((0, 3), (4, 0, 3), (1, 2)),
        ((1, 3), (0, 3), (0, 1)),
        ((3, 2), (2, 3), (1, 0)),
    ]
    check(
        function("stablehlo.broadcast_in_dim", [(a, "f32")], [(b, "f32")], f"broadcast_dimensions = {array(dims)}") for a, b, dims in cases
    )


def test_transpose_and_reverse() -> None:
    functions = []
    for shape in ((), (5,), (2, 3), (2, 1, 4), (0, 2, 3)):
        for order in itertools.permutations(range(len(shape))):
            result = tuple(shape[i] for i in order)
            functions.append(function("stablehlo.transpose", [(shape, "f32")], [(result, "f32")], f"permutation = {array(order)}"))
        for count in range(len(shape) + 1):
            for dims in itertools.combinations(range(len(shape)), count):
                functions.append(function("stablehlo.reverse", [(shape, "f32")], [(shape, "f32")], f"dimensions = {array(dims)}"))
    check(functions)


def test_bitcast_convert() -> None:
    check(
        function("stablehlo.bitcast_convert", [a], [b])
        for a, b in [
            (((4, 2, 2), "ui32"), ((4, 2), "ui64")),
            (((4, 2), "ui64"), ((4, 2, 2), "ui32")),
            (((4, 2), "f32"), ((4, 2), "i32")),
            (((), "i32"), ((), "f32")),
            (((), "i32"), ((4,), "i8")),
            (((8,), "i8"), ((), "i64")),
            (((0, 4), "i8"), ((0,), "i32")),
        ]
    )


RESHAPES = [
    ((), ()),
    ((), (1,)),
    ((1, 1), ()),
    ((1, 1), (1,)),
    ((4, 0), (0, 8)),
    ((6,), (2, 3)),
    ((3, 2), (2, 3)),
    ((6, 4), (4, 6)),
    ((5, 2, 5, 3), (5, 3, 5, 2)),
    ((2, 3, 8), (3, 4, 4)),
    ((4, 7, 5, 8), (14, 10, 8)),
    ((1, 8, 4), (8, 1, 4, 1)),
    ((12, 10), (10, 12)),
    ((9, 4, 25), (6, 6, 5, 5)),
    ((2, 2, 2, 2, 2, 2), (4, 16)),
    ((30, 7), (7, 30)),
    ((2, 1, 3, 1, 5), (1, 30, 1)),
    ((64, 49, 3), (3, 7, 64, 7)),
]


def test_reshape() -> None:
    check(function("stablehlo.reshape", [(x, "f32")], [(y, "f32")]) for a, b in RESHAPES for x, y in ((a, b), (b, a)))


def test_slice_and_pad() -> None:
    functions = []
    for shape, start, limit, strides in [
        ((8,), (0,), (8,), (1,)),
        ((8,), (1,), (7,), (2,)),
        ((8, 4), (0, 1), (8, 1), (1, 1)),
        ((8, 1, 4), (0, 0, 2), (8, 1, 3), (8, 1, 1)),
        ((), (), (), ()),
    ]:
        result = tuple(-(-(high - low) // stride) for low, high, stride in zip(start, limit, strides))
        text = f"start_indices = {array(start)}, limit_indices = {array(limit)}, strides = {array(strides)}"
        functions.append(function("stablehlo.slice", [(shape, "f32")], [(result, "f32")], text))
    for shape, low, high, inner in [
        ((8,), (0,), (0,), (0,)),
        ((8,), (1,), (-1,), (0,)),
        ((4, 4, 1), (0, -3, -1), (-3, 0, 1), (1, 1, 0)),
        ((1, 4), (0, 0), (0, 0), (5, 0)),
        ((28, 28, 16), (1, -1, 0), (1, -1, 0), (0, 0, 0)),
        ((3, 1), (0, 2), (0, 0), (1, 0)),
        ((0,), (3,), (1,), (2,)),
        ((), (), (), ()),
    ]:
        result = tuple(lo + hi + n + max(n - 1, 0) * i for n, lo, hi, i in zip(shape, low, high, inner))
        text = f"edge_padding_low = {array(low)}, edge_padding_high = {array(high)}, interior_padding = {array(inner)}"
        functions.append(function("stablehlo.pad", [(shape, "f32"), ((), "f32")], [(result, "f32")], text))
    check(functions)


def test_concatenate() -> None:
    functions = []
    for shapes, dim in [
        ([(4,)], 0),
        ([(4,), (4,)], 0),
        ([(4, 3, 2), (4, 5, 2)], 1),
        ([(4, 0, 2), (4, 5, 2)], 1),
        ([(1, 3)] * 5, 0),
    ]:
        result = (*shapes[0][:dim], sum(s[dim] for s in shapes), *shapes[0][dim + 1 :])
        functions.append(function("stablehlo.concatenate", [(s, "f32") for s in shapes], [(result, "f32")], f"dimension = {dim} : i64"))
    check(functions)


@pytest.mark.parametrize(
    ("operands", "size"),
    [
        ("%x, %x", 16),
        ("%s, %t", 8),
        ("%s, %u", 8),
        ("%s, %x", 12),
        ("%x, %s", 12),
        ("%x, %s, %x, %t", 24),
        ("%s, %y", 12),
        ("%y, %s", 12),
        ("%u, %x", 12),
        ("%s", 4),
        ("%ss, %s", 6),
        ("%ss, %x", 10),
        ("%ss, %sn", 6),
        ("%sn, %n", 12),
        ("%n, %x", 16),
        ("%n, %sn, %s", 16),
    ],
)
def test_concatenate_of_slices(operands: str, size: int) -> None:
    sizes = {"%ss": 2, "%s": 4, "%t": 4, "%u": 4, "%sn": 4}
    types = ", ".join(f"tensor<{sizes.get(name, 8)}xf32>" for name in operands.split(", "))
    text = f"""%x: tensor<8xf32>, %y: tensor<8xf32>
      %n = stablehlo.negate %x : tensor<8xf32>
      %s = stablehlo.slice %x [0:4] : (tensor<8xf32>) -> tensor<4xf32>
      %t = stablehlo.slice %x [4:8] : (tensor<8xf32>) -> tensor<4xf32>
      %u = stablehlo.slice %y [4:8] : (tensor<8xf32>) -> tensor<4xf32>
      %ss = stablehlo.slice %s [0:2] : (tensor<4xf32>) -> tensor<2xf32>
      %sn = stablehlo.slice %n [0:4] : (tensor<8xf32>) -> tensor<4xf32>
      %0 = "stablehlo.concatenate"({operands}) {{dimension = 0 : i64}} : ({types}) -> tensor<{size}xf32>"""
    check(body(text))


def test_dynamic_slice_and_update() -> None:
    functions = []
    for shape, part in [((), ()), ((8,), (8,)), ((8,), (1,)), ((32, 4, 8), (32, 1, 2)), ((4, 1, 6), (2, 1, 6)), ((4, 4), (0, 4))]:
        starts = [((), "i32")] * len(shape)
        functions.append(function("stablehlo.dynamic_slice", [(shape, "f32"), *starts], [(part, "f32")], f"slice_sizes = {array(part)}"))
        functions.append(function("stablehlo.dynamic_update_slice", [(shape, "f32"), (part, "f32"), *starts], [(shape, "f32")]))
    check(functions)


@pytest.mark.parametrize("starts", ["%c, %c", "%c, %i", "%i, %i", "%d, %c", "%n, %c", "%r, %c"])
def test_dynamic_update_slice_with_constant_starts(starts: str) -> None:
    text = f"""%x: tensor<8x6xf32>, %u: tensor<8x2xf32>, %i: tensor<i32>
      %c = stablehlo.constant dense<1> : tensor<i32>
      %d = sdy.constant dense<1> : tensor<i32>
      %n = stablehlo.negate %c : tensor<i32>
      %o = stablehlo.constant dense<1> : tensor<1xi32>
      %r = stablehlo.reshape %o : (tensor<1xi32>) -> tensor<i32>
      %0 = stablehlo.dynamic_update_slice %x, %u, {starts} :
        (tensor<8x6xf32>, tensor<8x2xf32>, tensor<i32>, tensor<i32>) -> tensor<8x6xf32>"""
    check(body(text))


def test_dot() -> None:
    cases = [((32,), (32,), ()), ((32,), (32, 16), (16,)), ((8, 32), (32,), (8,)), ((8, 32), (32, 16), (8, 16)), ((1, 1), (1, 1), (1, 1))]
    check(function("stablehlo.dot", [(a, "f32"), (b, "f32")], [(c, "f32")]) for a, b, c in cases)


def test_collectives() -> None:
    groups = "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>"
    channel = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>"
    functions = []
    for count in (1, 2):
        two, wide = ((4, 2), "f32"), ((4, 4), "f32")
        functions += [
            function("stablehlo.all_gather", [two] * count, [wide] * count, f"all_gather_dim = 1 : i64, {groups}, {channel}"),
            function("stablehlo.all_reduce", [two] * count, [two] * count, f"{groups}, {channel}", combiner()),
            function(
                "stablehlo.all_to_all",
                [two] * count,
                [((2, 4), "f32")] * count,
                f"split_dimension = 0 : i64, concat_dimension = 1 : i64, split_count = 2 : i64, {groups}, {channel}",
            ),
            function(
                "stablehlo.all_to_all",
                [two] * count,
                [two] * count,
                f"split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 2 : i64, {groups}, {channel}",
            ),
        ]
    two, wide = ((4, 2, 3), "f32"), ((4, 4, 3), "f32")
    functions += [
        function("stablehlo.reduce_scatter", [wide], [two], f"scatter_dimension = 1 : i64, {groups}, {channel}", combiner()),
        function("stablehlo.collective_broadcast", [two], [two], f"{groups}, {channel}"),
        function("stablehlo.collective_permute", [two], [two], f"source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>, {channel}"),
        function("stablehlo.cross-replica-sum", [two], [two], groups),
    ]
    check(functions)


def test_reduce() -> None:
    functions = []
    for shape in [(), (5,), (2, 64, 13), (1, 3, 1), (0, 2)]:
        for count in range(len(shape) + 1):
            for dims in itertools.combinations(range(len(shape)), count):
                result = tuple(n for i, n in enumerate(shape) if i not in dims)
                for inputs in (1, 2):
                    operands = [(shape, "f32")] * inputs + [((), "f32")] * inputs
                    text = f"dimensions = {array(dims)}"
                    functions.append(
                        function(
                            "stablehlo.reduce", operands, [(result, "f32")] * inputs, text, combiner("stablehlo.maximum", count=inputs)
                        )
                    )
    check(functions)


def test_batch_norm_inference() -> None:
    shape = (4, 8, 16)
    check(
        function(
            "stablehlo.batch_norm_inference",
            [(shape, "f32"), *[((shape[feature],), "f32")] * 4],
            [(shape, "f32")],
            f"epsilon = 1.0e-3 : f32, feature_index = {feature} : i64",
        )
        for feature in range(3)
    )


def test_sort() -> None:
    functions = []
    for shape in [(5,), (1,), (4, 32, 8), (1, 4, 1), (1, 1, 4), (2, 1), (0, 3)]:
        for dim in range(len(shape)):
            for elements in (["f32"], ["i32", "f32", "i32"]):
                tensors = [(shape, e) for e in elements]
                text = f"dimension = {dim} : i64, is_stable = true"
                functions.append(function("stablehlo.sort", tensors, tensors, text, comparator(elements)))
    check(functions)


@pytest.mark.parametrize("dimension", ["dimension = -1 : i64", ""])
def test_sort_by_a_negative_dimension(dimension: str) -> None:
    """The reference compares -1 with the dimensions as it is, so that nothing is sorted; we count from the end."""
    text = function("stablehlo.sort", [((4, 8), "f32")], [((4, 8), "f32")], dimension, comparator(["f32"]))
    (difference,) = differences(run_passes(text, POPULATE), conservative=False)
    ours, theirs = difference.splitlines()[1:]
    assert ours.split("ours ")[1] == "#sdy.op_sharding_rule<([i, j])->([i, j]) {i=4, j=8} need_replication={j}>"
    assert theirs.split("them ")[1] == "#sdy.op_sharding_rule<([i, j])->([i, j]) {i=4, j=8}>"


def test_linear_algebra() -> None:
    functions = [function("stablehlo.cholesky", [(s, "f32")], [(s, "f32")], "lower = true") for s in [(4, 4), (2, 3, 4, 4), (1, 1)]]
    for batch in [(), (8,), (2, 1)]:
        for left, how in itertools.product((True, False), ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")):
            a, b = (*batch, 3, 3), ((*batch, 3, 5) if left else (*batch, 5, 3))
            text = f"left_side = {str(left).lower()}, lower = true, unit_diagonal = false, transpose_a = #stablehlo<transpose {how}>"
            functions.append(function("stablehlo.triangular_solve", [(a, "f32"), (b, "f32")], [(b, "f32")], text))
    check(functions)


def test_fft() -> None:
    functions = []
    for batch in [(), (8,), (2, 1)]:
        for dims in [(16,), (4, 16), (2, 4, 16), (1,)]:
            half = (*dims[:-1], dims[-1] // 2 + 1)
            for kind, a, b in [
                ("FFT", (dims, "complex<f32>"), (dims, "complex<f32>")),
                ("IFFT", (dims, "complex<f32>"), (dims, "complex<f32>")),
                ("RFFT", (dims, "f32"), (half, "complex<f32>")),
                ("IRFFT", (half, "complex<f32>"), (dims, "f32")),
            ]:
                text = f"fft_type = #stablehlo<fft_type {kind}>, fft_length = {array(dims)}"
                functions.append(function("stablehlo.fft", [((*batch, *a[0]), a[1])], [((*batch, *b[0]), b[1])], text))
    check(functions)


def test_rng_bit_generator() -> None:
    check(
        function(
            "stablehlo.rng_bit_generator", [((n,), "ui64")], [((n,), "ui64"), (s, "ui32")], f"rng_algorithm = #stablehlo<rng_algorithm {a}>"
        )
        for n, a in ((2, "THREE_FRY"), (3, "PHILOX"), (2, "DEFAULT"))
        for s in SHAPES
    )


def custom_call(target: str, operands: list[tuple[tuple[int, ...], str]], results: list[tuple[tuple[int, ...], str]]) -> str:
    return function("stablehlo.custom_call", operands, results, f'call_target_name = "{target}"')


def test_custom_calls() -> None:
    functions = []
    shaped = ("ApproxTopK", "Eigh", "PartialReduce", "ProductOfElementaryHouseholderReflectors", "Qr", "QrDecompositionBlock", "mhlo.topk")
    for target in TARGETS:
        if target not in shaped:
            functions += [custom_call(target, [(s, "f32")], [(s, "f32")]) for s in SHAPES]
    for target in NO_RULE_TARGETS:
        if target != "xla.debug.Log":
            functions += [custom_call(target, [((2, 3), "f32")], [((2, 3), "f32")])]
    functions += [custom_call("my_kernel", [((2, 3), "f32")], [((3,), "f32"), ((), "f32")])]
    for batch in [(), (8,), (2, 0), (1, 3)]:
        for rows, columns in [(4, 4), (5, 3), (1, 1), (1, 4)]:
            matrix, least = ((*batch, rows, columns), "f32"), ((*batch, min(rows, columns)), "f32")
            square = ((*batch, rows, rows), "f32")
            functions += [
                custom_call("Eigh", [square], [square, ((*batch, rows), "f32")]),
                custom_call("Qr", [matrix], [matrix, least]),
                custom_call("QrDecompositionBlock", [matrix], [matrix, least]),
                custom_call("ProductOfElementaryHouseholderReflectors", [matrix, ((*batch, 5), "f32")], [matrix]),
            ]
        for size, k in [(8, 8), (8, 3), (8, 1), (1, 1)]:
            a, b = (*batch, size), (*batch, k)
            functions.append(custom_call("mhlo.topk", [(a, "f32")], [(b, "f32"), (b, "i32")]))
            for target in ("ApproxTopK", "PartialReduce"):
                operands = [(a, "f32"), (a, "i32"), ((), "f32"), ((), "i32")]
                functions.append(custom_call(target, operands, [(b, "f32"), (b, "i32")]))
    check(functions)


def test_x64_combine() -> None:
    head = "%a: tensor<2xui32>, %m: tensor<8x2xui32>\n"
    combine = "%0 = stablehlo.custom_call @X64Combine(%a, %a) : (tensor<2xui32>, tensor<2xui32>) -> tensor<2xui64>\n"
    use = "%1, %2 = stablehlo.rng_bit_generator %0, algorithm = DEFAULT : (tensor<2xui64>) -> (tensor<2xui64>, tensor<4xui32>)"
    check([body(head + combine), body(head + combine + use), body(head + combine + "%3 = stablehlo.negate %0 : tensor<2xui64>\n" + use)])


GATHERS = [
    # operand, indices, offset_dims, collapsed, operand_batching, indices_batching, start_index_map, index_vector_dim, slice_sizes
    ((3, 4, 2, 5), (2, 3, 3), (2, 3, 4), (0,), (), (), (1, 0, 3), 2, (1, 2, 2, 1)),
    ((3, 1, 2), (2, 3, 2), (3,), (0, 1), (), (), (1,), 3, (1, 1, 2)),
    ((5, 3, 7, 4), (7, 5, 3, 2), (3,), (1,), (0, 2), (1, 0), (1, 3), 3, (1, 1, 1, 2)),
    ((5, 3, 7, 4), (7, 2, 5, 3), (3,), (1,), (0, 2), (2, 0), (1, 3), 1, (1, 1, 1, 2)),
    ((10,), (4,), (), (0,), (), (), (0,), 1, (1,)),
    ((10, 6), (4, 1), (1,), (0,), (), (), (0,), 1, (1, 6)),
    ((10, 6), (1,), (0, 1), (), (), (), (0,), 0, (1, 6)),
    ((10, 6), (), (0, 1), (), (), (), (0,), 0, (10, 1)),
]


def test_gather() -> None:
    check(gather(Slicing(*case)) for case in GATHERS)


@pytest.mark.parametrize("inputs", [1, 2])
@pytest.mark.parametrize(
    ("op", "element"),
    [(f"stablehlo.{n}", "f32") for n in ("add", "multiply", "maximum", "minimum", "subtract")]
    + [(f"stablehlo.{n}", e) for n in ("add", "and", "or", "xor") for e in ("i1", "i32")],
)
def test_scatter(op: str, element: str, inputs: int) -> None:
    check(scatter(Slicing(*case), op=op, element=element, inputs=inputs) for case in GATHERS)


@pytest.mark.parametrize(
    "lines",
    [
        "stablehlo.return %r : tensor<f32>",
        "stablehlo.return %l : tensor<f32>",
        "%o = stablehlo.add %r, %l : tensor<f32>\nstablehlo.return %o : tensor<f32>",
        "%o = stablehlo.add %l, %r : tensor<f32>\n%p = stablehlo.add %o, %r : tensor<f32>\nstablehlo.return %p : tensor<f32>",
        "%o = stablehlo.add %l, %r : tensor<f32>\n%p = stablehlo.negate %o : tensor<f32>\nstablehlo.return %p : tensor<f32>",
        "%n = stablehlo.negate %r : tensor<f32>\n%o = stablehlo.add %l, %n : tensor<f32>\nstablehlo.return %o : tensor<f32>",
        "%n = stablehlo.negate %r : tensor<f32>\n%o = stablehlo.add %l, %r : tensor<f32>\nstablehlo.return %o : tensor<f32>",
        "%c = stablehlo.constant dense<1.0> : tensor<f32>\n%o = stablehlo.add %l, %c : tensor<f32>\nstablehlo.return %o : tensor<f32>",
    ],
)
def test_scatter_update_computations(lines: str) -> None:
    text = scatter(Slicing(*GATHERS[0]))
    start, end = text.index("^bb0"), text.index("})")
    check(f"{text[:start]}^bb0(%l: tensor<f32>, %r: tensor<f32>):\n{lines}\n{text[end:]}")


def test_reduce_window() -> None:
    functions = []
    for shape, window, strides, padding, base in [
        ((48, 48, 3), (3, 1, 1), (3, 1, 1), [(0, 0), (2, -2), (0, 0)], (1, 1, 1)),
        ((8, 16), (1, 1), (1, 1), [(-1, 1), (2, -2)], (1, 1)),
        ((8, 16), (1, 1), (1, 1), [(0, 0), (0, 0)], (1, 1)),
        ((8, 16), (1, 1), (2, 1), [(0, 0), (1, 0)], (1, 1)),
        ((8, 16), (1, 1), (1, 1), [(0, 0), (0, 0)], (2, 1)),
        ((8, 16), (2, 16), (1, 1), [(0, 1), (15, 0)], (1, 1)),
    ]:
        result = tuple(((n - 1) * b + 1 + lo + hi - w) // s + 1 for n, w, s, (lo, hi), b in zip(shape, window, strides, padding, base))
        text = f"window_dimensions = {array(window)}, window_strides = {array(strides)}, padding = {pairs(padding)}"
        text += f", base_dilations = {array(base)}"
        for inputs in (1, 2):
            operands = [(shape, "f32")] * inputs + [((), "f32")] * inputs
            functions.append(function("stablehlo.reduce_window", operands, [(result, "f32")] * inputs, text, combiner(count=inputs)))
    plain = [((8, 4), "f32"), ((), "f32")]
    functions.append(function("stablehlo.reduce_window", plain, [((8, 4), "f32")], "window_dimensions = array<i64: 1, 1>", combiner()))
    functions.append(function("stablehlo.reduce_window", plain, [((7, 4), "f32")], "window_dimensions = array<i64: 2, 1>", combiner()))
    check(functions)


def test_select_and_scatter() -> None:
    functions = []
    for shape, window, strides, padding in [
        ((10, 24, 24, 64), (1, 2, 2, 1), (1, 2, 2, 1), [(-1, 0), (0, 0), (0, 0), (0, 0)]),
        ((10, 24), (3, 1), (2, 1), [(1, 1), (0, 0)]),
        ((10, 24), (1, 1), (2, 1), [(0, 0), (0, 0)]),
        ((4, 4), (2, 3), (2, 1), [(0, 0), (1, 1)]),
    ]:
        source = tuple((n + lo + hi - w) // s + 1 for n, w, s, (lo, hi) in zip(shape, window, strides, padding))
        text = f"window_dimensions = {array(window)}, window_strides = {array(strides)}, padding = {pairs(padding)}"
        operands = [(shape, "f32"), (source, "f32"), ((), "f32")]
        functions.append(function("stablehlo.select_and_scatter", operands, [(shape, "f32")], text, f"{COMPARE}, {combiner()}"))
    check(functions)


def corpus() -> list[dict[str, str]]:
    root = pathlib.Path(__file__).resolve().parents[2]
    shared = pathlib.Path(os.environ.get("SHARDY_SHARED", root.parent / "shared"))
    file = shared / "corpus" / "sdy-populate-op-sharding-rules.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.skipif(not corpus(), reason="the golden corpus is not here")
def test_golden_corpus() -> None:
    for case in corpus():
        conservative = "conservative" in case["pipeline"]
        assert differences(case["output"], conservative=conservative, semantics=Semantics("0.10")) == [], case["id"]
