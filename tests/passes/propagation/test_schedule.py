"""Which ops propagate in which of the five stages, and what that does to conflicts."""

from __future__ import annotations

import pytest

from shardy_py.ir import Block, Op, TensorType
from shardy_py.passes.propagation.graph import STAGES, everything, schedule
from shardy_py.rules.traits import pass_through_direction
from tests.passes.propagation.modules import BACKWARD, BOTH, FORWARD, NONE, OP_PRIORITY, USER_PRIORITY, propagated, rule

DOT_THEN_ADD = """
func.func @main(
  %x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {?}]>},
  %y: tensor<8x8xf32>,
  %z: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"a"}]>})
  -> tensor<8x8xf32> {
  %0 = stablehlo.dot %x, %y : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = stablehlo.add %0, %z : tensor<8x8xf32>
  return %1 : tensor<8x8xf32>
}
"""

BROADCAST = """
func.func @main(
  %x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}]>},
  %z: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"b"}]>})
  -> tensor<8x8xf32> {
  %0 = stablehlo.broadcast_in_dim %x, dims = [0] : (tensor<8xf32>) -> tensor<8x8xf32>
  %1 = stablehlo.dot %z, %0 : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %1 : tensor<8x8xf32>
}
"""

SINGLE_USE = """
func.func @main(%x: tensor<8xf32>, %y: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) {
  %0 = stablehlo.negate %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a"}]>]>} : tensor<8xf32>
  %1 = stablehlo.abs %x : tensor<8xf32>
  %2 = stablehlo.sine %1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"b"}]>]>} : tensor<8xf32>
  return %0, %1, %2 : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
}
"""

REDUCTION = """
func.func @main(
  %x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"a"}]>},
  %y: tensor<8x8xf32>,
  %w: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"a"}]>})
  -> tensor<8x8xf32> {
  %0 = stablehlo.dot %x, %y : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = stablehlo.dot %y, %w : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = stablehlo.add %0, %1 : tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}
"""

SLICE = """
func.func @main(%x: tensor<8x8xf32>, %i: tensor<i32>) -> tensor<8x8xf32> {
  %0 = stablehlo.dynamic_slice %x, %i, %i, sizes = [8, 4] : (tensor<8x8xf32>, tensor<i32>, tensor<i32>) -> tensor<8x4xf32>
  %1 = stablehlo.negate %0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a"}, {}]>]>} : tensor<8x4xf32>
  %2 = stablehlo.dot_general %1, %1, contracting_dims = [1] x [1] : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}
"""


def directions(text: str, early: int = NONE, broadcast: bool = False) -> list[tuple[int, ...]]:
    """Directions per factor in each stage; all NONE where the op waits."""
    bound = rule(text)
    stages = schedule(bound, early, broadcast)
    assert len(stages) == STAGES
    return [(NONE,) * bound.num_factors if stage is None else stage for stage in stages]


def test_equal_stages_are_one_object() -> None:
    """By that a propagation knows that a stage asks an op for no more than the stage before."""
    stages = schedule(rule("([i])->([i]) {i=8}"), BOTH, False)
    assert stages[0] is not None
    assert all(stage is stages[0] for stage in stages)


def test_pass_through_ops_go_first() -> None:
    assert directions("([i], [i])->([i]) {i=8}", BOTH) == [(BOTH,)] * 5
    assert directions("([i])->([i]) {i=8}", FORWARD) == [(FORWARD,), (FORWARD,), (BOTH,), (BOTH,), (BOTH,)]


def test_pass_through_factors_of_other_ops_go_before_the_rest() -> None:
    product = "([i, k], [k, j])->([i, j]) {i=8, j=8, k=8} reduction={k}"
    assert directions(product) == [(NONE,) * 3, (NONE,) * 3, (BOTH, BOTH, NONE), (BOTH,) * 3, (BOTH,) * 3]
    others = "([i, j, k])->([i, j, k]) {i=8, j=8, k=8} need_replication={i} permutation={j}"
    assert directions(others) == [(NONE,) * 3, (NONE,) * 3, (NONE, NONE, BOTH), (BOTH,) * 3, (BOTH,) * 3]


def test_broadcasts_go_forward_last() -> None:
    assert directions("([i])->([i, j]) {i=8, j=8}", broadcast=True) == [(NONE,) * 2] * 2 + [(BACKWARD,) * 2] * 2 + [(BOTH,) * 2]


def test_blocked_factors_never_go() -> None:
    text = "([i, j])->([i, j]) {i=8, j=8} blocked_propagation={j}"
    assert directions(text, BOTH) == [(BOTH, NONE)] * 5
    assert everything(rule(text)) == (BOTH, NONE)
    assert schedule(rule("([i])->([i]) {i=8} blocked_propagation={i}"), BOTH, False) == (None,) * 5


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("stablehlo.add", BOTH),
        ("stablehlo.select", BOTH),
        ("stablehlo.convert", BOTH),
        ("chlo.erf", BOTH),  # XLA makes elementwise ops of it before it propagates
        ("stablehlo.reshape", BOTH),
        ("stablehlo.transpose", BOTH),
        ("sdy.data_flow_edge", BOTH),
        ("sdy.sharding_constraint", BOTH),
        ("stablehlo.dynamic_slice", FORWARD),
        ("stablehlo.dynamic_update_slice", FORWARD),
        ("stablehlo.slice", NONE),
        ("stablehlo.reverse", NONE),
        ("stablehlo.pad", NONE),
        ("stablehlo.concatenate", NONE),
        ("stablehlo.broadcast_in_dim", NONE),
        ("stablehlo.dot_general", NONE),
        ("stablehlo.reduce", NONE),
    ],
)
def test_direction_of_the_first_stages(name: str, direction: int) -> None:
    array = TensorType((8,), "float32")
    assert pass_through_direction(Op(name, Block([array]).arguments, (array,))) == direction


def test_custom_calls_that_move_between_memories_go_first() -> None:
    array = TensorType((8,), "float32")

    def direction(target: str) -> int:
        return pass_through_direction(Op("stablehlo.custom_call", Block([array]).arguments, (array,), {"call_target_name": target}))

    assert direction("MoveToHost") == direction("MoveToDevice") == BOTH
    assert direction("Sharding") == NONE


@pytest.mark.parametrize(("shape", "dtype", "direction"), [((8,), "int32", BOTH), ((8, 4), "int8", NONE)])
def test_bitcasts_count_as_elementwise_where_no_shape_changes(shape: tuple[int, ...], dtype: str, direction: int) -> None:
    array = TensorType((8,), "float32")
    op = Op("stablehlo.bitcast_convert", Block([array]).arguments, (TensorType(shape, dtype),))
    assert pass_through_direction(op) == direction


def test_elementwise_ops_before_products() -> None:
    """The sum decides about the product's result; without priorities the product comes first."""
    assert propagated(DOT_THEN_ADD, OP_PRIORITY) == [
        'argument 0 [{"a"}, {?}]',
        'argument 1 [{?}, {"a", ?}]',
        'argument 2 [{?}, {"a"}]',
        'dot [{?}, {"a", ?}]',
        'add [{?}, {"a", ?}]',
        'result 0 [{?}, {"a", ?}]',
    ]
    assert (
        propagated(DOT_THEN_ADD)
        == propagated(DOT_THEN_ADD, USER_PRIORITY, run_op_priority_propagation=False)
        == [
            'argument 0 [{"a"}, {?}]',
            'argument 2 [{?}, {"a"}]',
            'dot [{"a", ?}, {?}]',
            'add [{"a", ?}, {?}]',
            'result 0 [{"a", ?}, {?}]',
        ]
    )


def test_strategies() -> None:
    """The basic strategy drops what the aggressive one gives to some tensors; after it the aggressive one goes on."""
    assert propagated(DOT_THEN_ADD, USER_PRIORITY, propagation_strategy="basic") == [
        'argument 0 [{"a"}, {?}]',
        'argument 2 [{?}, {"a"}]',
        'dot [{?}, {"a", ?}]',
        'add [{?}, {"a", ?}]',
        'result 0 [{?}, {"a", ?}]',
    ]
    assert propagated(DOT_THEN_ADD, USER_PRIORITY, propagation_strategy="basic-then-aggressive") == [
        'argument 0 [{"a"}, {?}]',
        'argument 1 [{?}, {"a", ?}]',
        'argument 2 [{?}, {"a"}]',
        'dot [{?}, {"a", ?}]',
        'add [{?}, {"a", ?}]',
        'result 0 [{?}, {"a", ?}]',
    ]


def test_broadcasts_wait_for_their_users() -> None:
    """The product's contracted factor reaches the broadcast's result before the broadcast's operand does."""
    assert propagated(BROADCAST, OP_PRIORITY) == [
        'argument 0 [{"a"}]',
        'argument 1 [{?}, {"b"}]',
        'broadcast_in_dim [{"b", ?}, {?}]',
    ]
    assert propagated(BROADCAST) == [
        'argument 0 [{"a"}]',
        'argument 1 [{?}, {"b"}]',
        'broadcast_in_dim [{"a", ?}, {?}]',
    ]


def test_reductions_wait() -> None:
    """The result's columns go through both products before the contracted dimension of the first does."""
    assert propagated(REDUCTION, OP_PRIORITY) == [
        'argument 0 [{?}, {"a"}]',
        'argument 1 [{?}, {"a", ?}]',
        'argument 2 [{?}, {"a"}]',
        'dot [{?}, {"a", ?}]',
        'dot [{?}, {"a", ?}]',
        'add [{?}, {"a", ?}]',
        'result 0 [{?}, {"a", ?}]',
    ]
    assert propagated(REDUCTION) == [
        'argument 0 [{?}, {"a"}]',
        'argument 1 [{"a", ?}, {?}]',
        'argument 2 [{?}, {"a"}]',
        'dot [{"a", ?}, {?}]',
        'dot [{"a", ?}, {?}]',
        'add [{"a", ?}, {?}]',
        'result 0 [{"a", ?}, {?}]',
    ]


def test_several_uses_wait_a_stage() -> None:
    """An argument with two users takes part from the second stage on."""
    assert propagated(SINGLE_USE, OP_PRIORITY) == [
        'argument 0 [{"a", ?}]',
        'negate [{"a"}]',
        'abs [{"a", ?}]',
        'sine [{"b"}]',
        'result 0 [{"a", ?}]',
        'result 1 [{"a", ?}]',
        'result 2 [{"b", ?}]',
    ]


def test_dynamic_slices_go_backward_late() -> None:
    """They do in the third stage."""
    assert propagated(SLICE, OP_PRIORITY) == [
        'argument 0 [{"a", ?}, {?}]',
        'dynamic_slice [{"a", ?}, {?}]',
        'negate [{"a"}, {}]',
        'dot_general [{"a", ?}, {?}]',
        'result 0 [{"a", ?}, {?}]',
    ]
