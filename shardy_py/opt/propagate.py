"""sdy-basic-propagate, sdy-aggressive-propagate and sdy-op-priority-propagate: the propagation without priorities of users."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.passes.base import option
from shardy_py.passes.propagation.rounds import OP_PRIORITY, STRATEGIES, STRATEGY, PropagationPass
from shardy_py.passes.propagation.step import Strategy


@dataclass(frozen=True, kw_only=True)
class BasicPropagate(PropagationPass):
    """Propagates the same axes to all tensors of an op."""

    name = "sdy-basic-propagate"


@dataclass(frozen=True, kw_only=True)
class AggressivePropagate(PropagationPass):
    """Propagates by the aggressive strategy: every tensor takes all axes that it can."""

    name = "sdy-aggressive-propagate"

    propagation_strategy: Strategy = option("aggressive", STRATEGY, choices=STRATEGIES)


@dataclass(frozen=True, kw_only=True)
class OpPriorityPropagate(PropagationPass):
    """Propagates through ops that move no data first."""

    name = "sdy-op-priority-propagate"

    propagation_strategy: Strategy = option("aggressive", STRATEGY, choices=STRATEGIES)
    run_op_priority_propagation: bool = option(True, OP_PRIORITY)
