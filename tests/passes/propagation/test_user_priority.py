"""Shardings with priorities: p0 (or none) first, then p1 and so on."""

from __future__ import annotations

import pytest

from shardy_py.opt.from_mlir import from_mlir
from shardy_py.passes.propagation.log import LogStep
from shardy_py.passes.propagation.rounds import UserPriorityPropagate
from tests.passes.propagation.modules import MESH_TEXT, USER_PRIORITY, dims, propagated

CONFLICT = """
func.func @main(
  %x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}p1, {?}]>},
  %y: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"a"}p0]>})
  -> tensor<8x8xf32> {
  %0 = stablehlo.add %x, %y : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
"""

THREE_ROUNDS = """
func.func @main(
  %x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"b", "a"}p2, {"c", ?}p1]>},
  %y: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"b", ?}]>})
  -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", ?}p1, {?}]>}) {
  %0 = stablehlo.add %x, %y : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
"""

CONSTRAINTS = """
func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = sdy.sharding_constraint %x <@mesh, [{"a", ?}p3, {?}]> : tensor<8x8xf32>
  %1 = stablehlo.negate %0 : tensor<8x8xf32>
  %2 = sdy.sharding_constraint %1 <@mesh, [{?}, {"a", "b"}p1]> : tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}
"""


def test_the_smaller_number_wins() -> None:
    """Without priorities the first operand decides, with them the second."""
    assert propagated(CONFLICT, USER_PRIORITY) == [
        'argument 0 [{"a"}, {?}]',
        'argument 1 [{?}, {"a"}]',
        'add [{?}, {"a", ?}]',
        'result 0 [{?}, {"a", ?}]',
    ]
    without = CONFLICT.replace("p1", "").replace("p0", "")
    assert propagated(without, USER_PRIORITY) == [
        'argument 0 [{"a"}, {?}]',
        'argument 1 [{?}, {"a"}]',
        'add [{"a", ?}, {?}]',
        'result 0 [{"a", ?}, {?}]',
    ]


def test_several_priorities_in_one_sharding() -> None:
    """Each dimension comes in its own round; function results take part."""
    assert propagated(THREE_ROUNDS, USER_PRIORITY) == [
        'argument 0 [{"b", "a"}, {"c", ?}]',
        'argument 1 [{"a", ?}, {"b", ?}]',
        'add [{"a", ?}, {"b", ?}]',
        'result 0 [{"a", ?}, {"b", ?}]',
    ]


def test_constraints() -> None:
    """Constraints in the middle of the program carry priorities as well."""
    assert propagated(CONSTRAINTS, USER_PRIORITY) == [
        'argument 0 [{"a", ?}, {?}]',
        'sharding_constraint [{"a", ?}, {?}]',
        'negate [{?}, {"a", "b", ?}]',
        'sharding_constraint [{?}, {"a", "b"}]',
        'result 0 [{?}, {"a", "b", ?}]',
    ]


@pytest.mark.parametrize(
    "given",
    [
        '[{"c":(1)2, ?}p1, {"c":(2)2, ?}p2], replicated={"b"}',
        '[{"c":(1)2, ?}p1, {"c":(2)2, ?}p1]',
        '[{"c":(1)2, ?}p1, {"a", ?}p2], replicated={"c":(2)2}',
        '[{"c":(2)2, "c":(1)2, ?}p1, {"a", ?}p2]',
    ],
)
def test_parts_of_one_axis_wait_on_their_own(given: str) -> None:
    """While they wait they are replicated axes; two halves must not become one axis there."""
    text = f"""
    func.func @main(%x: tensor<8x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, {given}>}}) -> tensor<8x8xf32> {{
      %0 = stablehlo.negate %x : tensor<8x8xf32>
      return %0 : tensor<8x8xf32>
    }}"""
    assert propagated(text, USER_PRIORITY)[0] == "argument 0 " + given.replace("p1", "").replace("p2", "")


def test_a_waiting_dimension_is_closed_and_its_axes_are_taken() -> None:
    program = from_mlir(MESH_TEXT + THREE_ROUNDS)
    log: list[LogStep] = []
    UserPriorityPropagate().run(program, log=log)
    prepared = [dims(step.new) for step in log if step.reason == "priority"]
    assert prepared == [
        '[{}, {}], replicated={"a", "b", "c"}',
        '[{}, {?}], replicated={"a"}',
        '[{}, {"c", ?}], replicated={"a", "b"}',
        '[{"a", ?}, {"b", ?}]',
        '[{"b", "a"}, {"c", ?}]',
    ]
    assert {step.user_priority for step in log} == {0, 1, 2}
