"""In which directions an op may propagate along each factor, at each op priority.

The table of `OpPriorityPropagation` in the reference: elementwise ops and reshapes go first, because they move no data;
everything pass-through next, then reductions and the rest, and forward broadcasts last.
"""

from __future__ import annotations

from functools import lru_cache

from shardy_py.dialect import OpShardingRule
from shardy_py.passes.propagation.compatible import BACKWARD, BOTH, NONE

STAGES = 5
Directions = tuple[int, ...]


@lru_cache(maxsize=1 << 16)
def schedule(rule: OpShardingRule, early: int, broadcast: bool) -> tuple[Directions | None, ...]:
    """Directions per factor at each of the five stages; None where none may propagate. A broadcast only goes backward until the last."""
    late = BACKWARD if broadcast else BOTH
    waiting = rule.reduction + rule.need_replication + rule.permutation
    stages: list[Directions | None] = []
    for stage in range(STAGES):
        directions: list[int] = []
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
        if len(stages) > 1 and stages[-1] == stages[-2]:
            stages[-1] = stages[-2]  # one object, by which the worklist knows a stage that asks an op for nothing new
    return tuple(stages)


@lru_cache(maxsize=1 << 16)
def everything(rule: OpShardingRule) -> Directions:
    """All factors in both directions, as without op priorities."""
    return tuple(NONE if f in rule.blocked_propagation else BOTH for f in range(len(rule.factor_sizes)))
