"""sdy-op-priority-propagate: propagation in five stages, ops that move no data first."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.ir import Program
from shardy_py.passes.base import option
from shardy_py.passes.propagation.base import OP_PRIORITY, STRATEGIES, STRATEGY, PropagationPass
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.propagation.rounds import propagate
from shardy_py.passes.propagation.step import Strategy


@dataclass(frozen=True, kw_only=True)
class OpPriorityPropagate(PropagationPass):
    """Propagates through ops that move no data first."""

    name = "sdy-op-priority-propagate"

    propagation_strategy: Strategy = option("aggressive", STRATEGY, choices=STRATEGIES)
    run_op_priority_propagation: bool = option(True, OP_PRIORITY)

    def propagate(self, program: Program, log: Log | None) -> None:
        """Propagates by op priority; see `schedule` for the stages."""
        propagate(
            program,
            strategy=self.propagation_strategy,
            op_priority=self.run_op_priority_propagation,
            user_priority=False,
            conservative=self.conservative_propagation,
            log=log,
        )
