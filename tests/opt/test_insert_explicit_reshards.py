from __future__ import annotations

from collections.abc import Sequence

import pytest

from shardy_py.dialect import Semantics, TensorSharding
from shardy_py.errors import ShardyError
from shardy_py.ir import Block, Op, Program
from shardy_py.opt.from_mlir import from_mlir
from shardy_py.opt.insert_explicit_reshards import InsertExplicitReshards
from tests.passes.oracle import corpus, dump, jaxlib_program
from tests.reference import SAME_SHARDY

MESHES = """
sdy.mesh @mesh = <["x"=2, "y"=2, "z"=4]>
sdy.mesh @reversed = <["x"=2, "y"=2, "z"=4], device_ids=[15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]>
sdy.mesh @small = <["x"=2]>
"""
CALLED = """
func.func private @called(%b: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}]>}) -> tensor<8xf32> {
  return %b : tensor<8xf32>
}
"""


Tensor = tuple[str, str | None]
"""Dimensions, `8x8`, and a sharding; it is over `@mesh` where it does not say, and None is none."""


def run(arguments: Sequence[Tensor], body: str, result: Tensor, *, full: bool = True, others: str = "") -> Program:
    """The program of one function, with arguments `%a0`, `%a1`, ..., after the pass."""
    inputs = ", ".join(f"%a{i}: {_typed(*argument)}" for i, argument in enumerate(arguments))
    program = from_mlir(f"{MESHES}func.func @main({inputs}) -> ({_typed(*result)}) {{\n{body}\n}}\n{others}")
    InsertExplicitReshards(enable_full_version=full).run(program)
    return program


def ops(arguments: Sequence[Tensor], body: str, result: Tensor, *, full: bool = True) -> list[str]:
    """The ops of the function: name, axes of a collective, shardings of results."""
    return described(run(arguments, body, result, full=full).main.body)


def described(block: Block) -> list[str]:
    return [" ".join(filter(None, map(str, _parts(op)))) for op in block.ops[:-1]]


def _parts(op: Op) -> list[object]:
    axes = next((op.attributes[name] for name in ("reduction_axes", "axes") if name in op.attributes), "")
    shardings = [r.sharding.text(short=True)[1:-1].removeprefix("@mesh, ") if r.sharding else "none" for r in op.results]
    return [op.name.partition(".")[2], axes, *shardings]


def _typed(shape: str, sharding: str | None) -> str:
    return f"tensor<{shape}xf32>" + ("" if sharding is None else f" {{sdy.sharding = #sdy.sharding<{_over_mesh(sharding)}>}}")


def _over_mesh(sharding: str) -> str:
    return sharding if sharding.startswith("@") else f"@mesh, {sharding}"


def stated(sharding: str) -> str:
    return f"{{sdy.sharding = #sdy.sharding_per_value<[<{_over_mesh(sharding)}>]>}}"


def negate(operand: str, result: str, shape: str = "8x8") -> list[str]:
    body = f"%0 = stablehlo.negate %a0 {stated(result)} : tensor<{shape}xf32>\nreturn %0 : tensor<{shape}xf32>"
    return ops([(shape, operand)], body, (shape, result))


def test_what_fits_stays() -> None:
    assert negate('[{"x"}, {"y"}]', '[{"x"}, {"y"}]') == ['negate [{"x"}, {"y"}]']


def test_of_two_tensors_the_more_sharded_wins_and_the_first_on_ties() -> None:
    assert negate('[{"x"}, {}]', '[{"z"}, {}]') == ['reshard [{"z"}, {}]', 'negate [{"z"}, {}]']
    assert negate('[{"x"}, {}]', '[{"y"}, {}]') == ['negate [{"x"}, {}]', 'reshard [{"y"}, {}]']


def test_of_more_tensors_the_majority_wins() -> None:
    body = f"""
      %0 = stablehlo.clamp %a0, %a1, %a1 {stated('[{"x"}, {}]')} : tensor<8x8xf32>
      return %0 : tensor<8x8xf32>"""
    arguments = [("8x8", '[{"x"}, {}]'), ("8x8", '[{}, {"z"}]')]
    assert ops(arguments, body, ("8x8", '[{"x"}, {}]')) == [
        'reshard [{"x"}, {"z"}]',
        'reshard [{"x"}, {"z"}]',
        'reshard [{"x"}, {"z"}]',
        'clamp [{"x"}, {"z"}]',
        'reshard [{"x"}, {}]',
    ]


def test_a_missing_sharding_is_replicated() -> None:
    body = "%0 = stablehlo.negate %a0 : tensor<8x8xf32>\nreturn %0 : tensor<8x8xf32>"
    assert ops([("8x8", '[{"x"}, {}]')], body, ("8x8", None)) == ['negate [{"x"}, {}]', "reshard [{}, {}]"]


def test_a_sharded_reduction_is_summed_up_before_the_result_moves() -> None:
    body = f"""
      %0 = stablehlo.dot %a0, %a1 {stated('[{"x"}, {}]')} : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
      return %0 : tensor<8x4xf32>"""
    arguments = [("8x16", '[{}, {"z"}]'), ("16x4", '[{"z"}, {}]')]
    assert ops(arguments, body, ("8x4", '[{"x"}, {}]')) == [
        'reshard [{"x"}, {"z"}]',
        'dot [{"x"}, {}]',
        'all_reduce {"z"} [{"x"}, {}]',
    ]


DOT = f"""
  %0 = stablehlo.dot %a0, %a1 {stated('[{"y"}, {}]')} : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>"""


@pytest.mark.parametrize(
    ("lhs", "rhs", "expected"),
    [
        ('[{"x"}, {"y"}]', '[{"y"}, {}]', ['dot [{"x"}, {}]', 'reshard [{"y"}, {}]']),
        ('[{"x"}, {"z"}]', '[{"z"}, {}]', ['dot [{"y"}, {}]']),  # the result is not sharded by what is summed over
        ('[{"x"}, {"y"}]', "[{}, {}]", ['dot [{"y"}, {}]']),  # the operands disagree
        ('[{"x"}, {}]', "[{}, {}]", ['dot [{"y"}, {}]']),  # nothing is summed up
    ],
)
def test_only_a_dot_that_can_be_a_reduce_scatter_is_settled_without_the_full_version(lhs: str, rhs: str, expected: list[str]) -> None:
    arguments = [("8x16", lhs), ("16x4", rhs)]
    assert ops(arguments, DOT, ("8x4", '[{"y"}, {}]'), full=False) == expected


def test_a_dot_whose_rule_has_a_factor_of_the_result_alone() -> None:
    rule = "#sdy.op_sharding_rule<([i, j], [i, j])->([i, k]) {i=8, j=8, k=8}>"
    sharding = '#sdy.sharding_per_value<[<@mesh, [{"x"}, {"y"}]>]>'
    body = f"""
      %0 = stablehlo.dot %a0, %a0 {{sdy.sharding = {sharding}, sdy.sharding_rule = {rule}}}
        : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
      return %0 : tensor<8x8xf32>"""
    assert ops([("8x8", '[{"x"}, {}]')], body, ("8x8", '[{"x"}, {"y"}]'), full=False) == ['dot [{"x"}, {"y"}]']


def test_axes_of_a_factor_that_must_be_replicated_go_to_a_batching_factor() -> None:
    body = f"""
      %0 = stablehlo.cholesky %a0 {stated('[{}, {"z"}, {}]')} : tensor<8x4x4xf32>
      return %0 : tensor<8x4x4xf32>"""
    assert ops([("8x4x4", '[{}, {"z"}, {}]')], body, ("8x4x4", '[{}, {"z"}, {}]')) == [
        'reshard [{"z"}, {}, {}]',
        'cholesky [{"z"}, {}, {}]',
        'reshard [{}, {"z"}, {}]',
    ]


def test_a_reshape_deals_axes_out_anew_where_no_factor_ends() -> None:
    body = f"""
      %0 = stablehlo.reshape %a0 {stated('[{"z", "x"}]')} : (tensor<4x6xf32>) -> tensor<24xf32>
      return %0 : tensor<24xf32>"""
    assert ops([("4x6", '[{"x"}, {}]')], body, ("24", '[{"z", "x"}]')) == [
        'reshard [{"z"}, {"x"}]',
        'reshape [{"z", "x"}]',
    ]
    body = body.replace('"z", "x"', '"y", "x", "z":(1)2').replace("6xf32", "3xf32").replace("24", "12")
    assert ops([("4x3", '[{"x"}, {}]')], body, ("12", '[{"y", "x", "z":(1)2}]')) == [
        'reshard [{"y", "x"}, {"z":(1)2}]',
        'reshape [{"y", "x", "z":(1)2}]',
    ]


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ('[{"x"}, {}]', '[{}, {}], unreduced={"x"}', ['sharded_to_unreduced [{"x"}, {}] [{}, {}], unreduced={"x"}']),
        ("[{}, {}]", '[{}, {}], unreduced={"x"}', ['replicated_to_unreduced {"x"} [{}, {}], unreduced={"x"}']),
        (
            '[{"y"}, {"z"}]',
            '[{}, {}], unreduced={"x", "y"}',
            [
                'reshard [{"y"}, {}]',
                'replicated_to_unreduced {"x"} [{"y"}, {}], unreduced={"x"}',
                'sharded_to_unreduced [{"y"}, {}] [{}, {}], unreduced={"x", "y"}',
            ],
        ),
        (
            '[{"z"}, {}]',
            '[{"z":(1)2}, {}], unreduced={"z":(2)2}',
            ['sharded_to_unreduced [{"z":(2)2}, {}] [{"z":(1)2}, {}], unreduced={"z":(2)2}'],
        ),
        ('[{}, {}], unreduced={"x", "y"}', '[{}, {}], unreduced={"y"}', ['all_reduce {"x"} [{}, {}], unreduced={"y"}']),
        ('[{}, {"z"}], unreduced={"x"}', '[{"z"}, {}]', ['all_reduce {"x"} [{}, {"z"}]', 'reshard [{"z"}, {}]']),
        ('[{"x"}, {}]', '[{}, {"x"}]', ['reshard [{}, {"x"}]']),
        ('[{"x"}, {}]', '[{"x"}, {}]', []),
    ],
)
def test_a_returned_value_gets_the_sharding_of_the_result(source: str, target: str, expected: list[str]) -> None:
    body = "return %a0 : tensor<8x8xf32>"
    assert ops([("8x8", source)], body, ("8x8", target)) == expected
    if "unreduced" not in source + target:
        expected = []
    elif "unreduced" not in target:
        expected = expected[:1]
    assert ops([("8x8", source)], body, ("8x8", target), full=False) == expected


def test_operands_are_reduced_unless_the_result_is_unreduced_too() -> None:
    assert negate('[{}, {}], unreduced={"x"}', "[{}, {}]") == ['all_reduce {"x"} [{}, {}]', "negate [{}, {}]"]
    assert negate('[{}, {}], unreduced={"x"}', '[{}, {}], unreduced={"x"}') == ['negate [{}, {}], unreduced={"x"}']


def test_an_unreduced_result_says_what_is_not_summed_up_yet() -> None:
    body = f"""
      %0 = stablehlo.dot %a0, %a1 {stated('[{}, {}], unreduced={"x"}')} : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
      return %0 : tensor<8x4xf32>"""
    arguments = [("8x16", '[{}, {"x", "y"}]'), ("16x4", '[{"x", "y"}, {}]')]
    for full in (True, False):
        assert ops(arguments, body, ("8x4", '[{}, {}], unreduced={"x"}'), full=full) == [
            'dot [{}, {}], unreduced={"x"}',
            'all_reduce {"y"} [{}, {}], unreduced={"x"}',
        ]


def test_a_call_gets_what_the_function_takes() -> None:
    body = f"""
      %0 = stablehlo.negate %a0 {stated('[{"x"}]')} : tensor<8xf32>
      %1 = call @called(%0) : (tensor<8xf32>) -> tensor<8xf32>
      return %1 : tensor<8xf32>"""
    for full in (True, False):
        program = run([("8", '[{"x"}]')], body, ("8", None), full=full, others=CALLED)
        assert described(program.main.body) == ['negate [{"x"}]', 'reshard [{"y"}]', "call none"]
        assert described(program.functions[1].body) == (["reshard [{}]"] if full else [])


def test_values_that_flow_into_a_loop_get_its_sharding_where_they_are_made() -> None:
    body = f"""
      %i = stablehlo.constant dense<0> : tensor<i32>
      %0:2 = stablehlo.while(%v = %a0, %n = %i) : tensor<8xf32>, tensor<i32>
        attributes {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{"y"}}]>, <@mesh, []>]>}} cond {{
        %c = stablehlo.compare LT, %n, %i : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      }} do {{
        %w = stablehlo.negate %v {stated('[{"z"}]')} : tensor<8xf32>
        stablehlo.return %w, %n : tensor<8xf32>, tensor<i32>
      }}
      return %0#0 : tensor<8xf32>"""
    main = run([("8", '[{"x"}]')], body, ("8", '[{"y"}]')).main.body
    assert described(main) == ['reshard [{"y"}]', "constant none", 'while [{"y"}] []']
    assert described(main.ops[2].regions[1]) == ['reshard [{"z"}]', 'negate [{"z"}]', 'reshard [{"y"}]']


def test_the_body_of_a_manual_computation_does_not_see_manual_axes() -> None:
    body = f"""
      %0 = sdy.manual_computation(%a0) in_shardings=[<@mesh, [{{"x", "y"}}, {{}}]>] out_shardings=[<@mesh, [{{"x"}}, {{"y"}}]>]
          manual_axes={{"x"}} (%b: tensor<4x8xf32>) {{
        %w = stablehlo.negate %b {stated('[{"y"}, {}]')} : tensor<4x8xf32>
        sdy.return %w : tensor<4x8xf32>
      }} : (tensor<8x8xf32>) -> tensor<8x8xf32>
      return %0 : tensor<8x8xf32>"""
    main = run([("8x8", '[{"y"}, {}]')], body, ("8x8", '[{"x"}, {"y"}]')).main.body
    assert described(main) == ['reshard [{"x", "y"}, {}]', "manual_computation none"]
    assert described(main.ops[1].regions[0]) == ['negate [{"y"}, {}]', 'reshard [{}, {"y"}]']


def test_of_meshes_with_the_same_axes_the_one_of_most_tensors_is_taken() -> None:
    body = f"""
      %0 = stablehlo.add %a0, %a1 {stated('@reversed, [{"x"}]')} : tensor<8xf32>
      return %0 : tensor<8xf32>"""
    arguments = [("8", '[{"x"}]'), ("8", '@reversed, [{"x"}]')]
    assert ops(arguments, body, ("8", '@reversed, [{"x"}]')) == ['reshard @reversed, [{"x"}]', 'add @reversed, [{"x"}]']


def test_ops_over_different_axes_and_ops_with_a_rule_of_the_user_are_left_alone() -> None:
    assert negate('@small, [{"x"}]', '[{"y"}]', shape="8") == ['negate [{"y"}]']
    custom = stated('[{"y"}]')[:-1] + ", sdy.sharding_rule = #sdy.op_sharding_rule<([i])->([i]) {i=8}, custom>}"
    body = f"%0 = stablehlo.negate %a0 {custom} : tensor<8xf32>\nreturn %0 : tensor<8xf32>"
    assert ops([("8", '[{"x"}]')], body, ("8", '[{"y"}]')) == ['negate [{"y"}]']


def test_every_insertion_is_recorded() -> None:
    program = from_mlir(MESHES + CALLED)
    program.functions[0].result_shardings[0] = TensorSharding.parse('#sdy.sharding<@mesh, [{"x"}]>')
    log: list[tuple[str, str]] = []
    InsertExplicitReshards(enable_full_version=True).run(program, record=lambda op, why, _: log.append((op.name, why)))
    assert log == [("sdy.reshard", "the function returns it")]


def test_what_shardy_dies_of_is_an_error() -> None:
    arguments = [("8x16", '[{}, {"x"}]'), ("16x4", "[{}, {}]")]
    with pytest.raises(ShardyError, match="sharded differently along reduction factor k"):
        ops(arguments, DOT.replace('[{"y"}, {}]', '[{}, {}], unreduced={"x"}'), ("8x4", None), full=False)
    with pytest.raises(ShardyError, match="must have the same mesh"):
        negate('[{}], unreduced={"x"}', '@small, [{"x"}]', shape="8")


@pytest.mark.slow
def test_golden_cases() -> None:
    """Uses lie in the order that they have in jaxlib; tests/opt/test_opt.py compares the text with the stored one."""
    cases = list(corpus(InsertExplicitReshards.name))
    if not cases:
        pytest.skip("the golden corpus is not here")
    for case in cases:
        program = from_mlir(case["input"])
        program.semantics = Semantics("0.10")
        InsertExplicitReshards(enable_full_version="=true" in case["pipeline"]).run(program)
        if SAME_SHARDY:
            assert dump(program) == dump(jaxlib_program(case["input"], case["pipeline"])), case["id"]
        else:
            assert dump(program, uses=False) == dump(from_mlir(case["output"]), uses=False), case["id"]
