"""sdy-op-priority-propagate: propagation in five stages, ops that move no data first."""

from __future__ import annotations

from shardy_py.ir import Program
from shardy_py.passes.propagation.log import Step
from shardy_py.passes.propagation.step import Strategy
from shardy_py.passes.propagation.user_priority_propagate import propagate

NAME = "sdy-op-priority-propagate"


def run(
    program: Program,
    *,
    propagation_strategy: Strategy = "aggressive",
    conservative_propagation: bool = False,
    run_op_priority_propagation: bool = True,
    log: list[Step] | None = None,
) -> None:
    """Propagates by op priority; see `schedule` for the stages."""
    propagate(
        program,
        strategy=propagation_strategy,
        op_priority=run_op_priority_propagation,
        user_priority=False,
        conservative=conservative_propagation,
        log=log,
    )
