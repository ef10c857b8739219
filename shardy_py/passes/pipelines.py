"""The pipeline of passes that a plan runs."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.dialect import INSTALLED, Semantics
from shardy_py.ir import Program
from shardy_py.passes.base import Pass, Pipeline
from shardy_py.passes.dataflow import DATA_FLOW_OPS, MANUAL_COMPUTATION
from shardy_py.passes.export.close_shardings import CloseShardings
from shardy_py.passes.export.input_output_shardings import RemoveSubAxesInInputOutputShardings, UpdateNonDivisibleInputOutputShardings
from shardy_py.passes.export.sharding_constraint_to_reshard import ShardingConstraintToReshard
from shardy_py.passes.export.sink_data_flow_edges import SinkDataFlowEdges
from shardy_py.passes.import_.add_data_flow_edges import ImportInlinedCalls
from shardy_py.passes.import_.apply_sharding_constraints import CONSTRAINT, ApplyShardingConstraints
from shardy_py.passes.import_.constant_or_scalar_splitter import ConstantOrScalarSplitter
from shardy_py.passes.import_.manual_axes_cleanup import ManualAxesCleanup
from shardy_py.passes.import_.remove_size_one_axes import RemoveSizeOneAxes
from shardy_py.passes.import_.sharding_group_import import GROUP, RemoveShardingGroups, ShardingGroupImport
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.propagation.rounds import UserPriorityPropagate
from shardy_py.passes.propagation.step import Strategy

_OPS: dict[type[Pass], frozenset[str]] = {
    ConstantOrScalarSplitter: frozenset(("sdy.constant", "stablehlo.broadcast_in_dim", "stablehlo.constant", "stablehlo.iota")),
    ManualAxesCleanup: frozenset((MANUAL_COMPUTATION,)),
    ImportInlinedCalls: DATA_FLOW_OPS,
    ApplyShardingConstraints: frozenset((CONSTRAINT, MANUAL_COMPUTATION)),
    ShardingGroupImport: frozenset((GROUP,)),
    SinkDataFlowEdges: DATA_FLOW_OPS,
    RemoveShardingGroups: frozenset((GROUP,)),
    ShardingConstraintToReshard: frozenset((CONSTRAINT, MANUAL_COMPUTATION)),
}
"""Pass -> the ops without which it changes nothing; those that are not listed run on every program."""


@dataclass(frozen=True, kw_only=True)
class PlanPipeline(Pipeline):
    """Does to a program without calls, such as one read from a jaxpr, what `sdy-propagation-pipeline` does, and a little more.

    The reference stops where an argument of a computation was not told that its operand changed. XLA runs it on programs whose calls are
    inlined, which have no such arguments. So the propagation goes on here through ops that move no data until these change nothing.

    Every value ends with its final, closed sharding; None means replicated.
    """

    propagation_strategy: Strategy = "aggressive"
    conservative_propagation: bool = False
    run_op_priority_propagation: bool = True

    def passes(self, semantics: Semantics = INSTALLED) -> tuple[Pass, ...]:
        """The passes of the three pipelines that change such a program; rules stay, for explanations."""
        return (
            RemoveSizeOneAxes(),
            ConstantOrScalarSplitter(in_order=True),
            ManualAxesCleanup(),
            ImportInlinedCalls(),
            ApplyShardingConstraints(),
            ShardingGroupImport(),
            UserPriorityPropagate(
                propagation_strategy=self.propagation_strategy,
                conservative_propagation=self.conservative_propagation,
                run_op_priority_propagation=self.run_op_priority_propagation,
                keep_sharding_rules=True,
                settled=True,
            ),
            SinkDataFlowEdges(block_arguments=True),
            RemoveShardingGroups(),
            ShardingConstraintToReshard(order_all_uses=False),
            UpdateNonDivisibleInputOutputShardings(),
            RemoveSubAxesInInputOutputShardings(),
            CloseShardings(every_value=True),
        )

    def run(self, program: Program, log: Log | None = None) -> None:
        """Runs the passes that have something to do."""
        present = {op.name for op in program.walk()}
        for each in self.passes(program.semantics):
            if type(each) not in _OPS or not present.isdisjoint(_OPS[type(each)]):
                each.run(program, log)
