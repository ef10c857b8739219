"""The debug attributes that passes leave are those that jaxlib's leave."""

from __future__ import annotations

import re

import pytest

from shardy_py.opt import run_passes
from shardy_py.opt.debug_attributes import EdgesOfOp
from tests.opt.random_returns import returns
from tests.reference import run_pipeline

MESH = 'sdy.mesh @mesh = <["a"=2, "b"=2, "c"=8]>\n'

MODULES = {
    "merged axes": """func.func @main(%x: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"c":(1)4, ?}, {"c":(4)2, ?}]>})
        -> tensor<16xf32> {
      %0 = stablehlo.reshape %x : (tensor<4x4xf32>) -> tensor<16xf32>
      return %0 : tensor<16xf32>
    }""",
    "inputs and outputs": """func.func @main(
        %x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", ?}, {?}]>},
        %y: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"c", ?}, {?}]>})
        -> (tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"b", ?}]>}) {
      %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
      %1 = stablehlo.add %0, %0 : tensor<8x16xf32>
      return %1 : tensor<8x16xf32>
    }""",
    "constraints": """func.func @main(%x: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
      %0 = stablehlo.add %x, %x : tensor<8x8xf32>
      %1 = sdy.sharding_constraint %0 <@mesh, [{}, {"b"}]> : tensor<8x8xf32>
      %2 = sdy.sharding_constraint %1 <@mesh, [{"a", ?}, {?}]> : tensor<8x8xf32>
      %3 = stablehlo.multiply %2, %2 : tensor<8x8xf32>
      return %3, %1 : tensor<8x8xf32>, tensor<8x8xf32>
    }""",
    "edges": """func.func @main(%x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", ?}, {?}]>}, %y: tensor<8x8xf32>)
        -> (tensor<8x8xf32>, tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"b", ?}]>}) {
      %0:2 = stablehlo.optimization_barrier %x, %y : tensor<8x8xf32>, tensor<8x8xf32>
      %1 = stablehlo.add %0#0, %0#0 : tensor<8x8xf32>
      %2 = stablehlo.add %0#1, %y : tensor<8x8xf32>
      return %1, %2 : tensor<8x8xf32>, tensor<8x8xf32>
    }""",
    "argument returned twice": """func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", ?}]>})
        -> (tensor<8xf32>, tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", "b"}]>}) {
      return %x, %x : tensor<8xf32>, tensor<8xf32>
    }""",
    "part of an axis": """func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"c":(1)2, ?}]>})
        -> (tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"c":(1)4}]>}) {
      %0 = stablehlo.abs %x : tensor<8xf32>
      return %0 : tensor<8xf32>
    }""",
    "operands of a product that are one": """func.func @main(%x: tensor<8x8xf32>)
        -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", ?}, {"b", ?}]>}) {
      %0 = stablehlo.dot %x, %x : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
      return %0 : tensor<8x8xf32>
    }""",
    "group": """func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}]>}, %y: tensor<8xf32>)
        -> (tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", ?}]>}) {
      %0 = stablehlo.abs %x : tensor<8xf32>
      sdy.sharding_group %0 group_id=0 : tensor<8xf32>
      sdy.sharding_group %y group_id=0 : tensor<8xf32>
      return %0 : tensor<8xf32>
    }""",
    "nested computations": """func.func @main(
        %x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"c", ?}]>}) -> tensor<8x8xf32> {
      %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"a", ?}, {?}]>] out_shardings=[<@mesh, [{"a", ?}, {?}]>]
          manual_axes={"a"} (%l: tensor<4x8xf32>) {
        %1 = sdy.manual_computation(%l) in_shardings=[<@mesh, [{?}, {"b", ?}]>] out_shardings=[<@mesh, [{?}, {"b", ?}]>]
            manual_axes={"b"} (%k: tensor<4x4xf32>) {
          %2 = stablehlo.abs %k : tensor<4x4xf32>
          sdy.return %2 : tensor<4x4xf32>
        } : (tensor<4x8xf32>) -> tensor<4x8xf32>
        sdy.return %1 : tensor<4x8xf32>
      } : (tensor<8x8xf32>) -> tensor<8x8xf32>
      return %0 : tensor<8x8xf32>
    }""",
    "manual computation": """func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
      %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"a", ?}, {"b", ?}]>]
          out_shardings=[<@mesh, [{"a", ?}, {?}]>] manual_axes={"a"} (%l: tensor<4x8xf32>) {
        %1 = stablehlo.add %l, %l : tensor<4x8xf32>
        sdy.return %1 : tensor<4x8xf32>
      } : (tensor<8x8xf32>) -> tensor<8x8xf32>
      %2 = stablehlo.abs %0 : tensor<8x8xf32>
      return %2 : tensor<8x8xf32>
    }""",
}


def pipeline(option: str) -> str:
    """Passes that leave the attributes of an option."""
    sink = f"func.func(sdy-sink-data-flow-edges{{sink-{option}=true}})"
    return f"sdy-add-data-flow-edges,sdy-apply-sharding-constraints{{{option}=true}},sdy-aggressive-propagate{{{option}=true}},{sink}"


def by_jaxlib(text: str, passes: str) -> str:
    """What jaxlib makes of a module, without the empty lists of edges that it writes and does not read."""
    return re.sub(
        r", #sdy.propagation_edges<\[\]>|#sdy.propagation_edges<\[\]>(, )?", "", str(run_pipeline(text, f"builtin.module({passes})"))
    )


@pytest.mark.parametrize("option", ["debug-sharding-origins", "debug-propagation-edge-sharding"])
@pytest.mark.parametrize("name", MODULES)
def test_as_in_jaxlib(name: str, option: str) -> None:
    text = MESH + MODULES[name]
    passes = pipeline(option)
    ours = run_passes(text, passes)
    assert option.split("-")[-1].removesuffix("s") in ours
    assert ours == by_jaxlib(text, passes)


def test_an_axis_that_a_group_brought_is_passed_on_with_its_origin() -> None:
    """Shardy writes an origin without a name here."""
    text = (
        MESH
        + """func.func @main(%x: tensor<8xf32>, %y: tensor<8xf32>)
        -> (tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", ?}]>}, tensor<8xf32>) {
      %0 = stablehlo.abs %x : tensor<8xf32>
      sdy.sharding_group %0 group_id=0 : tensor<8xf32>
      sdy.sharding_group %y group_id=0 : tensor<8xf32>
      %1 = stablehlo.abs %y : tensor<8xf32>
      return %0, %1 : tensor<8xf32>, tensor<8xf32>
    }"""
    )
    out = run_passes(text, pipeline("debug-sharding-origins"))
    assert '%arg1: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", ?}]>})' in out
    assert (
        'stablehlo.abs %arg1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a", ?}]>]>, sdy.sharding_origins = [{a = "output: 0"}]}'
        in out
    )


@pytest.mark.parametrize("option", ["debug-sharding-origins", "debug-propagation-edge-sharding"])
@pytest.mark.parametrize("seeds", [range(i, i + 20) for i in range(0, 40, 20)], ids=str)
def test_random_returns_as_in_jaxlib(seeds: range, option: str) -> None:
    for seed in seeds:
        text = returns(seed)
        assert run_passes(text, pipeline(option)) == by_jaxlib(text, pipeline(option)), text


@pytest.mark.parametrize("name", MODULES)
def test_removing_them_again_leaves_nothing(name: str) -> None:
    option = "debug-propagation-edge-sharding"
    text = MESH + MODULES[name]
    plain = run_passes(text, pipeline(option).replace("=true", "=false"))
    assert run_passes(text, f"{pipeline(option)},sdy-remove-propagation-debug-info") == plain


def test_later_passes_go_on_counting() -> None:
    text = run_passes(MESH + MODULES["constraints"], "sdy-apply-sharding-constraints{debug-propagation-edge-sharding=true}")
    assert "step-0" in text
    assert "step-1" in run_passes(text, "sdy-basic-propagate{debug-propagation-edge-sharding=true}")


def test_an_axis_from_the_sharding_of_an_op_has_no_origin() -> None:
    text = (
        MESH
        + """func.func @main() -> tensor<8xf32> {
      %0 = stablehlo.constant {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a", ?}]>]>} dense<1.0> : tensor<8xf32>
      %1 = stablehlo.abs %0 : tensor<8xf32>
      return %1 : tensor<8xf32>
    }"""
    )
    out = run_passes(text, pipeline("debug-sharding-origins"))
    assert 'stablehlo.abs %cst {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a", ?}]>]>}' in out
    assert "sharding_origins" not in out


def test_text_of_edges() -> None:
    text = '#sdy.propagation_edges<[{step-1 = [{"a":(1)2 = operand-0 -> [operand-1, result-0]}, {"b" = result-0 -> [operand-0]}]}, {step-3 = [{"c" = operand-1 -> [result-0]}]}]>'  # noqa: E501
    edges = EdgesOfOp(text)
    assert str(edges) == text
    assert edges.last_step == 3
