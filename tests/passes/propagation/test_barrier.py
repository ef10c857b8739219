"""Propagation barriers let shardings through in one direction, in every stage."""

from __future__ import annotations

import pytest

from tests.passes.propagation.modules import AGGRESSIVE, OP_PRIORITY, propagated

BARRIERS = """
func.func @main(
  %x: tensor<8xf32>, %y: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}]>}) -> (tensor<8xf32>, tensor<8xf32>) {
  %0 = sdy.propagation_barrier %x allowed_direction=DIRECTION : tensor<8xf32>
  %1 = stablehlo.negate %0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"b"}]>]>} : tensor<8xf32>
  %2 = sdy.propagation_barrier %y allowed_direction=DIRECTION : tensor<8xf32>
  %3 = stablehlo.abs %2 : tensor<8xf32>
  return %1, %3 : tensor<8xf32>, tensor<8xf32>
}
"""
EXPECTED = {
    "FORWARD": [
        'argument 1 [{"a"}]',
        'propagation_barrier [{"b", ?}]',
        'negate [{"b"}]',
        'propagation_barrier [{"a", ?}]',
        'abs [{"a", ?}]',
        'result 0 [{"b", ?}]',
        'result 1 [{"a", ?}]',
    ],
    "BACKWARD": [
        'argument 0 [{"b", ?}]',
        'argument 1 [{"a"}]',
        'propagation_barrier [{"b", ?}]',
        'negate [{"b"}]',
        'result 0 [{"b", ?}]',
    ],
    "NONE": [
        'argument 1 [{"a"}]',
        'propagation_barrier [{"b", ?}]',
        'negate [{"b"}]',
        'result 0 [{"b", ?}]',
    ],
}


@pytest.mark.parametrize("name", [AGGRESSIVE, OP_PRIORITY])
@pytest.mark.parametrize("direction", EXPECTED)
def test_barrier(direction: str, name: str) -> None:
    assert propagated(BARRIERS.replace("DIRECTION", direction), name) == EXPECTED[direction]
