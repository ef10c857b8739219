"""Every rule of an op and every module that breaks it, with the words of jaxlib, which must reject the module too."""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

from shardy_py.errors import ShardyError
from shardy_py.frontends.mlir import parse_module
from shardy_py.ir.verifier import problems, verify
from tests.ir.unverified import read_unverified

SHARED = pathlib.Path(os.environ.get("SHARDY_SHARED", pathlib.Path(__file__).resolve().parents[3] / "shared"))
CASES = SHARED / "corpus" / "ir-verify.jsonl"

MESHES = """
sdy.mesh @mesh = <["x"=4, "y"=4, "z"=4]>
sdy.mesh @same = <["x"=4, "y"=4, "z"=4]>
sdy.mesh @small = <["x"=4]>
sdy.mesh @max = <[], device_ids=[0]>
"""
XY = '<@mesh, [{"x"}, {"y"}]>'
FREE = "<@mesh, [{}, {}]>"


def in_function(body: str, arguments: str = "%arg0: tensor<8x4xf32>", returned: str = "", results: str = "") -> str:
    return f"{MESHES}\nfunc.func @f({arguments}) {results} {{\n{body}\nreturn {returned}\n}}"


def collective(op: str, operand: str, result: str, shape: str = "16x8") -> str:
    sharding = f" {{sdy.sharding = #sdy.sharding{operand}}}" if operand else ""
    name, _, axes = op.partition(" ")
    return in_function(f"%0 = sdy.{name} {axes} %arg0 out_sharding={result} : tensor<{shape}xf32>", f"%arg0: tensor<{shape}xf32>{sharding}")


def manual(ins: str, outs: str, axes: str, inner: str = "8x4xf32", body: str = "", result: str = "%arg1", returned: str = "") -> str:
    return in_function(
        f"%0 = sdy.manual_computation(%arg0) in_shardings=[{ins}] out_shardings=[{outs}] manual_axes={axes} (%arg1: tensor<{inner}>) {{\n"
        f"{body}\nsdy.return {result} : tensor<{returned or inner}>\n}} : (tensor<8x4xf32>) -> tensor<8x4xf32>"
    )


def while_(cond: str = "8x4xf32", body: str = "8x4xf32", going: str = "%c : tensor<i1>", result: str = "tensor<8x4xf32>") -> str:
    return in_function(
        '%c = stablehlo.constant dense<true> : tensor<i1>\n%0 = "stablehlo.while"(%arg0) ({\n'
        f"^bb0(%a: tensor<{cond}>):\nstablehlo.return {going}\n}}, {{\n^bb0(%b: tensor<{body}>):\nstablehlo.return %b : tensor<{body}>\n}})"
        f" : (tensor<8x4xf32>) -> {result}"
    )


def case(branches: list[str], index: str = "%i", result: str = "tensor<8x4xf32>") -> str:
    kind = "tensor<i32>" if index == "%i" else "tensor<8x4xf32>"
    return in_function(
        '%i = stablehlo.constant dense<1> : tensor<i32>\n%0 = "stablehlo.case"'
        f"({index}) ({', '.join(f'{{{branch}}}' for branch in branches)}) : ({kind}) -> {result}"
    )


def named(body_argument: str = "tensor<8x4xf32>", result: str = "tensor<8x4xf32>", inside: str = "%arg1", shardings: str = "") -> str:
    return in_function(
        f'%0 = sdy.named_computation<"g">(%arg0) {shardings} (%arg1: {body_argument}) {{\n'
        f"sdy.return {inside} : {body_argument}\n}} : (tensor<8x4xf32>) -> {result}"
    )


def edge(body: str, kind: str = "tensor<8x4xf32>", returned: str = "") -> str:
    return in_function(body, f"%arg0: {kind}", returned, f"-> {kind}" if returned else "")


def rule(text: str) -> str:
    body = f"%0 = stablehlo.add %arg0, %arg0 {{sdy.sharding_rule = #sdy.op_sharding_rule{text}}} : tensor<8x4xf32>"
    return in_function(body)


INNER = (
    "%9 = sdy.manual_computation(%arg1) in_shardings=[{0}] out_shardings=[{0}] manual_axes={{{1}}} (%arg2: tensor<8x4xf32>) {{\n"
    "sdy.return %arg2 : tensor<8x4xf32>\n}} : (tensor<8x4xf32>) -> tensor<8x4xf32>"
)
YIELD = "stablehlo.return %arg0 : tensor<8x4xf32>"
BOUND = 'operates on axis "x" which is already bound by a parent sdy.manual_computation op'
MANUAL_FIRST = "operand sharding at index 0 must have all manual axes come before free axes in its dimension sharding at index 0."
LOCAL = "operand shape, corresponding sharding, and region operand shape at index 0 must match."
REDUCED = "reduction axis {} overlaps with operand dimension sharding or replicated axes"
BOTH_WAYS = "cannot specify `BOTH` as the direction. Not blocking propagation direction makes the op redundant."

BROKEN: dict[str, tuple[str, str]] = {
    # Functions and calls.
    "return_count": (in_function("", returned="%arg0 : tensor<8x4xf32>"), "has 1 operands, but enclosing function (@f) returns 0"),
    "return_type": (
        in_function("", returned="%arg0 : tensor<8x4xf32>", results="-> tensor<4x8xf32>"),
        "type of return operand 0 ('tensor<8x4xf32>') doesn't match function result type ('tensor<4x8xf32>') in function @f",
    ),
    "call_unknown": (in_function("func.call @g(%arg0) : (tensor<8x4xf32>) -> ()"), "'g' does not reference a valid function"),
    "call_operands": (in_function("func.call @f() : () -> ()"), "incorrect number of operands for callee"),
    "call_operand": (
        in_function("%c = stablehlo.constant dense<0> : tensor<i32>\nfunc.call @f(%c) : (tensor<i32>) -> ()"),
        "operand type mismatch: expected operand type 'tensor<8x4xf32>', but provided 'tensor<i32>' for operand number 0",
    ),
    "call_results": (
        in_function("%c = func.call @f(%arg0) : (tensor<8x4xf32>) -> tensor<i32>"),
        "incorrect number of results for callee",
    ),
    "two_functions": (in_function("") + "\nfunc.func @f() {\nreturn\n}", "redefinition of symbol named 'f'"),
    "argument_sharding": (
        in_function("", '%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}'),
        "arg 0 - sharding doesn't match tensor rank: 2 != 1",
    ),
    "no_terminator": (f"{MESHES}\nfunc.func @f() {{\n%0 = stablehlo.constant dense<0> : tensor<i32>\n}}", "block with no terminator"),
    "early_terminator": (in_function("return"), "must be the last operation in the parent block"),
    # Control flow.
    "while_cond_arguments": (
        while_(cond="8xf32"),
        "expect operands to be compatible with condition block arguments but got 'tensor<8x4xf32>' vs 'tensor<8xf32>'",
    ),
    "while_body_arguments": (
        while_(body="8xf32"),
        "expect operands to be compatible with body block arguments but got 'tensor<8x4xf32>' vs 'tensor<8xf32>'",
    ),
    "while_predicate": (
        while_(going="%a : tensor<8x4xf32>"),
        "expect condition block return a zero-ranked tensor of i1 but got 'tensor<8x4xf32>'",
    ),
    "while_results": (
        while_(result="tensor<8xf32>"),
        "inferred type(s) 'tensor<8x4xf32>' are incompatible with return type(s) of operation 'tensor<8xf32>'",
    ),
    "case_branches": (
        case([YIELD, "stablehlo.return %i : tensor<i32>"]),
        "branch 0 and branch 1 have mismatched return types: 'tensor<8x4xf32>' vs 'tensor<i32>'",
    ),
    "case_arguments": (case([f"\n^bb0(%u: tensor<i32>):\n{YIELD}\n"]), "branch 0 must have 0 arguments, but found 1"),
    "case_index": (
        case([YIELD], "%arg0"),
        "operand #0 must be ranked tensor of 32-bit signless integer values, but got 'tensor<8x4xf32>'",
    ),
    "case_results": (
        case([YIELD], result="tensor<8xf32>"),
        "inferred type(s) 'tensor<8x4xf32>' are incompatible with return type(s) of operation 'tensor<8xf32>'",
    ),
    "barrier_types": (
        in_function('%0 = "stablehlo.optimization_barrier"(%arg0) : (tensor<8x4xf32>) -> tensor<8xf32>'),
        "requires the same type for operand and result at index 0",
    ),
    # Values and rules.
    "result_sharding": (
        in_function("%0 = stablehlo.add %arg0, %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}]>]>} : tensor<8x4xf32>"),
        "result - sharding doesn't match tensor rank: 1 != 2",
    ),
    "no_shardings": (
        in_function("%0 = stablehlo.add %arg0, %arg0 {sdy.sharding = #sdy.sharding_per_value<[]>} : tensor<8x4xf32>"),
        "result shardings don't match number of values: 0 shardings vs 1 values",
    ),
    "unknown_mesh": (in_function("%0 = sdy.reshard %arg0 <@nowhere, [{}, {}]> : tensor<8x4xf32>"), "unknown mesh: @nowhere"),
    "rule_kind": (
        in_function("%0 = stablehlo.add %arg0, %arg0 {sdy.sharding_rule = 1 : i32} : tensor<8x4xf32>"),
        "should have a sharding rule attribute of type OpShardingRuleAttr for attr named 'sdy.sharding_rule'",
    ),
    "rule_operands": (rule("<([i, j])->([i, j]) {i=8, j=4}>"), "number of operands and mappings must match: 2 != 1"),
    "rule_rank": (rule("<([i], [i])->([i]) {i=8}>"), "operand 0 - mapping rank must match: 1 != 2"),
    # Annotations.
    "constraint_rank": (
        in_function("%0 = sdy.sharding_constraint %arg0 <@mesh, [{}]> : tensor<8x4xf32>"),
        "sharding doesn't match tensor rank: 1 != 2",
    ),
    "constraint_maximal": (
        in_function("%0 = sdy.sharding_constraint %arg0 <@max, [{}, {}]> : tensor<8x4xf32>"),
        "a maximal sharding can only have a sharding with rank 0 and no replicated or unreduced axes.",
    ),
    "barrier_both": (in_function("%0 = sdy.propagation_barrier %arg0 allowed_direction=BOTH : tensor<8x4xf32>"), BOTH_WAYS),
    # Computations.
    "named_result": (
        named(result="tensor<4xf32>"),
        "inferred type(s) 'tensor<8x4xf32>' are incompatible with return type(s) of operation 'tensor<4xf32>'",
    ),
    "named_capture": (named(inside="%arg0"), "using value defined outside the region"),
    "named_in_shardings": (
        named(shardings="in_shardings=[<@mesh, [{}]>]"),
        "in_shardings - sharding doesn't match tensor rank: 1 != 2",
    ),
    "named_terminator": (
        in_function(
            '%0 = "sdy.named_computation"(%arg0) <{name = "g"}> ({\n^bb0(%arg1: tensor<8x4xf32>):\n'
            "stablehlo.return %arg1 : tensor<8x4xf32>\n}) : (tensor<8x4xf32>) -> tensor<8x4xf32>"
        ),
        "expects regions to end with 'sdy.return', found 'stablehlo.return'",
    ),
    "named_argument": (
        in_function(
            '%0 = "sdy.named_computation"(%arg0) <{name = "g"}> ({\n^bb0(%arg1: tensor<8xf32>):\n'
            "sdy.return %arg1 : tensor<8xf32>\n}) : (tensor<8x4xf32>) -> tensor<8xf32>"
        ),
        "expected the type of the 0'th block argument to match the type of the corresponding operand: 'tensor<8xf32>' vs 'tensor<8x4xf32>'",
    ),
    "manual_meshes": (
        manual('<@mesh, [{"x"}, {}]>', '<@small, [{"x"}, {}]>', '{"x"}', "2x4xf32"),
        "all in and out shardings must be bound to the same mesh or an empty mesh.",
    ),
    "manual_unknown": (manual(FREE, FREE, '{"w"}'), 'unknown manual axis: "w"'),
    "manual_order": (
        manual('<@mesh, [{"y", "x"}, {}]>', FREE, '{"x"}'),
        MANUAL_FIRST + ' Saw manual axis "x" after free axis "y"',
    ),
    "manual_uneven": (
        manual('<@mesh, [{"x", "y"}, {}]>', FREE, '{"x", "y"}'),
        "operand dimension size 8 is not divisible by the manual axes size 16",
    ),
    "manual_local": (
        manual('<@mesh, [{"x"}, {}]>', FREE, '{"x"}'),
        LOCAL + " Expected local shape 'tensor<2x4xf32>', actual local shape 'tensor<8x4xf32>'",
    ),
    "manual_count": (
        manual(f"{FREE}, {FREE}", FREE, "{}"),
        "operand shardings don't match number of values: 2 shardings vs 1 values",
    ),
    "manual_capture": (manual(FREE, FREE, "{}", result="%arg0"), "using value defined outside the region"),
    "manual_twice": (manual(FREE, FREE, '{"x"}', body=INNER.format(FREE, '"x"')), BOUND),
    "manual_within": (manual(FREE, FREE, '{"x"}', body=INNER.format('<@mesh, [{"x"}, {}]>', '"y"')), f"operand - {BOUND}"),
    "manual_sharding": (
        manual(FREE, FREE, '{"x"}', body='%9 = sdy.reshard %arg1 <@mesh, [{"x"}, {}]> : tensor<8x4xf32>'),
        BOUND,
    ),
    # Edges.
    "edge_dynamic": (
        edge("%0 = sdy.data_flow_edge %arg0 : tensor<?xf32>", "tensor<?xf32>"),
        "expected sdy.data_flow_edge to have a static-shaped result",
    ),
    "edge_users": (
        edge("%0 = sdy.data_flow_edge %arg0 : tensor<8x4xf32>", returned="%arg0 : tensor<8x4xf32>"),
        "expected input of sdy.data_flow_edge to have a single user",
    ),
    "edge_of_edge": (
        edge("%0 = sdy.data_flow_edge %arg0 : tensor<8x4xf32>\n%1 = sdy.data_flow_edge %0 : tensor<8x4xf32>"),
        "expected input of sdy.data_flow_edge to not be defined by an SdyDialect op (other than an sdy.named_computation).",
    ),
    "edge_sharding": (
        edge("%0 = sdy.data_flow_edge %arg0 sharding=<@mesh, [{}]> : tensor<8x4xf32>"),
        "sharding doesn't match tensor rank: 1 != 2",
    ),
    "function_edge": (
        edge("%0 = stablehlo.negate %arg0 : tensor<8x4xf32>\n%1 = sdy.func_data_flow_edge %0 : tensor<8x4xf32>"),
        "expected operand of sdy.func_data_flow_edge to be a result of call op.",
    ),
    # Collectives.
    "gather_without_sharding": (collective("all_gather [{}, {}]", "", XY), "collective on operand without sharding"),
    "gather_mesh": (collective("all_gather [{}, {}]", '<@small, [{"x"}, {}]>', XY), "result mesh does not match operand mesh"),
    "gather_unknown": (collective('all_gather [{"w"}, {}]', XY, XY), 'unknown axis name: "w"'),
    "gather_rank": (collective("all_gather [{}]", XY, XY), "result sharding has rank 2 but collective axes has rank 1"),
    "gather_not_there": (
        collective('all_gather [{"z"}, {}]', XY, XY),
        'can\'t apply gathering axis "z" to operand sharding on dimension 0',
    ),
    "gather_result": (
        collective('all_gather [{"x":(2)2}, {}]', XY, XY),
        'result sharding doesn\'t match expected sharding ["x":(1)2] on dimension 0',
    ),
    "gather_out": (collective("all_gather [{}, {}]", XY, "<@mesh, [{}]>"), "sharding doesn't match tensor rank: 1 != 2"),
    "slice_result": (
        collective('all_slice [{}, {"z"}]', "", FREE),
        'result sharding doesn\'t match expected sharding ["z"] on dimension 1',
    ),
    "move_nothing": (collective("all_to_all []", XY, XY), "parameter list is empty"),
    "move_from": (collective('all_to_all [{"x"}: 5->1]', XY, XY), "source dimension 5 is out of range [0, 2)"),
    "move_to": (collective('all_to_all [{"x"}: 0->7]', XY, XY), "target dimension 7 is out of range [0, 2)"),
    "move_twice": (
        collective('all_to_all [{"x"}: 0->1, {"y"}: 1->0]', XY, XY),
        "overlapping source/target dimensions in all-to-all params: 1",
    ),
    "move_order": (
        collective('all_to_all [{"y"}: 2->1, {"x"}: 0->3]', '<@mesh, [{"x"}, {}, {"y"}, {}]>', "<@mesh, [{}, {}, {}, {}]>", "8x8x8x8"),
        "source dimensions are not sorted in ascending order: 0 appears after 2",
    ),
    "move_not_there": (
        collective('all_to_all [{"z"}: 0->1]', XY, XY),
        'can\'t apply all-to-all axis "z" to operand sharding on dimension 0',
    ),
    "move_result": (
        collective('all_to_all [{"y"}: 1->0]', XY, '<@mesh, [{"x"}, {}]>'),
        'result sharding doesn\'t match expected sharding ["x", "y"] on dimension 0',
    ),
    "move_others": (
        collective('all_to_all [{"x"}: 0->1]', '<@mesh, [{"x"}, {}, {"y"}]>', '<@mesh, [{}, {"x"}, {"z"}]>', "8x8x8"),
        'result sharding doesn\'t match expected sharding ["y"] on dimension 2',
    ),
    "permute_axes": (
        collective("collective_permute", '<@small, [{"x"}, {}]>', XY),
        "result mesh has different axes than operand mesh",
    ),
    "permute_same": (
        collective("collective_permute", XY, '<@same, [{"y"}, {"x"}]>'),
        "result mesh name is different but same device ids as operand",
    ),
    "permute_sizes": (
        collective("collective_permute", XY, '<@mesh, [{"x", "y"}, {}]>'),
        "sharded size of result doesn't match operand on dimension 0: 16 != 4",
    ),
    "permute_rank": (
        collective("collective_permute", XY, "<@max, []>"),
        "result sharding has rank 0 but operand sharding has rank 2",
    ),
    "reduce_shardings": (collective('all_reduce {"z"}', "", XY), "operand and result shardings are not equivalent"),
    "reduce_order": (collective('all_reduce {"z", "y"}', "", FREE), "reduction axes are not ordered w.r.t. mesh"),
    "reduce_sharded": (collective('all_reduce {"x"}', XY, XY), REDUCED.format('"x"')),
    "reduce_replicated": (
        collective('all_reduce {"z"}', '<@mesh, [{"x"}, {}], replicated={"z"}>', '<@mesh, [{"x"}, {}]>'),
        REDUCED.format('"z"'),
    ),
    "reduce_unreduced": (
        collective('all_reduce {"z"}', FREE, '<@mesh, [{}, {}], unreduced={"z"}>'),
        'reduction axis "z" overlaps with result unreduced axes',
    ),
    "scatter_result": (
        collective('reduce_scatter [{"z"}, {}]', XY, XY),
        'result sharding doesn\'t match expected sharding ["x", "z"] on dimension 0',
    ),
    "unreduce_not_there": (
        collective('sharded_to_unreduced [{"z"}, {}]', XY, XY),
        'can\'t apply shard-to-unreduce axis "z" to operand sharding on dimension 0',
    ),
    "unreduce_axes": (
        collective('sharded_to_unreduced [{"x"}, {}]', XY, '<@mesh, [{}, {"y"}]>'),
        "out_unreduced_axes should be in_unreduced_axes + sharded_to_unreduced_axes",
    ),
    "r2u_dims": (
        collective('replicated_to_unreduced {"z"}', XY, '<@mesh, [{"x", ?}, {"y"}], unreduced={"z"}>'),
        "input and output must share the same dimension shardings",
    ),
    "r2u_empty": (collective("replicated_to_unreduced {}", XY, XY), "r2u axes must not be empty"),
    "r2u_order": (collective('replicated_to_unreduced {"z", "y"}', FREE, FREE), "r2u axes are not ordered w.r.t. mesh"),
    "r2u_sharded": (
        collective('replicated_to_unreduced {"x"}', XY, XY),
        'r2u axis "x" overlaps with operand dimension sharding',
    ),
    "r2u_unreduced": (
        collective('replicated_to_unreduced {"z"}', '<@mesh, [{}, {}], unreduced={"z"}>', '<@mesh, [{}, {}], unreduced={"z"}>'),
        'r2u axis "z" overlaps with operand unreduced axes',
    ),
    "r2u_axes": (
        collective('replicated_to_unreduced {"z"}', FREE, FREE),
        "out_unreduced_axes should be in_unreduced_axes + r2u_axes",
    ),
}

VALID = {
    "gather": collective('all_gather [{"x"}, {"y":(2)2}]', XY, '<@mesh, [{}, {"y":(1)2}]>'),
    "gather_equal_meshes": collective("all_gather [{}, {}]", '<@same, [{"x"}, {"y"}]>', XY),
    "slice": collective('all_slice [{}, {"z"}]', "", '<@mesh, [{}, {"z"}]>'),
    "slice_merges": collective('all_slice [{"x":(2)2}, {}]', '<@mesh, [{"x":(1)2}, {}]>', '<@mesh, [{"x"}, {}]>'),
    "move": collective('all_to_all [{"x"}: 0->1]', XY, '<@mesh, [{}, {"y", "x"}]>'),
    "permute": collective("collective_permute", XY, '<@mesh, [{"y"}, {"x"}]>'),
    "reduce": collective('all_reduce {"z"}', "", FREE),
    "scatter": collective('reduce_scatter [{}, {"z"}]', "", '<@mesh, [{}, {"z"}]>'),
    "unreduce": collective('sharded_to_unreduced [{"x"}, {}]', XY, '<@mesh, [{}, {"y"}], unreduced={"x"}>'),
    "r2u": collective('replicated_to_unreduced {"z"}', XY, '<@mesh, [{"x"}, {"y"}], unreduced={"z"}>'),
    "manual": manual('<@mesh, [{"x", "y"}, {}]>', '<@mesh, [{"x"}, {}]>', '{"x"}', "2x4xf32"),
    "manual_unused": manual(FREE, FREE, '{"x"}'),
    "manual_nested": manual(FREE, FREE, '{"x"}', body=INNER.format(FREE, '"y"')),
    "named": named(shardings=f"in_shardings=[{XY}]"),
    "while": while_(),
    "case": case([YIELD, YIELD]),
    "barrier": in_function("%0 = sdy.propagation_barrier %arg0 allowed_direction=NONE : tensor<8x4xf32>"),
    "edge": edge("%0 = sdy.data_flow_edge %arg0 : tensor<8x4xf32>", returned="%0 : tensor<8x4xf32>"),
}


def cases() -> Iterator[Any]:
    if not CASES.exists():
        yield pytest.param({}, id="none", marks=pytest.mark.skip(reason="the cases of the reference are not here"))
        return
    for line in CASES.read_text().splitlines():
        found = json.loads(line)
        # How axes have propagated is kept as text, which is not looked into.
        if "propagation_edges<" not in found["input"]:
            yield pytest.param(found, id=found["id"].removeprefix("ir-verify/"))


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_found(name: str) -> None:
    text, what = BROKEN[name]
    found = problems(read_unverified(text))
    assert [problem.what for problem in found][:1] == [what]


@pytest.mark.parametrize("name", BROKEN)
def test_jaxlib_says_the_same(name: str) -> None:
    text, what = BROKEN[name]
    with pytest.raises(ValueError) as error:
        parse_module(text)
    assert what in str(error.value).replace("a single-device sharding", "a maximal sharding")  # as later versions say


@pytest.mark.parametrize("name", VALID)
def test_what_is_valid_passes(name: str) -> None:
    parse_module(VALID[name])
    verify(read_unverified(VALID[name]))


@pytest.mark.parametrize("case_", list(cases()))
def test_cases_of_the_reference(case_: dict[str, Any]) -> None:
    errors = [d["text"] for d in case_.get("diagnostics", ()) if d["severity"] == "error"]
    wanted = [re.sub(r"^(custom op '[\w.]+' |('[\w.]+' )?op )", "", text) for text in errors]
    said = _said(case_["input"])
    assert bool(said) == bool(wanted)
    assert not wanted or any(text in said[0] or said[0] in text for text in wanted)


def _said(text: str) -> list[str]:
    """The fault of a module, also where its text is refused already."""
    try:
        return [problem.what for problem in problems(read_unverified(text))]
    except ShardyError as error:
        return [error.what]
