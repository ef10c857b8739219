"""sdy-aggressive-propagate: one propagation with the aggressive strategy and no priorities."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.ir import Program
from shardy_py.passes.base import option
from shardy_py.passes.propagation.base import STRATEGIES, STRATEGY, PropagationPass
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.propagation.rounds import propagate
from shardy_py.passes.propagation.step import Strategy


@dataclass(frozen=True, kw_only=True)
class AggressivePropagate(PropagationPass):
    """Propagates by the aggressive strategy: every tensor takes all axes that it can."""

    name = "sdy-aggressive-propagate"

    propagation_strategy: Strategy = option("aggressive", STRATEGY, choices=STRATEGIES)

    def propagate(self, program: Program, log: Log | None) -> None:
        """Propagates with the aggressive strategy: every tensor of an op takes the axes that it can on its own."""
        propagate(
            program,
            strategy=self.propagation_strategy,
            op_priority=False,
            user_priority=False,
            conservative=self.conservative_propagation,
            log=log,
        )
