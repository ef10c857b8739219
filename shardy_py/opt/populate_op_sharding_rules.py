"""sdy-populate-op-sharding-rules: attaches its sharding rule to every op that has one."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.ir import Program
from shardy_py.passes.base import CONSERVATIVE, FUNCTION, Pass, option
from shardy_py.passes.propagation.log import Log
from shardy_py.rules import rule_for


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
