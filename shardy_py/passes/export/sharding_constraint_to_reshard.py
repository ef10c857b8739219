"""Turns every `sdy.sharding_constraint` into a `sdy.reshard`."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.ir import Program
from shardy_py.passes.base import FUNCTION, Pass
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import ops_of, order_uses


@dataclass(frozen=True, kw_only=True)
class ShardingConstraintToReshard(Pass):
    """Replaces sharding constraints by reshards.

    Attributes:
        order_all_uses: Whether to leave use lists as MLIR's dialect conversion does, which sets every operand anew; not needed where no
            later pass looks at them.
    """

    name = "sdy-sharding-constraint-to-reshard"
    anchor = FUNCTION

    order_all_uses: bool = True

    def run(self, program: Program, log: Log | None = None) -> None:
        """Replaces the ops.

        Unlike a constraint, a reshard has no effect of its own and no sharding rule: one that nobody uses can go.

        Source: Shardy's sharding_constraint_to_reshard.cc.
        """
        constraints = dict.fromkeys(ops_of(program, ("sdy.sharding_constraint",)))
        if self.order_all_uses:
            for function in program.functions:
                order_uses(list(function.body.walk()))
        for op in constraints:
            op.name = "sdy.reshard"
            uses = op.results[0].uses
            if len(uses) > 1:
                first = [use for use in uses if use[0] in constraints]
                op.results[0].uses = dict.fromkeys((*first, *(use for use in reversed(uses) if use[0] not in constraints)))
