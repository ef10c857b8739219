"""All passes by name, with their options: what `--pass-pipeline` may hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shardy_py.ir import Program
from shardy_py.ir.tables import merge_tables
from shardy_py.passes import pipelines
from shardy_py.passes.debug.recording import recorder, recording
from shardy_py.passes.export import (
    canonicalize,
    close_shardings,
    constant_or_scalar_merger,
    drop_sharding_and_mesh,
    drop_sharding_rules,
    export_named_computations,
    inline_meshes,
    insert_explicit_reshards,
    insert_func_call_reshards,
    propagate_to_func_results,
    remove_all_gather_reduce_scatter_for_cmv1,
    remove_propagation_debug_info,
    remove_sharding_groups,
    remove_sub_axes_in_input_output_shardings,
    reshard_to_collectives,
    sharding_constraint_to_reshard,
    sink_data_flow_edges,
    sink_func_data_flow_edges,
    unflatten_call_graph,
    update_non_divisible_input_output_shardings,
)
from shardy_py.passes.import_ import (
    add_data_flow_edges,
    add_func_data_flow_edges,
    apply_sharding_constraints,
    constant_or_scalar_splitter,
    explicit_gather_scatter_batching,
    flatten_call_graph,
    import_func_calls,
    lift_inlined_meshes,
    manual_axes_cleanup,
    pre_order_funcs,
    propagate_sharding_from_func_to_call,
    remove_size_one_axes,
    sharding_group_import,
    symbol_dce,
)
from shardy_py.passes.partitioner import convert_global_to_local, pad_for_divisibility, resolve_permutation_factors
from shardy_py.passes.pass_info import Option, Pass
from shardy_py.passes.pipeline_text import FUNCTION
from shardy_py.passes.propagation import (
    aggressive_propagate,
    basic_propagate,
    op_priority_propagate,
    populate_op_sharding_rules,
    user_priority_propagate,
)


def _apply_constraints(program: Program, *, debug_sharding_origins: bool = False, debug_propagation_edge_sharding: bool = False) -> None:
    """`sdy-apply-sharding-constraints` with its debug attributes."""
    with recording(program, sharding_origins=debug_sharding_origins, propagation_edges=debug_propagation_edge_sharding) as log:
        apply_sharding_constraints.run(program, record=recorder(log))


def _propagation(run: Callable[..., None]) -> Callable[..., None]:
    """A propagation pass that drops the rules it attached, unless asked to keep them, with its debug attributes."""

    def propagate(
        program: Program,
        *,
        keep_sharding_rules: bool = False,
        module_dump_directory: str = "",
        debug_sharding_origins: bool = False,
        debug_propagation_edge_sharding: bool = False,
        **options: Any,
    ) -> None:
        with recording(program, sharding_origins=debug_sharding_origins, propagation_edges=debug_propagation_edge_sharding) as log:
            run(program, log=log, **options)
        if not keep_sharding_rules:
            drop_sharding_rules.run(program)

    return propagate


_CONSERVATIVE = Option("conservative-propagation", False, "never propagate parts of axes, nor along dimensions that a factor does not tile")
_DEBUG = (
    Option("debug-sharding-origins", False, "note for each axis where it comes from"),
    Option("debug-propagation-edge-sharding", False, "note each step of the propagation"),
)
_SINK_DEBUG = (
    Option("sink-debug-sharding-origins", False, "also write back where axes come from"),
    Option("sink-debug-propagation-edge-sharding", False, "also write back the steps of the propagation"),
)
_STRATEGIES = ("basic", "aggressive", "basic-then-aggressive")
_STRATEGY = Option("propagation-strategy", "aggressive", "how conflicts are settled", _STRATEGIES)
_BASIC = (
    Option("keep-sharding-rules", False, "leave sharding rules attached to ops"),
    Option("module-dump-directory", "", "accepted and not used"),
    _CONSERVATIVE,
    *_DEBUG,
)
_OP_PRIORITY = Option("run-op-priority-propagation", True, "propagate through ops that move no data first")
_DEDUP = Option("dedup-functions-fully", False, "keep one copy of each function, whatever the shardings")
_EXPORT_OPTIONS = (
    Option("dump-directory", "", "accepted and not used"),
    Option("avoid-export-for-partitioning", False, "stop where shardings are final"),
    Option("enable-insert-explicit-collectives", False, "settle all disagreements between shardings by collectives"),
    Option("remove-all-gather-reduce-scatter-for-cmv1", False, "remove collectives that XLA fuses with a dot"),
    Option("keep-sharding-rules", False, "leave sharding rules attached to ops"),
    Option("dump-sharding-origins", False, "remove where axes come from"),
    Option("dump-propagation-edges", False, "remove the steps of the propagation"),
    Option("avoid-reshards-on-calls", False, "accepted and not used"),
    Option("update-non-divisible-input-output-shardings", True, "cut shardings of inputs and outputs to axes that divide their dimensions"),
)

_IMPORT = {
    add_data_flow_edges.NAME: Pass(add_data_flow_edges.run, "add an edge to every value that a loop, branch or computation passes on"),
    add_func_data_flow_edges.NAME: Pass(add_func_data_flow_edges.run, "add an edge to what calls pass on, for programs whose calls stay"),
    apply_sharding_constraints.NAME: Pass(_apply_constraints, "copy closed sharding constraints to the values they constrain", _DEBUG),
    constant_or_scalar_splitter.NAME: Pass(constant_or_scalar_splitter.run, "give each user of a constant its own copy"),
    explicit_gather_scatter_batching.NAME: Pass(
        explicit_gather_scatter_batching.run, "make batch dimensions of gathers and scatters explicit", anchor=FUNCTION
    ),
    flatten_call_graph.NAME: Pass(flatten_call_graph.run, "give each call its own copy of the function"),
    import_func_calls.NAME: Pass(
        import_func_calls.run,
        "replace calls by named computations",
        (Option("add-data-flow-edges-on-named-computations", True, "add data-flow edges to them"),),
    ),
    lift_inlined_meshes.NAME: Pass(lift_inlined_meshes.run, "give each mesh written inside a sharding a name"),
    manual_axes_cleanup.NAME: Pass(manual_axes_cleanup.run, "sort manual axes and state them in every sharding of the computation"),
    pre_order_funcs.NAME: Pass(pre_order_funcs.run, "put callers before the functions they call"),
    propagate_sharding_from_func_to_call.NAME: Pass(
        propagate_sharding_from_func_to_call.run, "copy result shardings of functions to their calls"
    ),
    remove_size_one_axes.NAME: Pass(remove_size_one_axes.run, "drop axes of size 1 from shardings"),
    sharding_group_import.NAME: Pass(sharding_group_import.run, "merge sharding groups that share a value and number them"),
    symbol_dce.NAME: Pass(symbol_dce.run, "remove private functions that nothing public reaches"),
    "sdy-import-pipeline": Pass(pipelines.import_pipeline, "all passes that prepare a program for propagation", (_DEDUP,)),
}

_PROPAGATION = {
    populate_op_sharding_rules.NAME: Pass(
        populate_op_sharding_rules.run, "attach its sharding rule to each op", (_CONSERVATIVE,), FUNCTION
    ),
    basic_propagate.NAME: Pass(_propagation(basic_propagate.run), "propagate the same axes to all tensors of an op", _BASIC),
    aggressive_propagate.NAME: Pass(
        _propagation(aggressive_propagate.run), "propagate, every tensor taking what it can", (*_BASIC, _STRATEGY)
    ),
    op_priority_propagate.NAME: Pass(
        _propagation(op_priority_propagate.run), "propagate through ops that move no data first", (*_BASIC, _STRATEGY, _OP_PRIORITY)
    ),
    user_priority_propagate.NAME: Pass(
        _propagation(user_priority_propagate.run), "propagate shardings by their priority", (*_BASIC, _STRATEGY, _OP_PRIORITY)
    ),
    "sdy-propagation-pipeline": Pass(
        pipelines.propagation_pipeline,
        "import, propagate and export",
        (_DEDUP, _CONSERVATIVE, _STRATEGY, _OP_PRIORITY, *_EXPORT_OPTIONS),
    ),
}

_EXPORT = {
    canonicalize.NAME: Pass(
        canonicalize.run,
        "simplify reshards, collectives and manual computations, and remove dead ops",
        (
            Option("enable-patterns", (), "labels of the patterns to apply; all without"),
            Option("disable-patterns", (), "accepted and not used"),
            Option("max-iterations", 10, "accepted and not used"),
            Option("max-num-rewrites", -1, "accepted and not used"),
            Option("region-simplify", "normal", "accepted and not used", ("disabled", "normal", "aggressive")),
            Option("top-down", True, "accepted and not used"),
            Option("test-convergence", False, "accepted and not used"),
            Option("cse-between-iterations", False, "accepted and not used"),
        ),
        FUNCTION,
    ),
    close_shardings.NAME: Pass(close_shardings.run, "close all dimensions of all shardings"),
    constant_or_scalar_merger.NAME: Pass(constant_or_scalar_merger.run, "merge equal constants", anchor=FUNCTION),
    drop_sharding_and_mesh.NAME: Pass(drop_sharding_and_mesh.run, "remove all shardings and meshes"),
    drop_sharding_rules.NAME: Pass(drop_sharding_rules.run, "remove sharding rules that no user gave", anchor=FUNCTION),
    export_named_computations.NAME: Pass(export_named_computations.run, "replace named computations by calls"),
    inline_meshes.NAME: Pass(inline_meshes.run, "write meshes into the shardings that refer to them"),
    insert_explicit_reshards.NAME: Pass(
        insert_explicit_reshards.run,
        "insert reshards where the shardings around an op disagree",
        (
            Option("enable-full-version", False, "settle every disagreement, not only those that XLA handles badly"),
            Option("choose-by-bytes", False, "run ops so that the fewest bytes move, not by numbers of elements (not in Shardy)"),
        ),
        FUNCTION,
    ),
    insert_func_call_reshards.NAME: Pass(insert_func_call_reshards.run, "give calls the result shardings of their functions"),
    propagate_to_func_results.NAME: Pass(propagate_to_func_results.run, "copy shardings of returned values to function results"),
    remove_all_gather_reduce_scatter_for_cmv1.NAME: Pass(
        remove_all_gather_reduce_scatter_for_cmv1.run, "remove collectives around dots that XLA fuses with them", anchor=FUNCTION
    ),
    remove_propagation_debug_info.NAME: Pass(remove_propagation_debug_info.run, "remove what the debug options added"),
    remove_sharding_groups.NAME: Pass(remove_sharding_groups.run, "remove sharding groups"),
    remove_sub_axes_in_input_output_shardings.NAME: Pass(
        remove_sub_axes_in_input_output_shardings.run, "cut open dimensions of inputs and outputs before parts of axes"
    ),
    reshard_to_collectives.NAME: Pass(
        reshard_to_collectives.run,
        "replace reshards by collectives",
        (Option("keep-redundant-reshards", False, "keep reshards that change nothing"),),
        FUNCTION,
    ),
    sharding_constraint_to_reshard.NAME: Pass(
        sharding_constraint_to_reshard.run, "replace sharding constraints by reshards", anchor=FUNCTION
    ),
    sink_data_flow_edges.NAME: Pass(
        sink_data_flow_edges.run, "write the shardings of edges back to the ops they belong to", _SINK_DEBUG, FUNCTION
    ),
    sink_func_data_flow_edges.NAME: Pass(
        sink_func_data_flow_edges.run, "write the shardings of edges back to arguments and calls", anchor=FUNCTION
    ),
    unflatten_call_graph.NAME: Pass(unflatten_call_graph.run, "let calls of equal copies of a function share one", (_DEDUP,)),
    update_non_divisible_input_output_shardings.NAME: Pass(
        update_non_divisible_input_output_shardings.run, "cut shardings of inputs and outputs to axes that divide their dimensions"
    ),
    "sdy-export-pipeline": Pass(pipelines.export_pipeline, "make shardings final and insert reshards", _EXPORT_OPTIONS),
}

_PARTITIONER: dict[str, Pass] = {
    convert_global_to_local.NAME: Pass(
        convert_global_to_local.run,
        "turn the program over whole tensors into the one that each device runs",
        (
            Option("per-dim-all-gather", False, "gather dimension by dimension"),
            Option("combine-multi-dimension-reduce-scatter", False, "keep a reduce-scatter of several dimensions as one"),
            Option("enable-rgv3", False, "write replica groups as axes of a mesh"),
            Option("sub-axes-in-order", False, "number parts of axes as replica groups do, for right results (not in Shardy)"),
            Option("complete-collectives", False, "add what pads, slices and masks of parts need, for right results (not in Shardy)"),
        ),
    ),
    pad_for_divisibility.NAME: Pass(pad_for_divisibility.run, "pad tensors until their shardings divide them", anchor=FUNCTION),
    resolve_permutation_factors.NAME: Pass(
        resolve_permutation_factors.run,
        "reshard around ops whose elements change places along a sharded dimension",
        (
            Option("enable-halo-exchange", True, "let reversals exchange parts"),
            Option("whole-mesh-ids", False, "number devices over the whole mesh, for right results (not in Shardy)"),
        ),
    ),
}

PASSES: Mapping[str, Pass] = merge_tables((_IMPORT, _PROPAGATION, _EXPORT, _PARTITIONER))
"""Name -> pass, those of the import first."""

OLD_NAMES: Mapping[str, str] = {
    "sdy-constant-merger": constant_or_scalar_merger.NAME,
    "sdy-constant-splitter": constant_or_scalar_splitter.NAME,
    "sdy-temp-explicit-reshards-for-optimizations": insert_explicit_reshards.NAME,
}
"""Names that passes had in earlier versions of Shardy -> present ones."""

OLD_OPTIONS: Mapping[str, str] = {
    "dump-directory": "module-dump-directory",
    "module-dump-directory": "dump-directory",
}
"""Names that options had, or have in other passes -> present ones."""
