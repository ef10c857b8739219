"""Ops without a sharding rule, which have one strategy: whole."""

from __future__ import annotations

from shardy_py.ir import Program
from shardy_py.plan.checks.opaque import OPAQUE
from shardy_py.plan.cost_analysis import CostAnalysis


def seconds_of_opaque_ops(program: Program, cost: CostAnalysis) -> list[tuple[str, float]]:
    """Primitives of which some op has no sharding rule, and their seconds in a plan with those of bringing operands, the costliest first.

    Args:
        program: The program.
        cost: The cost of its plan.
    """
    opaque = {
        op.primitive or str(op.attributes.get("call_target_name", op.name)) for op in program.walk() if op.name in OPAQUE and not op.rule
    }
    return [(share.name, share.seconds) for share in cost.by_op if share.name in opaque and share.seconds]
