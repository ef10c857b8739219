"""Computations without data-flow edges: what they state for arguments and results propagates inside and outside of them."""

from __future__ import annotations

import pytest

from shardy_py.opt.from_mlir import from_mlir
from tests.passes.oracle import dump, jaxlib_program
from tests.passes.propagation.modules import AGGRESSIVE, BASIC, OP_PRIORITY, PASSES, USER_PRIORITY, propagated
from tests.passes.propagation.random_computations import computations


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ("in_shardings=[<@mesh, [{}]>] out_shardings=[<@mesh, [{}]>]", []),
        ('in_shardings=[<@mesh, [{"a"}]>] out_shardings=[<@mesh, [{}]>]', ['negate [{"a", ?}]']),
        ('in_shardings=[<@mesh, [{}]>] out_shardings=[<@mesh, [{"b"}]>]', ['abs [{"b", ?}]', 'result 0 [{"b", ?}]']),
        ('in_shardings=[<@mesh, [{?}]>] out_shardings=[<@mesh, [{"b", ?}]>]', ['abs [{"b", ?}]', 'result 0 [{"b", ?}]']),
    ],
)
def test_nothing_crosses_a_computation_without_edges(stated: str, expected: list[str]) -> None:
    text = f"""func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {{
      %0 = sdy.manual_computation(%x) {stated} manual_axes={{}} (%l: tensor<8xf32>) {{
        %2 = stablehlo.negate %l : tensor<8xf32>
        sdy.return %2 : tensor<8xf32>
      }} : (tensor<8xf32>) -> tensor<8xf32>
      %1 = stablehlo.abs %0 : tensor<8xf32>
      return %1 : tensor<8xf32>
    }}"""
    assert propagated(text, BASIC) == expected


@pytest.mark.filterwarnings("ignore::shardy_py.passes.propagation.rounds.ShardingGroupConflictWarning")
@pytest.mark.parametrize("seed", range(48))
def test_random_computations(seed: int) -> None:
    """By user priority without priorities: jaxlib writes invalid shardings of manual computations there, or crashes."""
    name = (BASIC, AGGRESSIVE, OP_PRIORITY, USER_PRIORITY)[seed % 4]
    text = computations(seed, priorities=name != USER_PRIORITY)
    program = from_mlir(text)
    PASSES[name]().run(program)
    assert dump(program) == dump(jaxlib_program(text, name))
