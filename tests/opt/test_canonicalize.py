"""`canonicalize` does to SDY ops what jaxlib's does."""

from __future__ import annotations

from typing import Any

import pytest

from shardy_py.opt import canonicalize, run_passes
from shardy_py.opt.canonicalize import Canonicalize
from shardy_py.opt.from_mlir import from_mlir
from tests.opt.random_collectives import collectives
from tests.passes.oracle import corpus, dump, jaxlib_program, jaxlib_text

MESHES = 'sdy.mesh @m = <["a"=2, "b"=2]>\nsdy.mesh @one = <["a"=1, "b"=2]>\n'

RESHARDS = """
func.func @reshards(%x: tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>) {
  %0 = sdy.reshard %x <@m, [{"a"}, {}]> : tensor<8x4xf32>
  %1 = sdy.reshard %0 <@m, [{}, {}]> : tensor<8x4xf32>
  %2 = sdy.reshard %x <@m, [{}, {?}]> : tensor<8x4xf32>
  %3 = sdy.reshard %x <@m, [{"a", ?}, {}]> : tensor<8x4xf32>
  %4 = sdy.reshard %0 <@m, [{"a"}, {}]> : tensor<8x4xf32>
  return %1, %2, %3 : tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>
}
"""
TRANSPOSE = """
func.func @transpose(%x: tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<8x4xf32>, tensor<4x8xf32>) {
  %t = stablehlo.transpose %x, dims = [1, 0] : (tensor<8x4xf32>) -> tensor<4x8xf32>
  %n = stablehlo.negate %t : tensor<4x8xf32>
  %0 = sdy.reshard %x <@m, [{"a"}, {}]> : tensor<8x4xf32>
  %1 = stablehlo.abs %0 : tensor<8x4xf32>
  %2 = sdy.reshard %t <@m, [{}, {"a"}]> : tensor<4x8xf32>
  %3 = stablehlo.abs %2 : tensor<4x8xf32>
  %4 = stablehlo.add %n, %3 : tensor<4x8xf32>
  return %0, %1, %4 : tensor<8x4xf32>, tensor<8x4xf32>, tensor<4x8xf32>
}
"""
RESHAPES = """
func.func @merged(%x: tensor<16x2xf32>) -> (tensor<16x2xf32>, tensor<2x16xf32>) {
  %0 = sdy.reshard %x <@m, [{"a", "b"}, {}]> : tensor<16x2xf32>
  %1 = stablehlo.reshape %x : (tensor<16x2xf32>) -> tensor<2x16xf32>
  %2 = sdy.reshard %1 <@m, [{"a"}, {"b"}]> : tensor<2x16xf32>
  return %0, %2 : tensor<16x2xf32>, tensor<2x16xf32>
}
func.func @uneven(%x: tensor<6x2xf32>) -> (tensor<6x2xf32>, tensor<12xf32>) {
  %0 = sdy.reshard %x <@m, [{"a", "b"}, {}]> : tensor<6x2xf32>
  %1 = stablehlo.reshape %x : (tensor<6x2xf32>) -> tensor<12xf32>
  %2 = sdy.reshard %1 <@m, [{"a", "b"}]> : tensor<12xf32>
  return %0, %2 : tensor<6x2xf32>, tensor<12xf32>
}
func.func @split(%x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x2x2xf32>) {
  %0 = sdy.reshard %x <@m, [{}, {"a", "b"}]> : tensor<4x4xf32>
  %1 = stablehlo.reshape %x : (tensor<4x4xf32>) -> tensor<4x2x2xf32>
  %2 = stablehlo.transpose %1, dims = [0, 2, 1] : (tensor<4x2x2xf32>) -> tensor<4x2x2xf32>
  %3 = sdy.reshard %2 <@m, [{}, {"b"}, {"a"}]> : tensor<4x2x2xf32>
  return %0, %3 : tensor<4x4xf32>, tensor<4x2x2xf32>
}
"""
MANUAL = """
func.func @manual(%x: tensor<8xf32>, %y: tensor<8xf32>, %z: tensor<8xf32>) -> tensor<8xf32> {
  %n = stablehlo.negate %x : tensor<8xf32>
  %0 = sdy.manual_computation(%n, %y, %z) in_shardings=[<@m, [{"a"}]>, <@m, [{"a", "b"}]>, <@m, [{"a", ?}]>]
      out_shardings=[<@m, [{"a"}]>] manual_axes={"a"} (%p: tensor<4xf32>, %q: tensor<4xf32>, %r: tensor<4xf32>) {
    %1 = stablehlo.add %r, %q : tensor<4xf32>
    sdy.return %1 : tensor<4xf32>
  } : (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  sdy.manual_computation(%x) in_shardings=[<@m, [{"a"}]>] out_shardings=[] manual_axes={"a"} (%p: tensor<4xf32>) {
    %2 = stablehlo.add %p, %p : tensor<4xf32>
    sdy.return
  } : (tensor<8xf32>) -> ()
  sdy.manual_computation(%x) in_shardings=[<@one, [{"a"}]>] out_shardings=[] manual_axes={"a"} (%p: tensor<8xf32>) {
    %3 = stablehlo.custom_call @foo(%p) {has_side_effect = true} : (tensor<8xf32>) -> tensor<8xf32>
    sdy.return
  } : (tensor<8xf32>) -> ()
  return %0 : tensor<8xf32>
}
"""
DEAD = """
func.func @dead(%x: tensor<8xf32>, %s: tensor<8xf32> {sdy.sharding=#sdy.sharding<@m, [{"a"}]>}) -> tensor<8xf32> {
  %0 = sdy.sharding_constraint %x <@m, [{"a"}]> : tensor<8xf32>
  sdy.sharding_group %x group_id=0 : tensor<8xf32>
  %1 = sdy.named_computation<"foo">(%x) (%b: tensor<8xf32>) { sdy.return %b : tensor<8xf32> } : (tensor<8xf32>) -> tensor<8xf32>
  %2 = sdy.propagation_barrier %x allowed_direction=NONE : tensor<8xf32>
  %3 = sdy.all_gather [{"a"}] %s out_sharding=<@m, [{}]> : tensor<8xf32>
  %4 = sdy.all_slice [{"a"}] %x out_sharding=<@m, [{"a"}]> : tensor<8xf32>
  %5 = sdy.collective_permute %s out_sharding=<@m, [{"b"}]> : tensor<8xf32>
  %6 = sdy.all_reduce {"b"} %s out_sharding=<@m, [{"a"}]> : tensor<8xf32>
  %7 = sdy.reduce_scatter [{"b"}] %s out_sharding=<@m, [{"a", "b"}]> : tensor<8xf32>
  %8 = sdy.sharded_to_unreduced [{"a"}] %s out_sharding=<@m, [{}], unreduced={"a"}> : tensor<8xf32>
  %9 = stablehlo.optimization_barrier %x : tensor<8xf32>
  %10 = stablehlo.sine %9 : tensor<8xf32>
  %11 = sdy.reshard %10 <@m, [{"a"}]> : tensor<8xf32>
  %12 = sdy.collective_permute %s out_sharding=<@m, [{"a"}]> : tensor<8xf32>
  %13 = stablehlo.add %x, %12 : tensor<8xf32>
  return %13 : tensor<8xf32>
}
"""
COLLECTIVES = """
func.func @gather_slice(%x: tensor<8x8xf32> {sdy.sharding=#sdy.sharding<@m, [{"a"}, {}]>}) -> tensor<8x8xf32> {
  %0 = sdy.all_to_all [{"a"}: 0->1] %x out_sharding=<@m, [{}, {"a"}]> : tensor<8x8xf32>
  %1 = sdy.all_to_all [{"a"}: 1->0] %0 out_sharding=<@m, [{"a"}, {}]> : tensor<8x8xf32>
  %2 = sdy.all_gather [{"a"}, {}] %1 out_sharding=<@m, [{}, {}]> : tensor<8x8xf32>
  %3 = sdy.all_slice [{"a"}, {}] %2 out_sharding=<@m, [{"a"}, {}]> : tensor<8x8xf32>
  %4 = sdy.all_slice [{}, {"b"}] %3 out_sharding=<@m, [{"a"}, {"b"}]> : tensor<8x8xf32>
  return %4 : tensor<8x8xf32>
}
func.func @sharded_to_unreduced(%x: tensor<8x4xf32> {sdy.sharding=#sdy.sharding<@m, [{"a"}, {}]>}) -> tensor<8x4xf32> {
  %0 = sdy.sharded_to_unreduced [{"a"}, {}] %x out_sharding=<@m, [{}, {}], unreduced={"a"}> : tensor<8x4xf32>
  %1 = sdy.all_reduce {"a"} %0 out_sharding=<@m, [{}, {}]> : tensor<8x4xf32>
  return %1 : tensor<8x4xf32>
}
func.func @reduce_scatter(%x: tensor<8x4xf32> {sdy.sharding=#sdy.sharding<@m, [{}, {}]>}) -> tensor<8x4xf32> {
  %0 = sdy.replicated_to_unreduced {"a"} %x out_sharding=<@m, [{}, {}], unreduced={"a"}> : tensor<8x4xf32>
  %1 = sdy.all_reduce {"a"} %0 out_sharding=<@m, [{}, {}]> : tensor<8x4xf32>
  %2 = sdy.all_gather [{}, {}] %1 out_sharding=<@m, [{}, {}]> : tensor<8x4xf32>
  %3 = stablehlo.abs %2 : tensor<8x4xf32>
  %4 = sdy.all_reduce {"a"} %3 out_sharding=<@m, [{}, {}]> : tensor<8x4xf32>
  %5 = sdy.all_slice [{"a"}, {"b"}] %4 out_sharding=<@m, [{"a"}, {"b"}]> : tensor<8x4xf32>
  %6 = stablehlo.abs %5 : tensor<8x4xf32>
  %7 = sdy.all_slice [{"a"}, {"b"}] %4 out_sharding=<@m, [{"a"}, {"b"}]> : tensor<8x4xf32>
  %8 = stablehlo.add %6, %7 : tensor<8x4xf32>
  return %8 : tensor<8x4xf32>
}
"""
MODULES = {
    "reshards": RESHARDS,
    "transpose": TRANSPOSE,
    "reshapes": RESHAPES,
    "manual": MANUAL,
    "dead": DEAD,
    "collectives": COLLECTIVES,
}


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in corpus(Canonicalize.name)])
def test_golden(case: dict[str, Any]) -> None:
    program = from_mlir(case["input"])
    Canonicalize().run(program)
    assert dump(program, uses=False) == dump(from_mlir(case["output"]), uses=False)


@pytest.mark.parametrize("label", ["", canonicalize.RESHARDS, canonicalize.COLLECTIVES])
@pytest.mark.parametrize("name", MODULES)
def test_against_jaxlib(name: str, label: str) -> None:
    text = MESHES + MODULES[name]
    program = from_mlir(text)
    Canonicalize(enable_patterns=(label,) if label else ()).run(program)
    expected = jaxlib_program(text, f"canonicalize{{enable-patterns={label}}}" if label else "canonicalize")
    assert dump(program, uses=False) == dump(expected, uses=False)


@pytest.mark.parametrize("label", ["", canonicalize.COLLECTIVES])
@pytest.mark.parametrize("seeds", [range(i, i + 40) for i in range(0, 80, 40)], ids=str)
def test_random_collectives_against_jaxlib(seeds: range, label: str) -> None:
    """Replicated and unreduced axes, open dimensions, parts of axes; what jaxlib cannot verify afterwards we refuse."""
    passes = f"canonicalize{{enable-patterns={label}}}" if label else "canonicalize"
    refused = 0
    for seed in seeds:
        text = collectives(seed)
        try:
            expected = jaxlib_text(text, passes)
        except ValueError:
            refused += 1
            with pytest.raises(ValueError, match="operation"):
                run_passes(text, passes)
            continue
        assert run_passes(text, passes) == expected, text
    assert refused < len(seeds) / 2
