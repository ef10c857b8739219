"""`sdy-resolve-permutation-factors` does what jaxlib's does."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

from shardy_py.dialect import AxisRef, Mesh
from shardy_py.frontends._jax import ir
from shardy_py.opt import run_passes
from shardy_py.opt.from_mlir import parse_module
from shardy_py.opt.partitioner.resolve_permutation_factors import ResolvePermutationFactors, neighbours, reversed_mesh
from tests.passes.oracle import corpus, jaxlib_text
from tests.reference import NEEDS_SAME_SHARDY, SAME_SHARDY

MESHES = """sdy.mesh @m = <["x"=4, "y"=2, "z"=2]>
sdy.mesh @o = <["x"=4, "y"=2, "z"=2], device_ids=[15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]>
"""
AXES = ("", '"x"', '"y"', '"z", "y"', '"x":(1)2', '"x":(2)2', '"y", "x":(2)2', '"x":(2)2, "x":(1)2')
CONVOLUTION = (
    "%r = stablehlo.convolution(%a, %b) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], "
    "window = {stride = [1, 1], pad = [[1, 1], [1, 1]], lhs_dilate = [1, 1], rhs_dilate = [1, 1], reverse = [0, 0]} "
    "{batch_group_count = 1 : i64, feature_group_count = 1 : i64, sdy.sharding = #sdy.sharding_per_value<[<RESULT>]>} "
    ": (tensor<2x8x8x4xf32>, tensor<3x3x4x2xf32>) -> tensor<2x8x8x2xf32>"
)
WINDOW = """%r:2 = "stablehlo.reduce_window"(%a, %a, %c, %c) <{window_dimensions = array<i64: 3, 1>}> ({
  ^bb0(%p: tensor<f32>, %q: tensor<f32>, %s: tensor<f32>, %t: tensor<f32>):
    %u = stablehlo.add %p, %s : tensor<f32>
    stablehlo.return %u, %u : tensor<f32>, tensor<f32>
}) SHARDED : (TYPE, TYPE, tensor<f32>, tensor<f32>) -> (REST, REST)"""


def pipeline(exchange: bool) -> str:
    """The pass with its option."""
    return f"{ResolvePermutationFactors.name}{{enable-halo-exchange={str(exchange).lower()}}}"


def stated(*shardings: str) -> str:
    """The shardings of an op's results."""
    return f"sdy.sharding = #sdy.sharding_per_value<[{', '.join(f'<{each}>' for each in shardings)}]>"


def module(line: str, *arguments: tuple[str, str, str], meshes: str = MESHES) -> str:
    """A function of one op."""
    listed = [f"%{name}: {type_}" + (f" {{sdy.sharding = #sdy.sharding<{each}>}}" if each else "") for name, type_, each in arguments]
    return f"{meshes}func.func @main({', '.join(listed)}) {{\n  {line}\n  return\n}}\n"


def reversal(sharding: str, result: str, dims: str, type_: str) -> str:
    """A module with a reversal."""
    attribute = f"{{{stated(result)}}} " if result else ""
    return module(f"%r = stablehlo.reverse %a, dims = {dims} {attribute}: {type_}", ("a", type_, sharding))


def window(sharding: str, result: str) -> str:
    """A module with a windowed reduction of two arrays."""
    type_, rest = "tensor<8x8xf32>", "tensor<6x8xf32>"
    text = WINDOW.replace("SHARDED", f"{{{stated(result, result)}}}" if result else "").replace("TYPE", type_).replace("REST", rest)
    return module(text, ("a", type_, sharding), ("c", "tensor<f32>", ""))


def convolution(left: str, right: str, result: str) -> str:
    """A module with a convolution over two dimensions."""
    arguments = ("a", "tensor<2x8x8x4xf32>", left), ("b", "tensor<3x3x4x2xf32>", right)
    return module(CONVOLUTION.replace("RESULT", result), *arguments)


def ruled(rule: str, op: str = '"stablehlo.abs"(%a)') -> str:
    """A module with an op that states its rule."""
    type_ = "tensor<8x8xf32>"
    attributes = f"sdy.sharding_rule = #sdy.op_sharding_rule<{rule}>, " + stated('@m, [{"x"}, {"y"}]')
    return module(f"%r = {op} {{{attributes}}} : ({type_}) -> {type_}", ("a", type_, '@m, [{"x", "z"}, {"y"}]'))


def inside(body: str, type_: str, sharding: str) -> str:
    """A module with an op in a manual computation."""
    line = (
        f'%r = sdy.manual_computation(%a) in_shardings=[<@m, [{{"y"}}]>] out_shardings=[<@m, [{{"y"}}]>] manual_axes={{"y"}} '
        f"(%i: tensor<7xf32>) {{\n {body}\n sdy.return %j : tensor<7xf32>\n }} : ({type_}) -> {type_}"
    )
    return module(line, ("a", type_, sharding))


def slices(dims: str) -> str:
    """A concatenate of slices, which joins them along a sharded dimension."""
    at = stated(f"@m, {dims}")
    lines = [
        f"%s = stablehlo.slice %a [0:7, 0:8] {{{at}}} : (tensor<8x8xf32>) -> tensor<7x8xf32>",
        f"%t = stablehlo.slice %a [4:8, 0:8] {{{at}}} : (tensor<8x8xf32>) -> tensor<4x8xf32>",
        f"%r = stablehlo.concatenate %s, %s, dim = 0 {{{at}}} : (tensor<7x8xf32>, tensor<7x8xf32>) -> tensor<14x8xf32>",
        f"%u = stablehlo.concatenate %t, %s, dim = 0 {{{at}}} : (tensor<4x8xf32>, tensor<7x8xf32>) -> tensor<11x8xf32>",
    ]
    return module("\n  ".join(lines), ("a", "tensor<8x8xf32>", f"@m, {dims}"))


X, XY = '@m, [{"x"}, {}]', '@m, [{"x"}, {"y"}]'
TWO = "tensor<8x8xf32>"
CASES: dict[str, str] = {
    "reverse": reversal(XY, XY, "[0]", TWO),
    "reverse another dimension": reversal(X, X, "[1]", TWO),
    "reverse to the mesh that is there": reversal('@m, [{"x"}, {"y", "z"}]', '@m, [{"x"}, {"y", "z"}]', "[0, 1]", TWO),
    "reverse without a sharding": reversal(XY, "", "[0]", TWO),
    "reverse an array without a sharding": reversal("", XY, "[0]", TWO),
    "reverse to another sharding": reversal(XY, '@m, [{"z"}, {"y"}]', "[0]", TWO),
    "reverse to another order": reversal('@o, [{"x"}, {"y"}]', XY, "[0]", TWO),
    "reverse open dimensions": reversal('@m, [{"x", ?}p1, {?}], replicated={"y"}', '@m, [{"x", ?}p2, {?}]', "[0]", "tensor<7x8xf32>"),
    "reverse parts of a sum": reversal('@m, [{"x"}, {}], unreduced={"y"}', '@m, [{"x"}, {}], unreduced={"y"}', "[0]", TWO),
    "reverse with padding of one part": reversal(X, X, "[0]", "tensor<6x7xf32>"),
    "reverse with padding of more than a part": reversal(X, X, "[0]", "tensor<5x7xf32>"),
    "reverse half integers": reversal('@m, [{"x"}]', '@m, [{"x"}]', "[0]", "tensor<13xi4>"),
    "reverse dimensions backwards": reversal('@m, [{"x"}, {"y"}, {"z"}]', '@m, [{"x"}, {"y"}, {"z"}]', "[2, 0]", "tensor<7x5x3xf32>"),
    "window": window(XY, XY),
    "window without a sharding": window(XY, ""),
    "convolution": convolution('@m, [{"z"}, {"x"}, {"y"}, {}]', "@m, [{}, {}, {}, {}]", '@m, [{"z"}, {"x"}, {"y"}, {}]'),
    "convolution that is not sharded": convolution("@m, [{}, {}, {}, {}]", '@o, [{}, {}, {}, {"y"}]', '@m, [{}, {}, {}, {"y"}]'),
    "convolution over two orders": convolution('@m, [{}, {"x"}, {}, {}]', '@o, [{}, {}, {}, {"y"}]', '@o, [{}, {"x"}, {}, {"y"}]'),
    "rule": ruled("([i, j])->([i, j]) {i=8, j=8} permutation={i}"),
    "rule of the user": ruled("([i, j])->([i, j]) {i=8, j=8} permutation={i}, custom"),
    "rule without permutations": ruled("([i, j])->([i, j]) {i=8, j=8} need_replication={i}"),
    "rule with a dimension of two factors": ruled("([ij, k])->([ij, k]) {i=2, j=4, k=8} permutation={j}"),
    "rule, major factor": ruled("([ij, k])->([ij, k]) {i=2, j=4, k=8} permutation={i}"),
    "rule of a call": ruled("([i, j])->([i, j]) {i=8, j=8} permutation={i}", "stablehlo.custom_call @f(%a)"),
    "rule of another dialect": ruled("([i, j])->([i, j]) {i=8, j=8} permutation={i}", '"chlo.erf"(%a)'),
    "slices": slices('[{"x"}, {"y"}]'),
    "manual computation": inside(
        f"%k = stablehlo.abs %i {{{stated('@m, [{' + chr(34) + 'x' + chr(34) + '}]')}}} : tensor<7xf32>\n"
        f" %j = stablehlo.reverse %k, dims = [0] {{{stated('@m, [{' + chr(34) + 'x' + chr(34) + '}]')}}} : tensor<7xf32>",
        "tensor<14xf32>",
        '@m, [{"y"}]',
    ),
    "several reversals": module(
        "\n  ".join(
            f"%{i} = stablehlo.reverse %{source}, dims = {dims} {{{stated(f'@{mesh}, ' + XY[4:])}}} : {TWO}"
            for i, (source, dims, mesh) in enumerate(
                (("a", "[0]", "m"), ("0", "[1]", "m"), ("b", "[0]", "o"), ("2", "[1]", "o"), ("1", "[0]", "m"))
            )
        ),
        ("a", TWO, XY),
        ("b", TWO, f"@o, {XY[4:]}"),
    ),
    "equal meshes": module(
        f"%r = stablehlo.reverse %a, dims = [0] {{{stated(X)}}} : {TWO}",
        ("a", TWO, X),
        meshes='sdy.mesh @m = <["x"=2]>\nsdy.mesh @p = <["x"=2], device_ids=[1, 0]>\nsdy.mesh @q = <["x"=2], device_ids=[1, 0]>\n',
    ),
    "name that is taken": module(
        f"%r = stablehlo.reverse %a, dims = [0] {{{stated(X)}}} : {TWO}",
        ("a", TWO, X),
        meshes='sdy.mesh @m = <["x"=2]>\nsdy.mesh @m_reversed = <["x"=2, "y"=2]>\n',
    ),
}


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in corpus(ResolvePermutationFactors.name)])
def test_golden(case: dict[str, Any]) -> None:
    assert run_passes(case["input"], case["pipeline"]) == str(parse_module(case["output"]))


@pytest.mark.parametrize("exchange", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_against_jaxlib(name: str, exchange: bool) -> None:
    text = CASES[name]
    if exchange and not SAME_SHARDY and ("stablehlo.reverse" in text or name == "slices"):
        pytest.skip("a difference of docs/differences.md: halo exchange")
    assert run_passes(text, pipeline(exchange)) == jaxlib_text(text, pipeline(exchange))


def random_dims(choose: random.Random, rank: int) -> str:
    """Axes for each dimension, none twice."""
    while True:
        dims = [choose.choice(AXES) for _ in range(rank)]
        text = ", ".join(dims)
        if all(text.count(part) <= 1 for part in ('"x"', '"y"', '"z"')) or ('"x":(1)2' in text and text.count('"x":(2)2') <= 1):
            if text.count('"y"') <= 1 and text.count('"z"') <= 1 and text.count('"x":(1)2') <= 1 and '"x",' not in f"{text},":
                return f"[{', '.join(f'{{{each}}}' for each in dims)}]"


def random_module(seed: int) -> str:
    """A reversal, slice or pad of a small array, operand and result sharded alike."""
    choose = random.Random(seed)
    rank = choose.choice((1, 2, 2, 3))
    sizes = [choose.choice((3, 4, 6, 7, 8, 13, 16)) for _ in range(rank)]
    sharding = f"@{choose.choice('mo')}, {random_dims(choose, rank)}"
    type_ = f"tensor<{'x'.join(map(str, sizes))}xf32>"
    at = f"{{{stated(sharding)}}}"
    kind = choose.choice(("reverse", "reverse", "slice", "pad"))
    if kind == "reverse":
        dims = choose.sample(range(rank), choose.randint(1, rank))
        return module(f"%r = stablehlo.reverse %a, dims = {dims} {at} : {type_}", ("a", type_, sharding))
    if kind == "slice":
        starts = [choose.choice((0, 0, 0, 1)) for _ in sizes]
        limits = [choose.randint(start + 1, size) for start, size in zip(starts, sizes, strict=True)]
        strides = [choose.choice((1, 1, 1, 2)) for _ in sizes]
        bounds = ", ".join(f"{a}:{b}:{s}" for a, b, s in zip(starts, limits, strides, strict=True))
        shape = [-(-(b - a) // s) for a, b, s in zip(starts, limits, strides, strict=True)]
        line = f"%r = stablehlo.slice %a [{bounds}] {at} : ({type_}) -> tensor<{'x'.join(map(str, shape))}xf32>"
        return module(line, ("a", type_, sharding))
    low, high, between = ([choose.choice(values) for _ in sizes] for values in ((-1, 0, 0, 1), (-1, 0, 0, 2), (0, 0, 1)))
    shape = [n + a + b + (n - 1) * i for n, a, b, i in zip(sizes, low, high, between, strict=True)]
    line = f"%r = stablehlo.pad %a, %c, low = {low}, high = {high}, interior = {between} {at}"
    return module(
        f"{line} : ({type_}, tensor<f32>) -> tensor<{'x'.join(map(str, shape))}xf32>", ("a", type_, sharding), ("c", "tensor<f32>", "")
    )


@NEEDS_SAME_SHARDY
@pytest.mark.parametrize("seed", range(5))
def test_random(seed: int) -> None:
    for i in range(12):
        text = random_module(100 * seed + i)
        for exchange in (False, True):
            try:
                wanted = jaxlib_text(text, pipeline(exchange))
            except ir.MLIRError:  # a manual computation that is not valid
                run_passes(text, pipeline(exchange))
                continue
            assert run_passes(text, pipeline(exchange)) == wanted, text


def test_part_that_another_axis_does_not_divide() -> None:
    """jaxlib makes a manual computation whose body does not fit."""
    dims = '@m, [{"x":(1)2}, {"x":(2)2}]'
    found = run_passes(reversal(dims, dims, "[1]", "tensor<7x7xf32>"), pipeline(True))
    assert 'sdy.reshard %arg0 <@m, [{"x":(1)2}, {}]>' in found
    assert "manual_computation" not in found


@pytest.mark.parametrize(("source", "target"), [('@m, [{"x"}]', '@m, [{"y"}]'), ('@m, [{"x"}]', ""), ("", '@m, [{"x"}]')])
def test_slice_to_another_sharding(source: str, target: str) -> None:
    """jaxlib ends the process."""
    attribute = f"{{{stated(target)}}} " if target else ""
    text = module(f"%r = stablehlo.slice %a [0:7] {attribute}: (tensor<8xf32>) -> tensor<7xf32>", ("a", "tensor<8xf32>", source))
    found = run_passes(text, pipeline(True))
    assert found.count("sdy.reshard") == bool(source) + bool(target)


def test_inlined_mesh() -> None:
    """jaxlib makes a name from an address."""
    mesh = 'mesh<["x"=4]>, [{"x"}]'
    found = run_passes(reversal(mesh, mesh, "[0]", "tensor<8xf32>"), pipeline(True))
    assert 'sdy.mesh @mesh_reversed = <["x"=4], device_ids=[3, 2, 1, 0]>' in found
    assert "sdy.reshard %arg0 <@mesh_reversed" in found


def test_complex() -> None:
    """jaxlib ends the process."""
    found = run_passes(reversal('@m, [{"x"}]', '@m, [{"x"}]', "[0]", "tensor<7xcomplex<f32>>"), pipeline(True))
    assert "stablehlo.constant dense<(0.000000e+00,0.000000e+00)> : tensor<complex<f32>>" in found


def test_neighbours_shift_parts() -> None:
    mesh = Mesh([("x", 4), ("y", 2)])
    axes = [AxisRef("y"), AxisRef("x", 2, 2)]
    pairs = neighbours(axes, ("x", "y"), mesh)
    ids = np.arange(8).reshape(2, 2, 2)  # x major, x minor, y
    order = ids.transpose(0, 2, 1).reshape(2, 4)
    assert sorted(pairs) == pairs
    assert set(pairs) == {(int(a), int(b)) for row in order for a, b in itertools.pairwise(row)}


def test_reversed_twice_is_the_mesh() -> None:
    mesh = Mesh([("x", 4), ("y", 3)])
    once = reversed_mesh(mesh, [AxisRef("x", 1, 2), AxisRef("y")])
    assert once.device_ids[:3] == (8, 7, 6)
    assert reversed_mesh(once, [AxisRef("x", 1, 2), AxisRef("y")]) is mesh
