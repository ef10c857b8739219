"""The propagation without priorities of users, and rules attached on their own."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.ir import Program
from shardy_py.passes.base import CONSERVATIVE, FUNCTION, Pass, option
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.propagation.rounds import OP_PRIORITY, STRATEGIES, STRATEGY, PropagationPass
from shardy_py.passes.propagation.step import Strategy
from shardy_py.rules import rule_for


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


@dataclass(frozen=True, kw_only=True)
class PopulateOpShardingRules(Pass):
    """Attaches its sharding rule to each op."""

    name = "sdy-populate-op-sharding-rules"
    anchor = FUNCTION

    conservative_propagation: bool = option(False, CONSERVATIVE)

    def run(self, program: Program, log: Log | None = None) -> None:
        """Decides `Op.rule` for all ops that have none attached."""
        for op in program.walk():
            if not op.rule_decided:
                op.rule = rule_for(op, conservative=self.conservative_propagation, semantics=program.semantics)
                op.rule_decided = True
