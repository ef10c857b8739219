"""sdy-user-priority-propagate: shardings with `p0` first, then those with `p1`, and so on; each round by op priority."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.ir import Program
from shardy_py.passes.base import option
from shardy_py.passes.propagation.base import OP_PRIORITY, STRATEGIES, STRATEGY, PropagationPass
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.propagation.rounds import propagate
from shardy_py.passes.propagation.step import Strategy


@dataclass(frozen=True, kw_only=True)
class UserPriorityPropagate(PropagationPass):
    """Propagates shardings by their priority."""

    name = "sdy-user-priority-propagate"

    propagation_strategy: Strategy = option("aggressive", STRATEGY, choices=STRATEGIES)
    run_op_priority_propagation: bool = option(True, OP_PRIORITY)
    settled: bool = False

    def propagate(self, program: Program, log: Log | None) -> None:
        """Propagates by user priority, within each by op priority."""
        propagate(
            program,
            strategy=self.propagation_strategy,
            op_priority=self.run_op_priority_propagation,
            user_priority=True,
            conservative=self.conservative_propagation,
            settled=self.settled,
            log=log,
        )
