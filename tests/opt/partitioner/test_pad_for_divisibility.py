"""`sdy-pad-for-divisibility` does what jaxlib's does, and more where that one fails."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from jaxlib.mlir.dialects import stablehlo

from shardy_py.errors import ShardyError
from shardy_py.frontends._jax import ir
from shardy_py.opt import run_passes
from shardy_py.opt.from_mlir import from_mlir, parse_module
from shardy_py.opt.partitioner.pad_for_divisibility import PadForDivisibility
from tests.opt.partitioner.random_padded import RandomModule
from tests.passes.oracle import corpus, jaxlib_text
from tests.reference import NEEDS_SAME_SHARDY, SAME_SHARDY

MASKED = ("dot of one that is not zero", "dot of the same twice", "dot after a slice that adds nothing")
PIPELINE = f"func.func({PadForDivisibility.name})"
MESH = 'sdy.mesh @m = <["x"=4, "y"=2]>\n'


def per_value(*dims: str) -> str:
    """The sharding of an op's results."""
    return f"{{sdy.sharding = #sdy.sharding_per_value<[{', '.join(f'<@m, {each}>' for each in dims)}]>}}"


def sliced(shape: str, dims: str) -> str:
    """A line that shards the argument."""
    return f"%0 = sdy.all_slice {dims} %a out_sharding=<@m, {dims}> : tensor<{shape}>"


def module(lines: list[str], arguments: str = "%a: tensor<7x6xf32>", results: str = "", returned: str = "return") -> str:
    """A function of these lines."""
    return f"{MESH}func.func @main({arguments}){results} {{\n  " + "\n  ".join([*lines, returned]) + "\n}\n"


def normal(text: str) -> str:
    """A module as jaxlib prints it."""
    return str(parse_module(text))


CONCATENATE = "%r = stablehlo.concatenate %0, %0, dim = 0 : (tensor<7x6xf32>, tensor<7x6xf32>) -> tensor<14x6xf32>"
X = '[{"x"}, {}]'
XY = '[{"x"}, {"y"}]'
S = sliced("7x6xf32", X)
AT_X_MINOR = per_value('[{}, {"x"}]')
AT_YX = per_value('[{"y"}, {"x"}, {}]')
AT_X_MIDDLE = per_value('[{}, {"x"}, {}]')
AT_X_ONLY = per_value('[{"x"}]')
ABS = f"%e = stablehlo.abs %0 {per_value(X)} : tensor<7x6xf32>"


def dot(left: str, right: str) -> str:
    """A line that contracts dimension 0 of two values."""
    return f"%d = stablehlo.dot_general {left}, {right}, contracting_dims = [0] x [0] {per_value('[{}, {}]')} : (tensor<7x6xf32>, tensor<7x6xf32>) -> tensor<6x6xf32>"  # noqa: E501


def slice_of(bounds: str, shape: str, dims: str) -> str:
    """A line that slices a sharded value."""
    return f"%r = stablehlo.slice %0 [{bounds}] {per_value(dims)} : (tensor<7x6xf32>) -> tensor<{shape}xf32>"


SAME: dict[str, str] = {
    "nothing to pad": module([sliced("7x6xf32", '[{}, {"y"}]')]),
    "gather": module(
        [S, '%1 = sdy.all_gather [{"x"}, {}] %0 out_sharding=<@m, [{}, {}]> : tensor<7x6xf32>'],
        results=" -> tensor<7x6xf32>",
        returned="return %1 : tensor<7x6xf32>",
    ),
    "gather half": module([S, '%1 = sdy.all_gather [{"x":(2)2}, {}] %0 out_sharding=<@m, [{"x":(1)2}, {}]> : tensor<7x6xf32>']),
    "gather what is not padded": module(
        [sliced("7x6xf32", XY), f'%1 = sdy.all_gather [{{}}, {{"y"}}] %0 out_sharding=<@m, {X}> : tensor<7x6xf32>']
    ),
    "slice again": module(
        [S.replace("7x6", "9x6"), '%1 = sdy.all_slice [{"y"}, {}] %0 out_sharding=<@m, [{"x", "y"}, {}]> : tensor<9x6xf32>'],
        "%a: tensor<9x6xf32>",
    ),
    "elementwise": module([S, ABS, f"%f = stablehlo.add %e, %0 {per_value(X)} : tensor<7x6xf32>"]),
    "elementwise without a sharding": module([S, "%f = stablehlo.add %0, %0 : tensor<7x6xf32>"]),
    "transpose": module([S, f"%f = stablehlo.transpose %0, dims = [1, 0] {AT_X_MINOR} : (tensor<7x6xf32>) -> tensor<6x7xf32>"]),
    "broadcast": module([S, f"%f = stablehlo.broadcast_in_dim %0, dims = [1, 2] {AT_YX} : (tensor<7x6xf32>) -> tensor<3x7x6xf32>"]),
    "reduce": module(
        [
            "%c = stablehlo.constant dense<0.0> : tensor<f32>",
            S,
            (
                f"%r = stablehlo.reduce(%0 init: %c) applies stablehlo.add across dimensions = [0] {per_value('[{}]')} "
                ": (tensor<7x6xf32>, tensor<f32>) -> tensor<6xf32>"
            ),
        ]
    ),
    "iota": module([f"%r = stablehlo.iota dim = 0 {per_value(X)} : tensor<7x6xi32>"]),
    "reshape": module([S, f"%r = stablehlo.reshape %0 {AT_X_MIDDLE} : (tensor<7x6xf32>) -> tensor<1x7x6xf32>"]),
    "dot of zeros": module([S, dot("%0", "%0")]),
    "dot of one that is not zero": module([S, ABS, dot("%e", "%0"), dot("%0", "%e").replace("%d", "%g")]),
    "dot of the same twice": module([S, ABS, dot("%e", "%e")]),
    "dot after a gather of zeros": module(
        [sliced("7x6xf32", XY), f'%1 = sdy.all_gather [{{}}, {{"y"}}] %0 out_sharding=<@m, {X}> : tensor<7x6xf32>', dot("%1", "%1")]
    ),
    "dot after a slice that adds nothing": module(
        [
            sliced("7x6xf32", '[{"y"}, {}]'),
            '%1 = sdy.all_slice [{"x"}, {}] %0 out_sharding=<@m, [{"y", "x"}, {}]> : tensor<7x6xf32>',
            dot("%1", "%1"),
        ]
    ),
    "slice": module([S, slice_of("0:6, 0:6", "6x6", X)]),
    "slice to a multiple": module([S, slice_of("1:5, 0:6", "4x6", X)]),
    "slice with a stride": module([S, slice_of("0:7:2, 0:6", "4x6", X)]),
    "slice elsewhere": module([S, slice_of("0:7, 1:4", "7x3", X)]),
    "pad elsewhere": module(
        [
            "%c = stablehlo.constant dense<1.0> : tensor<f32>",
            S,
            (
                f"%r = stablehlo.pad %0, %c, low = [0, 1], high = [0, 2], interior = [0, 1] {per_value(X)} "
                ": (tensor<7x6xf32>, tensor<f32>) -> tensor<7x14xf32>"
            ),
        ]
    ),
    "pad to and fro": module(
        [
            "%c = stablehlo.constant dense<1.0> : tensor<f32>",
            S,
            (
                f"%r = stablehlo.pad %0, %c, low = [1, 0], high = [-1, 0], interior = [0, 0] {per_value(X)} "
                ": (tensor<7x6xf32>, tensor<f32>) -> tensor<7x6xf32>"
            ),
        ]
    ),
    "argument": module(
        ['%1 = sdy.all_slice [{}, {"x"}] %a out_sharding=<@m, [{"y"}, {"x"}]> : tensor<8x6xf32>'],
        '%a: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@m, [{"y"}, {}]>}',
    ),
    **{
        element: module([sliced(f"7x{element}", '[{"x"}]')], f"%a: tensor<7x{element}>")
        for element in ("i1", "ui8", "i4", "f64", "bf16", "f8E4M3FN")
    },
}


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in corpus(PadForDivisibility.name)])
def test_golden(case: dict[str, Any]) -> None:
    if case["status"] == "ok":
        assert run_passes(case["input"], case["pipeline"]) == normal(case["output"])
        return
    with pytest.raises(ShardyError) as raised:
        run_passes(case["input"], case["pipeline"])
    assert all(diagnostic["text"] in str(raised.value) for diagnostic in case["diagnostics"])


@pytest.mark.parametrize("name", SAME)
def test_against_jaxlib(name: str) -> None:
    text = SAME[name]
    if name in MASKED and not SAME_SHARDY:
        pytest.skip("a difference of docs/differences.md: masks of dots")
    assert run_passes(text, PIPELINE) == jaxlib_text(text, PIPELINE)


def ops(text: str) -> list[str]:
    """The ops of a module after the pass, without constants and shardings."""
    lines = [line.strip() for line in run_passes(text, PIPELINE).splitlines() if "%" in line and "stablehlo.constant" not in line]
    return [re.sub(r" \{sdy.sharding = #sdy.sharding_per_value<[^>]*>\]>\}", "", line) for line in lines if " = " in line]


def test_all_to_all() -> None:
    text = module([S, '%1 = sdy.all_to_all [{"x"}: 0->1] %0 out_sharding=<@m, [{}, {"x"}]> : tensor<7x6xf32>'])
    assert ops(text) == [
        "%0 = stablehlo.pad %arg0, %cst, low = [0, 0], high = [1, 0], interior = [0, 0] : (tensor<7x6xf32>, tensor<f32>) -> tensor<8x6xf32>",  # noqa: E501
        '%1 = sdy.all_slice [{"x"}, {}] %0 out_sharding=<@m, [{"x"}, {}]> : tensor<8x6xf32>',
        "%2 = stablehlo.pad %1, %cst_0, low = [0, 0], high = [0, 2], interior = [0, 0] : (tensor<8x6xf32>, tensor<f32>) -> tensor<8x8xf32>",
        '%3 = sdy.all_to_all [{"x"}: 0->1] %2 out_sharding=<@m, [{}, {"x"}]> : tensor<8x8xf32>',
        "%4 = stablehlo.slice %3 [0:7, 0:8] : (tensor<8x8xf32>) -> tensor<7x8xf32>",
    ]


def test_reduce_scatter_and_permute() -> None:
    text = module(
        [
            '%1 = sdy.all_slice [{}, {"y"}] %a out_sharding=<@m, [{}, {"y"}]> : tensor<7x6xf32>',
            f'%2 = sdy.reduce_scatter [{{"x"}}, {{}}] %1 out_sharding=<@m, {XY}> : tensor<7x6xf32>',
            '%3 = sdy.collective_permute %2 out_sharding=<@m, [{"x":(2)2, "x":(1)2}, {"y"}]> : tensor<7x6xf32>',
        ]
    )
    assert [line.rpartition(" ")[2] for line in ops(text)] == ["tensor<7x6xf32>", "tensor<8x6xf32>", "tensor<8x6xf32>", "tensor<8x6xf32>"]


def test_pad_masks_what_becomes_visible() -> None:
    text = module(
        [
            "%c = stablehlo.constant dense<1.0> : tensor<f32>",
            S,
            (
                f"%r = stablehlo.pad %0, %c, low = [0, 0], high = [1, 0], interior = [0, 0] {per_value(X)} "
                ": (tensor<7x6xf32>, tensor<f32>) -> tensor<8x6xf32>"
            ),
        ]
    )
    found = ops(text)
    assert "stablehlo.select" in found[-2]
    assert found[-1].endswith("low = [0, 0], high = [0, 0], interior = [0, 0] : (tensor<8x6xf32>, tensor<f32>) -> tensor<8x6xf32>")


def test_constants() -> None:
    splat = f"%c = stablehlo.constant {AT_X_ONLY} dense<2.0> : tensor<3xf32>"
    assert ops(module([splat])) == []
    assert "dense<2.000000e+00> : tensor<4xf32>" in run_passes(module([splat]), PIPELINE)
    listed = splat.replace("2.0", "[1.0, 2.0, 3.0]")
    assert ops(module([listed])) == [
        "%0 = stablehlo.pad %cst, %cst_0, low = [0], high = [1], interior = [0] : (tensor<3xf32>, tensor<f32>) -> tensor<4xf32>"
    ]


def test_loop() -> None:
    text = module(
        [
            S,
            f"%1 = stablehlo.while(%i = %0) : tensor<7x6xf32> attributes {per_value(X)}",
            "cond { %t = stablehlo.constant dense<true> : tensor<i1>\n stablehlo.return %t : tensor<i1> }",
            f"do {{ %b = stablehlo.abs %i {per_value(X)} : tensor<7x6xf32>\n stablehlo.return %b : tensor<7x6xf32> }}",
        ]
    )
    assert "7x6" not in "\n".join(ops(text)[1:])


def test_dot_masks_what_a_later_slice_does_not_clear() -> None:
    """Padding that jaxlib takes for zero because another dimension was padded with zeros."""
    text = module(
        [
            sliced("7x5xf32", X),
            f"%e = stablehlo.exponential %0 {per_value(X)} : tensor<7x5xf32>",
            f'%1 = sdy.all_slice [{{}}, {{"y"}}] %e out_sharding=<@m, {XY}> : tensor<7x5xf32>',
            dot("%1", "%1").replace("7x6", "7x5").replace("6x6", "5x5").replace("[{}, {}]", '[{"y"}, {}]'),
        ],
        "%a: tensor<7x5xf32>",
    ).replace('contracting_dims = [0] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@m, [{"y"}, {}]>]>}', "contracting_dims = [0] x [0]")
    assert sum("stablehlo.select" in line for line in ops(text)) == 2


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([S, slice_of("1:7:2, 0:6", "3x6", X)], "dimension 0 cannot be sliced without communication"),
        ([S, slice_of("1:7, 0:6", "6x6", X)], "dimension 0 cannot be sliced without communication"),
        ([S, f"%r = stablehlo.reshape %0 {AT_X_ONLY} : (tensor<7x6xf32>) -> tensor<42xf32>"], "shapes of different sizes"),
        ([S, f"%r = stablehlo.add %0, %a {per_value(X)} : tensor<7x6xf32>"], "dimensions of size 7 are padded to 8 and to 7"),
        (
            [S, CONCATENATE],
            "dimension 0 is padded",
        ),
        ([S, "%r = sdy.reshard %0 <@m, [{}, {}]> : tensor<7x6xf32>"], "'sdy.reshard' cannot be padded"),
    ],
)
def test_errors(lines: list[str], message: str) -> None:
    with pytest.raises(ShardyError, match=message) as raised:
        run_passes(module(lines), PIPELINE)
    assert str(raised.value.where).endswith(" at -:4")
    assert raised.value.why
    assert raised.value.fix


@NEEDS_SAME_SHARDY
@pytest.mark.parametrize("seed", range(10))
def test_random_against_jaxlib(seed: int) -> None:
    """The same as jaxlib, but for masks where that one takes padding for zero that is not."""
    for text in random_modules(seed):
        found, wanted = run_passes(text, PIPELINE), jaxlib_text(text, PIPELINE)
        assert found == wanted or found.count("stablehlo.select") > wanted.count("stablehlo.select"), text


@pytest.mark.parametrize("seed", range(10))
def test_random_numbers(seed: int) -> None:
    """The numbers are those of the program."""
    for text in random_modules(seed)[::2]:
        for ours, theirs in zip(evaluate(run_passes(text, PIPELINE)), evaluate(text), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def random_modules(seed: int) -> list[str]:
    """A dozen modules."""
    return [RandomModule(100 * seed + i, 6 + i % 7).text for i in range(12)]


def evaluate(text: str) -> list[Any]:
    """The results of a module for some numbers; collectives on whole arrays do nothing."""
    text = re.sub(r"sdy\.all_\w+ \[.*?\] (%\w+) out_sharding=.*> : (tensor<\S+>)", r"stablehlo.reshape \1 : (\2) -> \2", text)
    read = parse_module(run_passes(text, "sdy-drop-sharding-and-mesh"))
    inputs = [argument.type for argument in from_mlir(read).main.arguments]
    numbers = np.random.default_rng(0)
    dense: Any = ir.DenseElementsAttr.get
    with read.context:
        values = [dense(numbers.normal(size=each.shape).astype(np.float32)) for each in inputs]
        return [np.array(ir.DenseFPElementsAttr(value)) for value in stablehlo.eval_module(read, values)]


def test_padded_value_is_returned() -> None:
    text = module([S], results=" -> tensor<7x6xf32>", returned="return %0 : tensor<7x6xf32>")
    with pytest.raises(ShardyError, match="returns value #0 padded"):
        run_passes(text, PIPELINE)


def test_complex() -> None:
    """jaxlib ends the process."""
    found = run_passes(module([sliced("7xcomplex<f32>", '[{"x"}]')], "%a: tensor<7xcomplex<f32>>"), PIPELINE)
    assert "stablehlo.constant dense<(0.000000e+00,0.000000e+00)> : tensor<complex<f32>>" in found


def test_result_that_does_not_divide() -> None:
    text = module([S], results=f" -> (tensor<7x6xf32> {{sdy.sharding = #sdy.sharding<@m, {X}>}})", returned="return %0 : tensor<7x6xf32>")
    with pytest.raises(ShardyError, match="result #0 has a non-divisible sharding"):
        run_passes(text, PIPELINE)
