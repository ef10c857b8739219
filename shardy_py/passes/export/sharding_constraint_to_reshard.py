"""Turns every `sdy.sharding_constraint` into a `sdy.reshard`."""

from __future__ import annotations

from shardy_py.ir import Program
from shardy_py.passes.walk import ops_in, ops_of, order_uses

NAME = "sdy-sharding-constraint-to-reshard"


def run(program: Program, *, order_all_uses: bool = True, **_: object) -> None:
    """Replaces the ops.

    Unlike a constraint, a reshard has no effect of its own and no sharding rule: one that nobody uses can go.

    Args:
        program: Changed in place.
        order_all_uses: Whether to leave use lists as MLIR's dialect conversion does, which sets every operand anew; not
            needed where no pass follows that looks at them.

    Source: Shardy's sharding_constraint_to_reshard.cc.
    """
    constraints = dict.fromkeys(ops_of(program, ("sdy.sharding_constraint",)))
    if order_all_uses:
        for function in program.functions:
            order_uses(ops_in(function.body))
    for op in constraints:
        op.name = "sdy.reshard"
        uses = op.results[0].uses
        if len(uses) > 1:
            first = [use for use in uses if use[0] in constraints]
            op.results[0].uses = dict.fromkeys((*first, *(use for use in reversed(uses) if use[0] not in constraints)))
