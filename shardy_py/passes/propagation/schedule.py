"""In which directions an op may propagate along each factor, at each op priority.

The table of `OpPriorityPropagation` in the reference: elementwise ops and reshapes go first, because they move no data;
everything pass-through next, then reductions and the rest, and forward broadcasts last.
"""

from __future__ import annotations

from functools import lru_cache

from shardy_py.dialect import OpShardingRule
from shardy_py.passes.propagation.compatible import BACKWARD, BOTH, FORWARD, NONE
from shardy_py.rules import is_elementwise

STAGES = 5
Directions = tuple[int, ...]

PASS_THROUGH = {
    "stablehlo.reshape": BOTH,
    "stablehlo.transpose": BOTH,
    "sdy.data_flow_edge": BOTH,
    "sdy.func_data_flow_edge": BOTH,
    "stablehlo.dynamic_slice": FORWARD,
    "stablehlo.dynamic_update_slice": FORWARD,
}
PASS_THROUGH_CUSTOM_CALLS = frozenset({"MoveToDevice", "MoveToHost"})


def pass_through_direction(op_name: str, call_target: str | None = None) -> int:
    """The direction of an op in the first two stages, NONE where it has to wait."""
    if is_elementwise(op_name) or call_target in PASS_THROUGH_CUSTOM_CALLS:
        return BOTH
    return PASS_THROUGH.get(op_name, NONE)


@lru_cache(maxsize=1 << 16)
def schedule(rule: OpShardingRule, early: int, broadcast: bool, attached: bool = True) -> tuple[Directions | None, ...]:
    """Directions per factor at each of the five stages; None where no factor may propagate.

    Args:
        rule: The op's rule.
        early: `pass_through_direction` of the op.
        broadcast: Whether it is a broadcast_in_dim, which only propagates backward until the last stage.
        attached: Whether the op carries its rule; other nodes count as pass-through.
    """
    late = BACKWARD if broadcast else BOTH
    waiting = rule.reduction + rule.need_replication + rule.permutation if attached else ()
    stages: list[Directions | None] = []
    for stage in range(STAGES):
        directions = []
        for f in range(len(rule.factor_sizes)):
            direction = early
            if stage >= 2 and f not in waiting:
                direction |= late
            if stage >= 3:
                direction |= late
            if stage >= 4:
                direction = BOTH
            directions.append(NONE if f in rule.blocked_propagation else direction)
        stages.append(tuple(directions) if any(directions) else None)
    return tuple(stages)


def everything(rule: OpShardingRule) -> Directions:
    """All factors in both directions, as without op priorities."""
    return tuple(NONE if f in rule.blocked_propagation else BOTH for f in range(len(rule.factor_sizes)))
