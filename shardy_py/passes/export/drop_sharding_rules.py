"""Forgets the sharding rules of ops."""

from __future__ import annotations

from shardy_py.ir import Program
from shardy_py.passes.walk import blocks_of

NAME = "sdy-drop-sharding-rules"


def run(program: Program, **_: object) -> None:
    """Removes the rules that can be had again from the op; a custom one stays. Source: Shardy's drop_sharding_rules.cc."""
    for block in blocks_of(program):
        for op in block.ops:
            if op.rule is None or not op.rule.is_custom:
                op.rule, op.rule_known = None, False
