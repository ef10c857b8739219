"""Batch dimensions of gathers and scatters are found as jaxlib finds them."""

from __future__ import annotations

import pytest

from shardy_py.opt import run_passes
from shardy_py.opt.explicit_gather_scatter_batching import ExplicitGatherScatterBatching
from shardy_py.opt.from_mlir import from_mlir, parse_module
from shardy_py.opt.to_mlir import to_mlir
from tests.reference import run_pipeline

PASS = "func.func(sdy-explicit-gather-scatter-batching)"
HEAD = """func.func @f(%x: tensor<4x8xf32>, %o: tensor<4x1xi32>, %p: tensor<4x1xi1>, %c: tensor<i32>) -> tensor<4x1xf32> {
  %i = stablehlo.iota dim = 0 : tensor<4x1xi32>
"""
JOIN = "%indices = stablehlo.concatenate %j, %o, dim = 1 : (tensor<4x1xi32>, tensor<4x1xi32>) -> tensor<4x2xi32>"
TAIL = """
  %r = "stablehlo.gather"(%x, %indices) {
    dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0, 1], index_vector_dim = 1>,
    slice_sizes = array<i64: 1, 1>, indices_are_sorted = true
  } : (tensor<4x8xf32>, tensor<4x2xi32>) -> tensor<4x1xf32>
  return %r : tensor<4x1xf32>
}"""

INDICES = {
    "iota": f"%j = stablehlo.reshape %i : (tensor<4x1xi32>) -> tensor<4x1xi32>\n{JOIN}",
    "flat iota": f"%k = stablehlo.iota dim = 0 : tensor<4xi32>\n%j = stablehlo.reshape %k : (tensor<4xi32>) -> tensor<4x1xi32>\n{JOIN}",
    "wrapped": f"""%n = stablehlo.constant dense<4> : tensor<4x1xi32>
      %a = stablehlo.add %i, %n : tensor<4x1xi32>
      %j = stablehlo.select %p, %a, %i : tensor<4x1xi1>, tensor<4x1xi32>
      {JOIN}""",
    "clamped": f"%j = stablehlo.clamp %c, %i, %c : (tensor<i32>, tensor<4x1xi32>, tensor<i32>) -> tensor<4x1xi32>\n{JOIN}",
    "converted": f"%k = stablehlo.iota dim = 0 : tensor<4x1xi64>\n%j = stablehlo.convert %k : (tensor<4x1xi64>) -> tensor<4x1xi32>\n{JOIN}",
    "other dimension": f"%k = stablehlo.iota dim = 1 : tensor<4x1xi32>\n%j = stablehlo.clamp %k, %k, %k : tensor<4x1xi32>\n{JOIN}",
    "whole": "%indices = stablehlo.iota dim = 0 : tensor<4x2xi32>",
    "broadcast": """%k = stablehlo.iota dim = 0 : tensor<4xi32>
      %indices = stablehlo.broadcast_in_dim %k, dims = [0] : (tensor<4xi32>) -> tensor<4x2xi32>""",
    "second": "%indices = stablehlo.concatenate %o, %i, dim = 1 : (tensor<4x1xi32>, tensor<4x1xi32>) -> tensor<4x2xi32>",
}

SCATTER = """func.func @f(%x: tensor<4x8xf32>, %o: tensor<4x1xi32>, %u: tensor<4x1xf32>) -> tensor<4x8xf32> {
  %i = stablehlo.iota dim = 0 : tensor<4x1xi32>
  %indices = stablehlo.concatenate %i, %o, dim = 1 : (tensor<4x1xi32>, tensor<4x1xi32>) -> tensor<4x2xi32>
  %r = "stablehlo.scatter"(%x, %indices, %u) <{
    indices_are_sorted = true, unique_indices = true,
    scatter_dimension_numbers = #stablehlo.scatter<
      update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>
  }> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) {other.x = 1 : i8} : (tensor<4x8xf32>, tensor<4x2xi32>, tensor<4x1xf32>) -> tensor<4x8xf32>
  return %r : tensor<4x8xf32>
}"""


@pytest.mark.parametrize("text", [*(HEAD + indices + TAIL for indices in INDICES.values()), SCATTER], ids=[*INDICES, "scatter"])
def test_as_in_jaxlib(text: str) -> None:
    assert run_passes(text, PASS) == str(run_pipeline(parse_module(text), f"builtin.module({PASS})"))


def test_a_batched_gather_says_so() -> None:
    program = from_mlir(HEAD + INDICES["second"].replace("%o, %i", "%i, %o") + TAIL, keep=True)
    ExplicitGatherScatterBatching().run(program)
    (op,) = (op for op in program.walk() if op.name == "stablehlo.gather")
    assert op.operands[1] is program.main.arguments[1]
    assert (op.attributes["operand_batching_dims"], op.attributes["start_indices_batching_dims"]) == ((0,), (0,))
    assert (op.attributes["collapsed_slice_dims"], op.attributes["start_index_map"]) == ((), (1,))
    assert "operand_batching_dims = [0]" in to_mlir(program)


def test_a_reshape_that_mixes_dimension_0_is_no_iota() -> None:
    """Here the rows are 0, 0, 1, 1; jaxlib takes them for 0, 1, 2, 3."""
    mixed = f"%k = stablehlo.iota dim = 0 : tensor<2x2xi32>\n%j = stablehlo.reshape %k : (tensor<2x2xi32>) -> tensor<4x1xi32>\n{JOIN}"
    assert "batching" not in run_passes(HEAD + mixed + TAIL, PASS)
