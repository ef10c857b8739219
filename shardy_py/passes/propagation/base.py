"""The options and the run that all propagation passes share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, get_args

from shardy_py.ir import Program
from shardy_py.passes.base import CONSERVATIVE, KEEP_SHARDING_RULES, PROPAGATION_EDGES, SHARDING_ORIGINS, UNUSED, Pass, option
from shardy_py.passes.export.drop_sharding_rules import DropShardingRules
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.propagation.rounds import propagate
from shardy_py.passes.propagation.step import Strategy

STRATEGIES = get_args(Strategy)
STRATEGY = "how conflicts are settled"
OP_PRIORITY = "propagate through ops that move no data first"


@dataclass(frozen=True, kw_only=True)
class PropagationPass(Pass):
    """Propagates, then drops the rules that it attached, unless an option keeps them.

    The debug attributes are written from the log, by `opt/debug_attributes`.
    """

    keep_sharding_rules: bool = option(False, KEEP_SHARDING_RULES)
    module_dump_directory: str = option("", UNUSED)
    conservative_propagation: bool = option(False, CONSERVATIVE)
    debug_sharding_origins: bool = option(False, SHARDING_ORIGINS)
    debug_propagation_edge_sharding: bool = option(False, PROPAGATION_EDGES)
    propagation_strategy: Strategy = "basic"
    run_op_priority_propagation: bool = False
    settled: bool = False
    by_user_priority: ClassVar[bool] = False

    def run(self, program: Program, log: Log | None = None) -> None:
        """Propagates by the strategy and the priorities of the pass; see `schedule` for the stages of op priority."""
        propagate(
            program,
            strategy=self.propagation_strategy,
            op_priority=self.run_op_priority_propagation,
            user_priority=self.by_user_priority,
            conservative=self.conservative_propagation,
            settled=self.settled,
            log=log,
        )
        if not self.keep_sharding_rules:
            DropShardingRules().run(program)
