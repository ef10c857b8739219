"""sdy-basic-propagate: one propagation with the basic strategy and no priorities."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.ir import Program
from shardy_py.passes.propagation.base import PropagationPass
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.propagation.rounds import propagate


@dataclass(frozen=True, kw_only=True)
class BasicPropagate(PropagationPass):
    """Propagates the same axes to all tensors of an op."""

    name = "sdy-basic-propagate"

    def propagate(self, program: Program, log: Log | None) -> None:
        """Propagates with the basic strategy: a factor gets the same axes in all tensors of an op."""
        propagate(
            program,
            strategy="basic",
            op_priority=False,
            user_priority=False,
            conservative=self.conservative_propagation,
            log=log,
        )
