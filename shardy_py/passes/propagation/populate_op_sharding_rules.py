"""sdy-populate-op-sharding-rules: attaches its sharding rule to every op that has one."""

from __future__ import annotations

from shardy_py.ir import Program
from shardy_py.rules import rule_for

NAME = "sdy-populate-op-sharding-rules"


def run(program: Program, *, conservative_propagation: bool = False) -> None:
    """Decides `Op.rule` for all ops that have none attached."""
    for op in program.walk():
        if not op.rule_known:
            op.rule, op.rule_known = rule_for(op, conservative=conservative_propagation), True
