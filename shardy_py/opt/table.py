"""All passes by name: what `--pass-pipeline` may hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from shardy_py.dialect import INSTALLED, Semantics
from shardy_py.ir import Program
from shardy_py.opt.canonicalize import COLLECTIVES, RESHARDS, Canonicalize
from shardy_py.opt.constant_or_scalar_merger import ConstantOrScalarMerger
from shardy_py.opt.debug_attributes import RemovePropagationDebugInfo
from shardy_py.opt.explicit_gather_scatter_batching import ExplicitGatherScatterBatching
from shardy_py.opt.func_data_flow_edges import AddFuncDataFlowEdges, SinkFuncDataFlowEdges
from shardy_py.opt.function_graph import FlattenCallGraph, PreOrderFuncs, SymbolDce, UnflattenCallGraph
from shardy_py.opt.function_shardings import InsertFuncCallReshards, PropagateShardingFromFuncToCall, PropagateToFuncResults
from shardy_py.opt.insert_explicit_reshards import InsertExplicitReshards
from shardy_py.opt.meshes import DropShardingAndMesh, InlineMeshes, LiftInlinedMeshes
from shardy_py.opt.named_computations import ExportNamedComputations, ImportFuncCalls
from shardy_py.opt.partitioner.convert_global_to_local.convert import ConvertGlobalToLocal
from shardy_py.opt.partitioner.pad_for_divisibility import PadForDivisibility
from shardy_py.opt.partitioner.resolve_permutation_factors import ResolvePermutationFactors
from shardy_py.opt.propagate import AggressivePropagate, BasicPropagate, OpPriorityPropagate, PopulateOpShardingRules
from shardy_py.opt.reshard_to_collectives import RemoveAllGatherReduceScatterForCmv1, ReshardToCollectives
from shardy_py.opt.verify_unreduced_axes import VerifyUnreducedAxes
from shardy_py.passes.base import CONSERVATIVE, DEDUP_FUNCTIONS_FULLY, KEEP_SHARDING_RULES, UNUSED, Pass, Pipeline, option
from shardy_py.passes.collection import no_collection
from shardy_py.passes.export.close_shardings import CloseShardings, DropShardingRules
from shardy_py.passes.export.input_output_shardings import RemoveSubAxesInInputOutputShardings, UpdateNonDivisibleInputOutputShardings
from shardy_py.passes.export.sharding_constraint_to_reshard import ShardingConstraintToReshard
from shardy_py.passes.export.sink_data_flow_edges import SinkDataFlowEdges
from shardy_py.passes.import_.add_data_flow_edges import AddDataFlowEdges
from shardy_py.passes.import_.apply_sharding_constraints import ApplyShardingConstraints
from shardy_py.passes.import_.constant_or_scalar_splitter import ConstantOrScalarSplitter
from shardy_py.passes.import_.manual_axes_cleanup import ManualAxesCleanup
from shardy_py.passes.import_.remove_size_one_axes import RemoveSizeOneAxes
from shardy_py.passes.import_.sharding_group_import import RemoveShardingGroups, ShardingGroupImport
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.propagation.rounds import OP_PRIORITY, STRATEGIES, STRATEGY, UserPriorityPropagate
from shardy_py.passes.propagation.step import Strategy


@dataclass(frozen=True, kw_only=True)
class ImportPipeline(Pipeline):
    """Runs all passes that prepare a program for propagation."""

    name = "sdy-import-pipeline"

    dedup_functions_fully: bool = option(False, DEDUP_FUNCTIONS_FULLY)

    def passes(self, semantics: Semantics = INSTALLED) -> Iterator[Pass]:
        """The import passes; where calls stay calls, constraints and groups are taken in here already."""
        yield SymbolDce()
        yield LiftInlinedMeshes()
        yield RemoveSizeOneAxes()
        yield PropagateShardingFromFuncToCall()
        yield ConstantOrScalarSplitter()
        yield SymbolDce()
        yield ManualAxesCleanup()
        yield AddDataFlowEdges()
        if self.dedup_functions_fully:
            yield ApplyShardingConstraints()
            yield ShardingGroupImport()


@dataclass(frozen=True, kw_only=True)
class ExportPipeline(Pipeline):
    """Makes shardings final and inserts reshards."""

    name = "sdy-export-pipeline"
    is_last: ClassVar[bool] = True

    dump_directory: str = option("", UNUSED)
    avoid_export_for_partitioning: bool = option(False, "stop where shardings are final")
    enable_insert_explicit_collectives: bool = option(False, "settle all disagreements between shardings by collectives")
    remove_all_gather_reduce_scatter_for_cmv1: bool = option(False, "remove collectives that XLA fuses with a dot")
    keep_sharding_rules: bool = option(False, KEEP_SHARDING_RULES)
    dump_sharding_origins: bool = option(False, "remove where axes come from")
    dump_propagation_edges: bool = option(False, "remove the steps of the propagation")
    avoid_reshards_on_calls: bool = option(False, UNUSED)
    update_non_divisible_input_output_shardings: bool = option(
        True, "cut shardings of inputs and outputs to axes that divide their dimensions"
    )

    def passes(self, semantics: Semantics = INSTALLED) -> Iterator[Pass]:
        """The export passes; either of the dump options removes both debug attributes, which the reference only writes to files."""
        yield ConstantOrScalarMerger()
        yield SinkDataFlowEdges()
        if not self.avoid_export_for_partitioning:
            yield RemoveShardingGroups()
            yield ShardingConstraintToReshard()
        if self.update_non_divisible_input_output_shardings:
            yield UpdateNonDivisibleInputOutputShardings()
            yield RemoveSubAxesInInputOutputShardings()
        yield CloseShardings()
        if self.avoid_export_for_partitioning:
            return
        if semantics.has("export: unreduced axes are verified"):
            yield VerifyUnreducedAxes()
        yield InsertExplicitReshards(enable_full_version=self.enable_insert_explicit_collectives)
        if self.enable_insert_explicit_collectives:
            yield Canonicalize(enable_patterns=(RESHARDS,))
            yield ReshardToCollectives()
        yield Canonicalize(enable_patterns=(COLLECTIVES,))
        if self.remove_all_gather_reduce_scatter_for_cmv1:
            yield RemoveAllGatherReduceScatterForCmv1()
        if self.dump_sharding_origins or self.dump_propagation_edges:
            yield RemovePropagationDebugInfo()
        if not self.keep_sharding_rules:
            yield DropShardingRules()
        if self.is_last and semantics.has("export: meshes are inlined"):
            yield InlineMeshes()


@dataclass(frozen=True, kw_only=True)
class PropagationPipeline(ExportPipeline):
    """Imports, propagates and exports."""

    name = "sdy-propagation-pipeline"
    is_last = False

    dedup_functions_fully: bool = option(False, DEDUP_FUNCTIONS_FULLY)
    conservative_propagation: bool = option(False, CONSERVATIVE)
    propagation_strategy: Strategy = option("aggressive", STRATEGY, choices=STRATEGIES)
    run_op_priority_propagation: bool = option(True, OP_PRIORITY)

    def passes(self, semantics: Semantics = INSTALLED) -> Iterator[Pass]:
        """All passes; calls become computations for the propagation, unless functions are deduplicated fully."""
        yield ImportPipeline(dedup_functions_fully=self.dedup_functions_fully)
        if self.dedup_functions_fully:
            yield AddFuncDataFlowEdges()
        else:
            yield FlattenCallGraph()
            yield SymbolDce()
            yield ImportFuncCalls()
            yield SymbolDce()
            yield ApplyShardingConstraints()
            yield ShardingGroupImport()
        yield PreOrderFuncs()
        yield UserPriorityPropagate(
            propagation_strategy=self.propagation_strategy,
            conservative_propagation=self.conservative_propagation,
            run_op_priority_propagation=self.run_op_priority_propagation,
            keep_sharding_rules=True,
        )
        if not self.dedup_functions_fully:
            yield ExportNamedComputations()
        yield PropagateToFuncResults()
        if self.dedup_functions_fully:
            yield SinkFuncDataFlowEdges()
        yield UnflattenCallGraph()
        yield SymbolDce()
        yield InsertFuncCallReshards()
        yield from super().passes(semantics)

    def run(self, program: Program, log: Log | None = None) -> None:
        """Runs the passes without a garbage collection between."""
        with no_collection():
            super().run(program, log)


_IMPORT = (
    AddDataFlowEdges,
    AddFuncDataFlowEdges,
    ApplyShardingConstraints,
    ConstantOrScalarSplitter,
    ExplicitGatherScatterBatching,
    FlattenCallGraph,
    ImportFuncCalls,
    LiftInlinedMeshes,
    ManualAxesCleanup,
    PreOrderFuncs,
    PropagateShardingFromFuncToCall,
    RemoveSizeOneAxes,
    ShardingGroupImport,
    SymbolDce,
    ImportPipeline,
)

_PROPAGATION = (
    PopulateOpShardingRules,
    BasicPropagate,
    AggressivePropagate,
    OpPriorityPropagate,
    UserPriorityPropagate,
    PropagationPipeline,
)

_EXPORT = (
    Canonicalize,
    CloseShardings,
    ConstantOrScalarMerger,
    DropShardingAndMesh,
    DropShardingRules,
    ExportNamedComputations,
    InlineMeshes,
    InsertExplicitReshards,
    InsertFuncCallReshards,
    PropagateToFuncResults,
    RemoveAllGatherReduceScatterForCmv1,
    RemovePropagationDebugInfo,
    RemoveShardingGroups,
    RemoveSubAxesInInputOutputShardings,
    ReshardToCollectives,
    ShardingConstraintToReshard,
    SinkDataFlowEdges,
    SinkFuncDataFlowEdges,
    UnflattenCallGraph,
    UpdateNonDivisibleInputOutputShardings,
    VerifyUnreducedAxes,
    ExportPipeline,
)

_PARTITIONER = (ConvertGlobalToLocal, PadForDivisibility, ResolvePermutationFactors)

PASSES: Mapping[str, type[Pass]] = {pass_.name: pass_ for pass_ in (*_IMPORT, *_PROPAGATION, *_EXPORT, *_PARTITIONER)}
"""Name -> pass, those of the import first."""

OLD_NAMES: Mapping[str, str] = {
    "sdy-constant-merger": ConstantOrScalarMerger.name,
    "sdy-constant-splitter": ConstantOrScalarSplitter.name,
    "sdy-temp-explicit-reshards-for-optimizations": InsertExplicitReshards.name,
}
"""Names that passes had in earlier versions of Shardy -> present ones."""

OLD_OPTIONS: Mapping[str, str] = {
    "dump-directory": "module-dump-directory",
    "module-dump-directory": "dump-directory",
}
"""Names that options had, or have in other passes -> present ones."""
