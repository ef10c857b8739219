"""The order in which ops are visited, dead code, function results and the ops that hold other ops.

The result of every module was checked by hand; `propagated` asserts that jaxlib makes the same of it.
"""

from __future__ import annotations

import pytest

from shardy_py.opt.from_mlir import from_mlir
from shardy_py.opt.propagate import AggressivePropagate
from shardy_py.passes.propagation.rounds import Propagation
from tests.passes.propagation.modules import MESH_TEXT, USER_PRIORITY, propagated

Case = tuple[str, list[str]]

# the first op of a chain decides, and what it changes is visited before the next op in order
ORDER_DECIDES: Case = (
    """
func.func @main(
  %x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {?}]>},
  %y: tensor<8x8xf32>,
  %z: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"b"}, {?}]>})
  -> tensor<8x8xf32> {
  %0 = stablehlo.add %x, %y : tensor<8x8xf32>
  %1 = stablehlo.add %z, %y : tensor<8x8xf32>
  %2 = stablehlo.add %0, %1 : tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}
""",
    [
        'argument 0 [{"a"}, {?}]',
        'argument 1 [{"a", ?}, {?}]',
        'argument 2 [{"b"}, {?}]',
        'add [{"a", ?}, {?}]',
        'add [{"a", ?}, {?}]',
        'add [{"a", ?}, {?}]',
        'result 0 [{"a", ?}, {?}]',
    ],
)

# a change is followed to its users and definition first, so that the constraint nearer to the top wins
DEPTH_FIRST: Case = (
    """
func.func @main(%x: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  %0 = stablehlo.negate %x : tensor<8x8xf32>
  %1 = stablehlo.abs %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a"}, {}]>]>} : tensor<8x8xf32>
  %2 = stablehlo.add %0, %1 : tensor<8x8xf32>
  %3 = stablehlo.sine %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"b"}, {}]>]>} : tensor<8x8xf32>
  %4 = stablehlo.add %2, %3 : tensor<8x8xf32>
  return %4, %0 : tensor<8x8xf32>, tensor<8x8xf32>
}
""",
    [
        'argument 0 [{"a", ?}, {?}]',
        'negate [{"a", ?}, {?}]',
        'abs [{"a"}, {}]',
        'add [{"a", ?}, {?}]',
        'sine [{"b"}, {}]',
        'result 1 [{"a", ?}, {?}]',
    ],
)

# an op that dies is still visited where its user comes later; both are gone afterwards, and so is a branch without results
DEAD_OPS: Case = (
    """
func.func @main(%x: tensor<8xf32>, %n: tensor<i32>) -> tensor<8xf32> {
  %0 = stablehlo.negate %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a"}]>]>} : tensor<8xf32>
  %1 = stablehlo.abs %0 : tensor<8xf32>
  "stablehlo.case"(%n) ({
    %3 = stablehlo.abs %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a"}]>]>} : tensor<8xf32>
    stablehlo.return
  }) : (tensor<i32>) -> ()
  %2 = stablehlo.custom_call @effect(%x) {has_side_effect = true} : (tensor<8xf32>) -> tensor<8xf32>
  return %x : tensor<8xf32>
}
""",
    [
        'argument 0 [{"a", ?}]',
        'result 0 [{"a", ?}]',
    ],
)

# a constraint stays even when nobody uses it, unlike its users
DEAD_CONSTRAINT: Case = (
    """
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = sdy.sharding_constraint %x <@mesh, [{"a", ?}]> : tensor<8xf32>
  %1 = stablehlo.abs %0 : tensor<8xf32>
  return %x : tensor<8xf32>
}
""",
    [
        'argument 0 [{"a", ?}]',
        'sharding_constraint [{"a", ?}]',
        'result 0 [{"a", ?}]',
    ],
)

# results give their sharding to the returned value and take it, the value's first result first
FUNCTION_RESULTS: Case = (
    """
func.func @main(
  %x: tensor<8xf32>)
  -> (tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}]>},
      tensor<8xf32>,
      tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"b"}]>}) {
  %0 = stablehlo.negate %x : tensor<8xf32>
  return %0, %0, %x : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
}
""",
    [
        'argument 0 [{"b", ?}]',
        'negate [{"a", ?}]',
        'result 0 [{"a"}]',
        'result 1 [{"a", ?}]',
        'result 2 [{"b"}]',
    ],
)

# only the results of main take part; ops of other functions propagate
OTHER_FUNCTIONS: Case = (
    """
func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}]>}) -> tensor<8xf32> {
  %0 = stablehlo.negate %x : tensor<8xf32>
  return %0 : tensor<8xf32>
}
func.func private @other(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"b"}]>}) -> tensor<8xf32> {
  %0 = stablehlo.negate %x : tensor<8xf32>
  return %0 : tensor<8xf32>
}
""",
    [
        'argument 0 [{"a"}]',
        'negate [{"a", ?}]',
        'result 0 [{"a", ?}]',
        'other argument 0 [{"b"}]',
        'other negate [{"b", ?}]',
    ],
)

# all results of an op are stated where one is
SEVERAL_RESULTS: Case = (
    """
func.func @main(%x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}, %y: tensor<8x8xi32>) -> tensor<8x8xf32> {
  %0:2 = "stablehlo.sort"(%x, %y) ({
   ^bb0(%p: tensor<f32>, %q: tensor<f32>, %r: tensor<i32>, %s: tensor<i32>):
    %1 = stablehlo.compare LT, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }) {dimension = 1 : i64} : (tensor<8x8xf32>, tensor<8x8xi32>) -> (tensor<8x8xf32>, tensor<8x8xi32>)
  return %0#0 : tensor<8x8xf32>
}
""",
    [
        'argument 0 [{"a"}, {}]',
        'argument 1 [{"a", ?}, {?}]',
        'sort [{"a", ?}, {?}] [{"a", ?}, {?}]',
        'result 0 [{"a", ?}, {?}]',
    ],
)

# the edge of a loop holds the sharding of operand, argument and result
LOOP: Case = (
    """
func.func @main(
  %x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {?}]>},
  %n: tensor<i32>)
  -> (tensor<8x8xf32>,
      tensor<8x8xf32>) {
  %z = stablehlo.constant dense<1.0> : tensor<8x8xf32>
  %w:2 = stablehlo.while(%i = %n, %c = %x) : tensor<i32>, tensor<8x8xf32>
   cond { %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
     stablehlo.return %p : tensor<i1> }
   do {
     %t = stablehlo.abs %c : tensor<8x8xf32>
     %d = stablehlo.dot %t, %z : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
     stablehlo.return %i, %d : tensor<i32>, tensor<8x8xf32> }
  %w0 = sdy.data_flow_edge %w#0 : tensor<i32>
  %w1 = sdy.data_flow_edge %w#1 : tensor<8x8xf32>
  %u = stablehlo.sine %w1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a"}, {?}]>]>} : tensor<8x8xf32>
  return %u, %w1 : tensor<8x8xf32>, tensor<8x8xf32>
}
""",
    [
        'argument 0 [{"a", ?}, {?}]',
        'abs [{"a", ?}, {?}]',
        'dot [{"a", ?}, {?}]',
        'data_flow_edge [{"a", ?}, {?}]',
        'sine [{"a"}, {?}]',
        'result 0 [{"a", ?}, {?}]',
        'result 1 [{"a", ?}, {?}]',
    ],
)

# into and out of a named computation
NAMED_COMPUTATION: Case = (
    """
func.func @main(%x: tensor<8xf32>, %n: tensor<i32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %f = sdy.named_computation<"f">(%x) (%h: tensor<8xf32>) {
    %e = sdy.data_flow_edge %h : tensor<8xf32>
    %m = stablehlo.negate %e : tensor<8xf32>
    sdy.return %m : tensor<8xf32>
  } : (tensor<8xf32>) -> tensor<8xf32>
  %g = sdy.data_flow_edge %f : tensor<8xf32>
  %u = stablehlo.sine %g {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a"}]>]>} : tensor<8xf32>
  return %u, %x : tensor<8xf32>, tensor<8xf32>
}
""",
    [
        'argument 0 [{"a", ?}]',
        'data_flow_edge [{"a", ?}]',
        'negate [{"a", ?}]',
        'data_flow_edge [{"a", ?}]',
        'sine [{"a"}]',
        'result 0 [{"a", ?}]',
        'result 1 [{"a", ?}]',
    ],
)

# axes that are manual inside are added and taken away at the border of a manual computation
MANUAL_COMPUTATION: Case = (
    """
func.func @main(%x: tensor<16x8xf32>) -> tensor<16x8xf32> {
  %f = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"a", ?}, {?}]>]
    out_shardings=[<@mesh, [{"a", ?}, {?}]>]
    manual_axes={"a"} (%h: tensor<8x8xf32>) {
    %e = sdy.data_flow_edge %h sharding=<@mesh, [{?}, {?}]> : tensor<8x8xf32>
    %m = stablehlo.negate %e : tensor<8x8xf32>
    sdy.return %m : tensor<8x8xf32>
  } : (tensor<16x8xf32>) -> tensor<16x8xf32>
  %g = sdy.data_flow_edge %f sharding=<@mesh, [{"a", ?}, {?}]> : tensor<16x8xf32>
  %u = stablehlo.sine %g {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a", "b"}, {"c"}]>]>} : tensor<16x8xf32>
  return %u : tensor<16x8xf32>
}
""",
    [
        'argument 0 [{"a", "b", ?}, {"c", ?}]',
        'data_flow_edge [{"b", ?}, {"c", ?}]',
        'negate [{"b", ?}, {"c", ?}]',
        'data_flow_edge [{"a", "b", ?}, {"c", ?}]',
        'sine [{"a", "b"}, {"c"}]',
        'result 0 [{"a", "b", ?}, {"c", ?}]',
    ],
)

# nothing passes an op whose value is on one device
ONE_DEVICE: Case = (
    """
sdy.mesh @maximal = <[], device_ids=[3]>
func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}]>}) -> tensor<8xf32> {
  %0 = stablehlo.negate %x {sdy.sharding = #sdy.sharding_per_value<[<@maximal, []>]>} : tensor<8xf32>
  %1 = stablehlo.abs %0 : tensor<8xf32>
  return %1 : tensor<8xf32>
}
""",
    [
        'argument 0 [{"a"}]',
        "negate []",
    ],
)

# nothing passes an op with values on two meshes
TWO_MESHES: Case = (
    """
sdy.mesh @other = <["a"=2]>
func.func @main(
  %x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}]>},
  %y: tensor<8xf32> {sdy.sharding = #sdy.sharding<@other, [{"a"}]>})
  -> (tensor<8xf32>,
      tensor<8xf32>) {
  %0 = stablehlo.negate %x : tensor<8xf32>
  %1 = stablehlo.add %x, %y : tensor<8xf32>
  return %0, %1 : tensor<8xf32>, tensor<8xf32>
}
""",
    [
        'argument 0 [{"a"}]',
        'argument 1 [{"a"}]',
        'negate [{"a", ?}]',
        'result 0 [{"a", ?}]',
    ],
)

CASES = (
    ORDER_DECIDES,
    DEPTH_FIRST,
    DEAD_OPS,
    DEAD_CONSTRAINT,
    FUNCTION_RESULTS,
    OTHER_FUNCTIONS,
    SEVERAL_RESULTS,
    LOOP,
    NAMED_COMPUTATION,
    MANUAL_COMPUTATION,
    ONE_DEVICE,
    TWO_MESHES,
)


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_propagate(text: str, expected: list[str]) -> None:
    assert propagated(text) == expected


def test_dead_ops_are_erased() -> None:
    program = from_mlir(MESH_TEXT + DEAD_OPS[0])
    AggressivePropagate().run(program)
    assert [op.name for op in program.main.body.walk()] == ["stablehlo.custom_call", "func.return"]
    (x, n) = program.main.arguments
    assert [op.name for op, _ in x.uses] == ["stablehlo.custom_call", "func.return"]
    assert not n.uses


# Edges in loops: which of them are visited again when a value they hold changes decides who is first at the argument. The last
# op wants other axes for it; it comes too late where the loop's edge is told of a change behind the named computation.
LOOP_EDGES = """
func.func @main(%a: tensor<16x8xf32>, %n: tensor<i32>) -> (tensor<8xf32>, tensor<16x8xf32>) {
  %c = stablehlo.constant dense<1> : tensor<i32>
  %z = stablehlo.constant dense<1.0> : tensor<16x8xf32>
  %z2 = stablehlo.constant dense<1.0> : tensor<16x8xf32>
  %w:3 = stablehlo.while(%i = %n, %x = %a, %y = %z) : tensor<i32>, tensor<16x8xf32>, tensor<16x8xf32>
   cond {
     %p = stablehlo.compare LT, %i, %c : (tensor<i32>, tensor<i32>) -> tensor<i1>
     stablehlo.return %p : tensor<i1>
   } do {
     %f = sdy.named_computation<"f">(%x) (%h: tensor<16x8xf32>) {
       %he = sdy.data_flow_edge %h : tensor<16x8xf32>
       sdy.return %he : tensor<16x8xf32>
     } : (tensor<16x8xf32>) -> tensor<16x8xf32>
     %fe = sdy.data_flow_edge %f : tensor<16x8xf32>
     stablehlo.return %i, NEXT, %fe : tensor<i32>, tensor<16x8xf32>, tensor<16x8xf32>
   }
  %w0 = sdy.data_flow_edge %w#0 : tensor<i32>
  %w1 = sdy.data_flow_edge %w#1 : tensor<16x8xf32>
  %w2 = sdy.data_flow_edge %w#2 : tensor<16x8xf32>
  %r = stablehlo.reverse %w2, dims = [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"b", "a", "c"}]>]>} : tensor<16x8xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %t = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions = [0]
    {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a", "c"}]>]>} : (tensor<16x8xf32>, tensor<f32>) -> tensor<8xf32>
  return %t, %r : tensor<8xf32>, tensor<16x8xf32>
}"""


@pytest.mark.parametrize("following", ["%z2", "%x", "%fe"])
def test_edges_in_loops_are_told_of_changes(following: str) -> None:
    lines = propagated(LOOP_EDGES.replace("NEXT", following), USER_PRIORITY)
    assert lines[0] == 'argument 0 [{?}, {"b", "a", "c", ?}]'


def test_a_value_outside_a_loop_reaches_the_loops_inside() -> None:
    """The outer loop's edge is visited after those inside it; these are pushed again."""
    text = """
    func.func @main(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"a"}]>}) -> tensor<8x8xf32> {
      %0 = stablehlo.add %a, %a : tensor<8x8xf32>
      %1 = stablehlo.while(%x = %0) : tensor<8x8xf32>
      cond {
        %p = stablehlo.constant dense<true> : tensor<i1>
        stablehlo.return %p : tensor<i1>
      } do {
        %2 = stablehlo.while(%y = %x) : tensor<8x8xf32>
        cond {
          %p = stablehlo.constant dense<true> : tensor<i1>
          stablehlo.return %p : tensor<i1>
        } do {
          %3 = stablehlo.reverse %y, dims = [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"b", "c"}]>]>} : tensor<8x8xf32>
          stablehlo.return %y : tensor<8x8xf32>
        }
        %4 = sdy.data_flow_edge %2 : tensor<8x8xf32>
        stablehlo.return %x : tensor<8x8xf32>
      }
      %5 = sdy.data_flow_edge %1 : tensor<8x8xf32>
      return %5 : tensor<8x8xf32>
    }"""
    edges = [line for line in propagated(text, USER_PRIORITY) if line.startswith("data_flow_edge")]
    assert edges == ['data_flow_edge [{?}, {"a", ?}]'] * 2


def test_the_log_says_what_changed_and_why() -> None:
    program = from_mlir(MESH_TEXT + ORDER_DECIDES[0])
    log = []
    propagation = Propagation(program, log=log)
    propagation.run(op_priority=False)
    propagation.graph.sweep()
    assert [(step.op.name if step.op else None, str(step.old), str(step.new)) for step in log[:2]] == [
        ("stablehlo.add", "None", '#sdy.sharding<@mesh, [{"a", ?}, {?}]>'),
        ("stablehlo.add", "None", '#sdy.sharding<@mesh, [{"a", ?}, {?}]>'),
    ]
    targets = [step.target for step in log]
    assert targets[0] is program.main.body.ops[0].operands[1] or targets[0] is program.main.body.ops[0].result
    assert all(step.reason == "propagate" for step in log)
