"""sdy-basic-propagate: one propagation with the basic strategy and no priorities."""

from __future__ import annotations

from shardy_py.ir import Program
from shardy_py.passes.propagation.log import Step
from shardy_py.passes.propagation.user_priority_propagate import propagate

NAME = "sdy-basic-propagate"


def run(program: Program, *, conservative_propagation: bool = False, log: list[Step] | None = None) -> None:
    """Propagates with the basic strategy: a factor gets the same axes in all tensors of an op."""
    propagate(program, strategy="basic", op_priority=False, user_priority=False, conservative=conservative_propagation, log=log)
