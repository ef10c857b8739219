"""Forgets the sharding rules of ops."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.ir import Program
from shardy_py.passes.base import FUNCTION, Pass
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import blocks_of


@dataclass(frozen=True, kw_only=True)
class DropShardingRules(Pass):
    """Removes sharding rules, except custom ones."""

    name = "sdy-drop-sharding-rules"
    anchor = FUNCTION

    def run(self, program: Program, log: Log | None = None) -> None:
        """Removes the rules that can be had again from the op; a custom one stays. Source: Shardy's drop_sharding_rules.cc."""
        for block in blocks_of(program):
            for op in block.ops:
                if op.rule is None or not op.rule.is_custom:
                    op.rule, op.rule_decided = None, False
