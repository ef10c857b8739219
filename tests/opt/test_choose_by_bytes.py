"""With `choose-by-bytes` the full version of `sdy-insert-explicit-reshards` moves what has the fewest bytes."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardy_py.dialect import AxisRef, Mesh, TensorSharding
from shardy_py.frontends.mlir import from_mlir, parse_module
from shardy_py.ir import Op, Program, TensorType
from shardy_py.ir.pieces import local_bytes
from shardy_py.ir.types import element_bits
from shardy_py.opt import run_passes
from shardy_py.opt.insert_explicit_reshards import InsertExplicitReshards
from shardy_py.opt.to_mlir import to_mlir
from shardy_py.passes.export.collective_bytes import received, reshard_bytes
from shardy_py.passes.export.collective_steps import collectives_for
from tests.opt.random_ops import function

SIZES = {"x": 2, "y": 2, "z": 4}
MESH = 'sdy.mesh @mesh = <["x"=2, "y"=2, "z"=4]>'

Tensor = tuple[str, str]
"""Dimensions with the element type, `8x8xf32`, and the dimensions of a sharding."""


def module(arguments: Sequence[Tensor], op: str, result: Tensor) -> str:
    """A function of one op on all its arguments, `op` being its name and attributes."""
    name, _, attributes = op.partition(" ")
    inputs = ", ".join(f"%a{i}: tensor<{type_}> {{sdy.sharding = {sharding(dims)}}}" for i, (type_, dims) in enumerate(arguments))
    operands = ", ".join(f"%a{i}" for i in range(len(arguments)))
    types = ", ".join(f"tensor<{type_}>" for type_, _ in arguments)
    stated = f"sdy.sharding = #sdy.sharding_per_value<[{sharding(result[1]).removeprefix('#sdy.sharding')}]>"
    inside = ", ".join(filter(None, (attributes, stated)))
    return f"""{MESH}
func.func @main({inputs}) -> (tensor<{result[0]}> {{sdy.sharding = {sharding(result[1])}}}) {{
  %0 = "stablehlo.{name}"({operands}) {{{inside}}} : ({types}) -> tensor<{result[0]}>
  return %0 : tensor<{result[0]}>
}}"""


def sharding(dims: str) -> str:
    return f"#sdy.sharding<@mesh, {dims}>"


def run(text: str, choose_by_bytes: bool) -> Program:
    program = from_mlir(text, keep=True)
    InsertExplicitReshards(enable_full_version=True, choose_by_bytes=choose_by_bytes).run(program)
    parse_module(to_mlir(program, pretty=False))
    return program


def resharded(program: Program) -> list[str]:
    """The types that are resharded, with the shardings they get."""
    ops = [op for op in program.main.body.ops if op.name == "sdy.reshard"]
    return [f"{op.result.type} {op.result.sharding.text(short=True)[8:-1]}" for op in ops if op.result.sharding]


def moved(program: Program) -> float:
    """Bytes that a device receives, counted here from the collectives of each reshard."""
    return sum(_bytes(op, program) for op in program.main.body.ops if op.name in ("sdy.reshard", "sdy.all_reduce"))


def _bytes(op: Op, program: Program) -> float:
    type_, source, target = op.result.type, op.operands[0].sharding, op.result.sharding
    assert isinstance(type_, TensorType)
    assert target is not None
    mesh = target.mesh_in(program.meshes)
    if op.name == "sdy.all_reduce":
        group = _devices(op.attributes["reduction_axes"].axes, mesh)
        return 2 * _piece(type_, target, mesh) * (group - 1) / group
    total = 0.0
    for step in collectives_for(source, target, type_.shape, program.meshes):
        after = _piece(type_, step.result, mesh)
        if step.kind == "collective_permute":
            total += after
        elif step.sends_data:
            axes = [axis for dim in step.axes for axis in dim] + [axis for move in step.moves for axis in move.axes]
            total += after * (1 - 1 / _devices(axes, mesh))
    return total


def _devices(axes: Sequence[AxisRef], mesh: Mesh) -> int:
    count = 1
    for axis in axes:
        count *= axis.size_in(mesh)
    return count


def _piece(type_: TensorType, sharding: TensorSharding, mesh: Mesh) -> float:
    elements = 1
    for size, dim in zip(type_.shape, sharding.dims, strict=True):
        elements *= -(-size // _devices(dim.axes, mesh))
    return elements * element_bits(type_.dtype) / 8


DOT = (
    "dot_general dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = [], rhs_batching_dimensions = [], "
    "lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]>"
)

CASES: dict[str, tuple[str, list[str], list[str]]] = {
    "of operands of one shape, bfloat16 moves": (
        module([("64x64xbf16", '[{}, {"z"}]'), ("64x64xf32", '[{"x"}, {}]')], DOT, ("64x64xf32", "[{}, {}]")),
        ['float32[64,64] [{"z"}, {}]'],
        ['bfloat16[64,64] [{}, {"x"}]'],
    ),
    "fewer elements may be more bytes": (
        module([("8x64xi8", '[{"x"}, {}]'), ("64x4xf32", '[{}, {"x"}]')], DOT, ("8x4xf32", "[{}, {}]")),
        ["float32[64,4] [{}, {}]", "float32[8,4] [{}, {}]"],
        ["int8[8,64] [{}, {}]", "float32[8,4] [{}, {}]"],
    ),
    "a conversion gathers the smaller type": (
        module([("64x64xbf16", '[{"x"}, {}]')], "convert", ("64x64xf32", "[{}, {}]")),
        ["float32[64,64] [{}, {}]"],
        ["bfloat16[64,64] [{}, {}]"],
    ),
    "packed elements of four bits": (
        module([("64x64xi4", '[{"x"}, {}]')], "convert", ("64x64xi8", "[{}, {}]")),
        ["int8[64,64] [{}, {}]"],
        ["int4[64,64] [{}, {}]"],
    ),
    "the condition of a selection moves rather than its result": (
        module(
            [("64x64xi1", '[{}, {"x"}]'), ("64x64xf32", '[{}, {"x"}]'), ("64x64xf32", '[{"x"}, {}]')],
            "select",
            ("64x64xf32", '[{"x"}, {}]'),
        ),
        ['float32[64,64] [{}, {"x"}]', 'float32[64,64] [{"x"}, {}]'],
        ['bool[64,64] [{"x"}, {}]', 'float32[64,64] [{"x"}, {}]'],
    ),
}
"""Name -> module, what moves by default and what moves with the option."""


@pytest.mark.parametrize("case", CASES)
def test_what_moves(case: str) -> None:
    text, by_elements, by_bytes = CASES[case]
    default, option = run(text, False), run(text, True)
    assert resharded(default) == by_elements
    assert resharded(option) == by_bytes
    assert moved(option) < moved(default)


def test_ties_are_settled_as_by_default() -> None:
    text = module([("64x64xf32", '[{"x"}, {}]')], "negate", ("64x64xf32", '[{}, {"x"}]'))
    assert resharded(run(text, True)) == resharded(run(text, False)) == ['float32[64,64] [{}, {"x"}]']


def test_as_an_option_of_a_pipeline() -> None:
    text, _, expected = CASES["a conversion gathers the smaller type"]
    printed = run_passes(text, "func.func(sdy-insert-explicit-reshards{enable-full-version=true choose-by-bytes=true})")
    assert resharded(from_mlir(printed)) == expected
    printed = run_passes(text, "func.func(sdy-insert-explicit-reshards{choose-by-bytes=true})")
    assert resharded(from_mlir(printed)) == []


def test_the_result_of_a_dot_moves_where_it_has_no_more_bytes_than_the_operand() -> None:
    """The one conflict of a dot that is settled without the full version compares bytes, too."""
    arguments = [("8x16xbf16", '[{"x"}, {"y"}]'), ("16x12xbf16", '[{"y"}, {}]')]
    for element, default, option in (("bf16", 1, 1), ("f32", 1, 0)):
        program = from_mlir(module(arguments, DOT, (f"8x12x{element}", '[{"y"}, {}]')))
        assert len(resharded(_partial(program, False))) == default
        program = from_mlir(module(arguments, DOT, (f"8x12x{element}", '[{"y"}, {}]')))
        assert len(resharded(_partial(program, True))) == option


def _partial(program: Program, choose_by_bytes: bool) -> Program:
    InsertExplicitReshards(choose_by_bytes=choose_by_bytes).run(program)
    return program


def test_bytes_of_a_reshard_add_up_over_its_collectives() -> None:
    meshes = {"mesh": Mesh(SIZES)}
    type_ = TensorType((64, 64), "bfloat16")
    source, target = TensorSharding("mesh", [["x"], ["z"]]), TensorSharding("mesh", [["z"], []])
    total, current = 0, source
    for step in collectives_for(source, target, type_.shape, meshes):
        axes = [axis for dim in step.axes for axis in dim] + [axis for move in step.moves for axis in move.axes]
        before, after = local_bytes(type_, current, meshes), local_bytes(type_, step.result, meshes)
        total += received(step.kind, _devices(axes, meshes["mesh"]), before, after)
        current = step.result
    assert reshard_bytes(source, target, type_, meshes) == total > 0
    assert reshard_bytes(None, target, type_, meshes) == 0


ELEMENTS = ("f32", "bf16", "f64", "i8", "i4", "i32")


def random_op(rng: random.Random) -> str:
    """A module with one dot or elementwise op, the element types and shardings drawn."""
    rows, columns, inner = (rng.choice((4, 8, 12, 64)) for _ in range(3))
    kind = rng.choice(("dot", "dot", "convert", "select", "compare", "clamp"))
    one, two, three = (rng.choice(ELEMENTS) for _ in range(3))
    plain = f"{rows}x{columns}x"
    if kind == "dot":
        arguments, result = [f"{rows}x{inner}x{one}", f"{inner}x{columns}x{two}"], plain + three
        return module([(a, random_dims(rng)) for a in arguments], DOT, (result, random_dims(rng)))
    arguments, op, result = {
        "convert": ([one], "convert", two),
        "select": (["i1", one, one], "select", one),
        "compare": ([one, one], "compare comparison_direction = #stablehlo<comparison_direction EQ>", "i1"),
        "clamp": ([one, one, one], "clamp", one),
    }[kind]
    return module([(plain + a, random_dims(rng)) for a in arguments], op, (plain + result, random_dims(rng)))


def random_dims(rng: random.Random) -> str:
    dims: list[list[str]] = [[], []]
    for axis in rng.sample(list(SIZES), rng.randint(0, 3)):
        rng.choice(dims).append(f'"{axis}"')
    return f"[{', '.join('{' + ', '.join(dim) + '}' for dim in dims)}]"


def test_fewer_bytes_over_a_sample() -> None:
    rng = random.Random(5)
    texts = [random_op(rng) for _ in range(200)]
    default = [moved(run(text, False)) for text in texts]
    option = [moved(run(text, True)) for text in texts]
    assert sum(option) < 0.95 * sum(default)
    assert sum(a < b for a, b in zip(option, default, strict=True)) > 30


@settings(max_examples=100)
@given(st.randoms(use_true_random=False))
def test_never_more_bytes_around_an_op(rng: random.Random) -> None:
    text = random_op(rng)
    # The choice counts whole bytes in every collective.
    assert moved(run(text, True)) <= moved(run(text, False)) + 8, text


def test_programs_of_many_kinds_of_ops_stay_valid() -> None:
    totals = [0.0, 0.0]
    for seed in range(40):
        text = function(seed)
        for choose_by_bytes in (False, True):
            totals[choose_by_bytes] += moved(run(text, choose_by_bytes))
    assert totals[True] <= totals[False]
