"""The options and the frame that all propagation passes share."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import get_args

from shardy_py.ir import Program
from shardy_py.passes.base import CONSERVATIVE, KEEP_SHARDING_RULES, UNUSED, Pass, option
from shardy_py.passes.debug.recording import PROPAGATION_EDGES, SHARDING_ORIGINS, recording
from shardy_py.passes.export.drop_sharding_rules import DropShardingRules
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.propagation.step import Strategy

STRATEGIES = get_args(Strategy)
STRATEGY = "how conflicts are settled"
OP_PRIORITY = "propagate through ops that move no data first"


@dataclass(frozen=True, kw_only=True)
class PropagationPass(Pass):
    """Propagates, then drops the rules that it attached, unless an option keeps them."""

    keep_sharding_rules: bool = option(False, KEEP_SHARDING_RULES)
    module_dump_directory: str = option("", UNUSED)
    conservative_propagation: bool = option(False, CONSERVATIVE)
    debug_sharding_origins: bool = option(False, SHARDING_ORIGINS)
    debug_propagation_edge_sharding: bool = option(False, PROPAGATION_EDGES)

    def run(self, program: Program, log: Log | None = None) -> None:
        """Runs `propagate` with the debug attributes that are switched on."""
        edges = self.debug_propagation_edge_sharding
        with recording(program, log, sharding_origins=self.debug_sharding_origins, propagation_edges=edges) as steps:
            self.propagate(program, steps)
        if not self.keep_sharding_rules:
            DropShardingRules().run(program)

    @abstractmethod
    def propagate(self, program: Program, log: Log | None) -> None:
        """Propagates with the strategy and the priorities of the pass."""
