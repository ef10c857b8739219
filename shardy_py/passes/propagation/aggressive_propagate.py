"""sdy-aggressive-propagate: one propagation with the aggressive strategy and no priorities."""

from __future__ import annotations

from shardy_py.ir import Program
from shardy_py.passes.propagation.log import Step
from shardy_py.passes.propagation.step import Strategy
from shardy_py.passes.propagation.user_priority_propagate import propagate

NAME = "sdy-aggressive-propagate"


def run(
    program: Program,
    *,
    propagation_strategy: Strategy = "aggressive",
    conservative_propagation: bool = False,
    log: list[Step] | None = None,
) -> None:
    """Propagates with the aggressive strategy: every tensor of an op takes what it can on its own."""
    propagate(
        program, strategy=propagation_strategy, op_priority=False, user_priority=False, conservative=conservative_propagation, log=log
    )
