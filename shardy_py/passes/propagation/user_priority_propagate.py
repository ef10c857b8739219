"""sdy-user-priority-propagate: shardings with `p0` first, then those with `p1`, and so on; each round by op priority."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shardy_py.passes.base import option
from shardy_py.passes.propagation.rounds import OP_PRIORITY, STRATEGIES, STRATEGY, PropagationPass
from shardy_py.passes.propagation.step import Strategy


@dataclass(frozen=True, kw_only=True)
class UserPriorityPropagate(PropagationPass):
    """Propagates shardings by their priority."""

    name = "sdy-user-priority-propagate"
    by_user_priority: ClassVar[bool] = True

    propagation_strategy: Strategy = option("aggressive", STRATEGY, choices=STRATEGIES)
    run_op_priority_propagation: bool = option(True, OP_PRIORITY)
