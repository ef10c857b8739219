"""Sharding groups: members agree before propagation starts and change together."""

from __future__ import annotations

import pytest

from shardy_py.opt.from_mlir import from_mlir
from shardy_py.opt.propagate import AggressivePropagate
from shardy_py.passes.propagation.log import LogStep
from shardy_py.passes.propagation.rounds import ShardingGroupConflictWarning, sharding_groups
from tests.passes.propagation.modules import MESH_TEXT, propagated

ONE_SHARDED = """
func.func @main(
  %x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", ?}, {?}]>},
  %y: tensor<8x8xf32>)
  -> tensor<8x8xf32> {
  %0 = stablehlo.negate %x : tensor<8x8xf32>
  sdy.sharding_group %x group_id=0 : tensor<8x8xf32>
  sdy.sharding_group %y group_id=0 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
"""

NONE_SHARDED = """
func.func @main(%x: tensor<8x8xf32>, %y: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  sdy.sharding_group %x group_id=0 : tensor<8x8xf32>
  sdy.sharding_group %y group_id=0 : tensor<8x8xf32>
  %0 = stablehlo.negate %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a"}, {}]>]>} : tensor<8x8xf32>
  %1 = stablehlo.negate %y : tensor<8x8xf32>
  return %0, %1 : tensor<8x8xf32>, tensor<8x8xf32>
}
"""
OPEN = ONE_SHARDED.replace("%y: tensor<8x8xf32>)", "%y: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {?}]>})")
CONFLICT = OPEN.replace("[{?}, {?}]>}", '[{?}, {"b"}]>}')


def test_members_start_with_one_sharding() -> None:
    """A member without a sharding takes the others'."""
    assert propagated(ONE_SHARDED) == [
        'argument 0 [{"a", ?}, {?}]',
        'argument 1 [{"a", ?}, {?}]',
        'negate [{"a", ?}, {?}]',
        'result 0 [{"a", ?}, {?}]',
    ]


def test_an_open_member_has_no_say() -> None:
    """A fully open sharding counts as none."""
    assert propagated(OPEN) == [
        'argument 0 [{"a", ?}, {?}]',
        'argument 1 [{"a", ?}, {?}]',
        'negate [{"a", ?}, {?}]',
        'result 0 [{"a", ?}, {?}]',
    ]


def test_members_change_together() -> None:
    """A change of one member reaches the users of the others."""
    assert propagated(NONE_SHARDED) == [
        'argument 0 [{"a", ?}, {?}]',
        'argument 1 [{"a", ?}, {?}]',
        'negate [{"a"}, {}]',
        'negate [{"a", ?}, {?}]',
        'result 0 [{"a", ?}, {?}]',
        'result 1 [{"a", ?}, {?}]',
    ]


def test_a_conflict_cuts_the_group() -> None:
    """Members keep their shardings; open constraints behind them form the group, with a warning."""
    with pytest.warns(ShardingGroupConflictWarning, match="sharding group 0 has members with different shardings"):
        lines = propagated(CONFLICT)
    assert lines == [
        'argument 0 [{"a", ?}, {"b", ?}]',
        'argument 1 [{"a", ?}, {"b"}]',
        'sharding_constraint [{"a", ?}, {"b", ?}]',
        'sharding_constraint [{"a", ?}, {"b", ?}]',
        'negate [{"a", ?}, {"b", ?}]',
        'result 0 [{"a", ?}, {"b", ?}]',
    ]


def test_groups_list_their_members() -> None:
    program = from_mlir(MESH_TEXT + NONE_SHARDED)
    x, y = program.main.arguments
    assert sharding_groups(program) == {x: (x, y), y: (x, y)}


def test_the_log_names_the_group() -> None:
    program = from_mlir(MESH_TEXT + NONE_SHARDED)
    log: list[LogStep] = []
    AggressivePropagate().run(program, log=log)
    by_group = [step for step in log if step.reason == "group"]
    assert [(step.target, step.tensors) for step in by_group] == [(program.main.arguments[1], (program.main.arguments[0],))]


IN_A_LOOP = """
func.func @main(%x: tensor<8xf32>, %y: tensor<8xf32>, %n: tensor<i32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %w:2 = stablehlo.while(%i = %n, %c = %x) : tensor<i32>, tensor<8xf32>
  cond {
    %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    sdy.sharding_group %c group_id=0 : tensor<8xf32>
    sdy.sharding_group %y group_id=0 : tensor<8xf32>
    stablehlo.return %i, %c : tensor<i32>, tensor<8xf32>
  }
  %w0 = sdy.data_flow_edge %w#0 : tensor<i32>
  %w1 = sdy.data_flow_edge %w#1 : tensor<8xf32>
  %u = stablehlo.sine %w1 LOOP : tensor<8xf32>
  %v = stablehlo.cosine %y OUTSIDE : tensor<8xf32>
  return %u, %v : tensor<8xf32>, tensor<8xf32>
}
"""
STATED = '{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a"}]>]>}'


def test_an_argument_of_a_loop_takes_changes_of_the_group_but_makes_none() -> None:
    """Its own sharding is kept by the loop's edge, which is no member."""
    from_loop = propagated(IN_A_LOOP.replace("LOOP", STATED).replace("OUTSIDE", ""))
    assert 'argument 0 [{"a", ?}]' in from_loop
    assert not any(line.startswith("argument 1") for line in from_loop)
    from_outside = propagated(IN_A_LOOP.replace("LOOP", "").replace("OUTSIDE", STATED))
    assert {'argument 1 [{"a", ?}]', 'data_flow_edge [{"a", ?}]'} <= set(from_outside)
