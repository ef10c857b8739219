"""Modules that MLIR takes and few write: every pass gives a module that can be read, or an error that names the op."""

from __future__ import annotations

import re

import pytest

from shardy_py.errors import ShardyError
from shardy_py.opt import run_passes
from shardy_py.opt.from_mlir import parse_module
from shardy_py.opt.table import PASSES
from tests.passes.oracle import jaxlib_text
from tests.reference import SAME_SHARDY

TYPE = "tensor<8x8xf32>"
MESH = 'sdy.mesh @mesh = <["a"=2, "b"=3]>\n'
ROWS = '{sdy.sharding = #sdy.sharding<@mesh, [{"a", ?}, {?}]>}'

MODULES = {
    "no function": MESH,
    "a declaration": f"{MESH}func.func private @f({TYPE} {ROWS}) -> {TYPE}",
    "two declarations": f"{MESH}func.func private @f({TYPE}) -> {TYPE}\nfunc.func private @g({TYPE}) -> {TYPE}",
    "calls in a ring": f"""{MESH}func.func @main(%x: {TYPE} {ROWS}) -> {TYPE} {{
  %0 = call @same(%x) : ({TYPE}) -> {TYPE}
  %1 = call @same(%0) : ({TYPE}) -> {TYPE}
  %2 = stablehlo.abs %1 : {TYPE}
  return %2 : {TYPE}
}}
func.func private @same(%x: {TYPE}) -> {TYPE} {{ return %x : {TYPE} }}""",
    "several functions and no main": f"""{MESH}func.func @f(%x: {TYPE} {ROWS}) -> {TYPE} {{ return %x : {TYPE} }}
func.func @g(%x: {TYPE} {ROWS}) -> {TYPE} {{ return %x : {TYPE} }}""",
    "a slice of unknown size": f"""{MESH}func.func @main(%x: {TYPE} {ROWS}) -> tensor<22x8xf32> {{
  %0 = stablehlo.slice %x [0:8:2, 0:8] : ({TYPE}) -> tensor<?x8xf32>
  %1 = stablehlo.concatenate %0, %x, dim = 0 : (tensor<?x8xf32>, {TYPE}) -> tensor<22x8xf32>
  return %1 : tensor<22x8xf32>
}}""",
    "a slice of unknown size of what is padded": f"""{MESH}func.func @main(%x: {TYPE}) -> tensor<?x8xf32> {{
  %0 = sdy.all_slice [{{"b"}}, {{}}] %x out_sharding=<@mesh, [{{"b"}}, {{}}]> : {TYPE}
  %1 = stablehlo.slice %0 [0:8:2, 0:8] : ({TYPE}) -> tensor<?x8xf32>
  return %1 : tensor<?x8xf32>
}}""",
    "a group of other ranks": f"""{MESH}func.func @main(%x: {TYPE} {ROWS}, %y: tensor<8xf32>) -> {TYPE} {{
  sdy.sharding_group %x group_id=1 : {TYPE}
  sdy.sharding_group %y group_id=1 : tensor<8xf32>
  %0 = stablehlo.broadcast_in_dim %y, dims = [0] : (tensor<8xf32>) -> {TYPE}
  return %0 : {TYPE}
}}""",
    "a scalar that is sliced": f"""{MESH}func.func @main(%x: tensor<f32>) -> tensor<f32> {{
  %0 = sdy.all_slice [] %x out_sharding=<@mesh, []> : tensor<f32>
  %1 = stablehlo.abs %0 {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>]>}} : tensor<f32>
  return %1 : tensor<f32>
}}""",
    "a reshape of more elements than MLIR counts": f"""{MESH}func.func @main(%x: tensor<8x8xf32> {ROWS}) -> tensor<8x8xf32> {{
  %0 = stablehlo.broadcast_in_dim %x, dims = [0, 1] : (tensor<8x8xf32>) -> tensor<8x8x{1 << 62}xf32>
  %1 = stablehlo.reshape %0 : (tensor<8x8x{1 << 62}xf32>) -> tensor<4x{1 << 62}xf32>
  return %x : tensor<8x8xf32>
}}""",
}


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("module", MODULES)
def test_a_result_or_an_error_of_the_library(module: str, name: str) -> None:
    try:
        result = run_passes(MODULES[module], name)
    except ShardyError as caught:
        error = caught
    else:
        parse_module(result)
        return
    assert error.where or error.fix
    assert module not in ("no function", "a declaration")


def test_shardings_go_round_a_ring_of_calls() -> None:
    text, passes = MODULES["calls in a ring"], "sdy-add-func-data-flow-edges,sdy-basic-propagate"
    written = run_passes(text, passes)
    assert '= stablehlo.abs %3 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a", ?}, {?}]>]>}' in written
    assert written == jaxlib_text(text, passes)


def test_what_is_padded_keeps_its_dimensions_known() -> None:
    with pytest.raises(ShardyError, match=r"'stablehlo.slice' cannot be padded\n  where: 'stablehlo.slice' at -:4") as error:
        run_passes(MODULES["a slice of unknown size of what is padded"], "sdy-pad-for-divisibility")
    assert "no static shape" in str(error.value)


TWO_SHARDINGS = f"""{MESH}func.func @main(%x: {TYPE}) -> {TYPE} {{
  %0 = OP %x OUT<@mesh, [{{"a"}}, {{}}]> {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{?}}, {{"a"}}]>]>}} : {TYPE}
  return %0 : {TYPE}
}}"""


@pytest.mark.parametrize(
    "passes",
    ["sdy-close-shardings", "sdy-basic-propagate", "sdy-propagation-pipeline", *["sdy-export-pipeline"] * SAME_SHARDY],  # 0.12 loses a mesh
)
@pytest.mark.parametrize(
    ("op", "label"), [("sdy.sharding_constraint", ""), ("sdy.reshard", ""), ('sdy.all_slice [{"a"}, {}]', "out_sharding=")]
)
def test_the_sharding_of_its_own_counts_before_one_that_any_op_may_have(op: str, label: str, passes: str) -> None:
    text = TWO_SHARDINGS.replace("OP", op).replace("OUT", label)
    assert run_passes(text, passes) == jaxlib_text(text, passes)


COLLECTIVES = {
    "all_reduce": "{PART} %0 out_sharding=<@mesh, [{}, {}]>",
    "all_slice": "[{PART}, {}] %0 out_sharding=<@mesh, [{PART}, {}]>",
    "replicated_to_unreduced": "{PART} %0 out_sharding=<@mesh, [{}, {}], unreduced={PART}>",
}


@pytest.mark.parametrize("part", ['"a":(2)2', '"a":(3)2', '"a":(1)3', '"a":(4)1', '"b":(9223372036854775807)2'])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_move_parts_that_their_axes_have(name: str, part: str) -> None:
    op = COLLECTIVES[name].replace("PART", part)
    text = f"""{MESH}func.func @main(%x: {TYPE}) -> {TYPE} {{
  %0 = sdy.sharding_constraint %x <@mesh, [{{}}, {{}}]> : {TYPE}
  %1 = sdy.{name} {op} : {TYPE}
  return %1 : {TYPE}
}}"""
    with pytest.raises(ShardyError, match="sub-axis") as error:
        run_passes(text, "sdy-convert-global-to-local")
    assert re.search(r"-\"?:4", str(error.value))
