"""Functions that end in an op of a dialect that nobody knows: every pass does what jaxlib's does."""

from __future__ import annotations

import contextlib

import pytest

from shardy_py.errors import ShardyError
from shardy_py.opt import UnknownOpWarning, run_passes
from shardy_py.opt.partitioner.resolve_permutation_factors import ResolvePermutationFactors
from shardy_py.opt.pipeline_text import FUNCTION
from shardy_py.opt.table import PASSES
from shardy_py.opt.verify_unreduced_axes import VerifyUnreducedAxes
from tests.passes.oracle import jaxlib_text
from tests.reference import SAME_SHARDY

CRASHES = frozenset((ResolvePermutationFactors.name,))
"""Passes of jaxlib that end the process where a function does not end in `func.return`."""

LATER = frozenset((VerifyUnreducedAxes.name,)) if SAME_SHARDY else frozenset()
"""Passes that this jaxlib does not have."""

SHARDING = '{sdy.sharding = #sdy.sharding<@mesh, [{"deep"}]>}'
TYPE = "tensor<32xf32>"


def function(head: str, operands: int) -> str:
    """A function with two results that ends in an unknown op with some operands."""
    names, types = ", ".join(["%y"] * operands), ", ".join([TYPE] * operands)
    return f"""func.func {head}(%x: {TYPE} {SHARDING}) -> ({TYPE}, {TYPE} {SHARDING}) {{
  %y = stablehlo.sine %x : {TYPE}
  "acme.stop"({names}) : ({types}) -> ()
}}"""


CALLER = f"""func.func @main(%x: {TYPE} {SHARDING}) -> {TYPE} {{
  %y:2 = call @half(%x) : ({TYPE}) -> ({TYPE}, {TYPE})
  return %y#0 : {TYPE}
}}"""
OTHER = f"func.func private @other(%x: {TYPE}) -> {TYPE} {{ return %x : {TYPE} }}"


def modules(operands: int) -> dict[str, str]:
    """The function as main of several, as the only one, and called by main."""
    mesh = 'sdy.mesh @mesh = <["row"=2, "col"=2, "deep"=4]>\n'
    return {
        "main": f"{mesh}{function('@main', operands)}\n{OTHER}",
        "only": mesh + function("@half", operands),
        "called": f"{mesh}{CALLER}\n{function('private @half', operands)}",
    }


@pytest.mark.filterwarnings(f"ignore::{UnknownOpWarning.__module__}.{UnknownOpWarning.__name__}")
@pytest.mark.parametrize("operands", [0, 1, 2])
@pytest.mark.parametrize("name", sorted(PASSES.keys() - CRASHES - LATER))
def test_as_in_jaxlib(name: str, operands: int) -> None:
    passes = f"{FUNCTION}({name})" if PASSES[name].anchor == FUNCTION else name
    for text in modules(operands).values():
        try:
            expected = jaxlib_text(text, passes)
        except ValueError:
            with pytest.raises(ShardyError):
                run_passes(text, passes)
            continue
        assert run_passes(text, passes) == expected


@pytest.mark.filterwarnings(f"ignore::{UnknownOpWarning.__module__}.{UnknownOpWarning.__name__}")
@pytest.mark.parametrize("name", sorted(PASSES))
def test_more_operands_than_results(name: str) -> None:
    """Passes of jaxlib read past the end of the results."""
    for text in modules(3).values():
        with contextlib.suppress(ShardyError):
            assert "acme.stop" in run_passes(text, name)
