"""Sequences of passes, as the reference strings them together."""

from __future__ import annotations

from typing import Any

from shardy_py.dialect import TensorSharding
from shardy_py.ir import Op, Program, Value
from shardy_py.passes.collection import no_collection
from shardy_py.passes.export import (
    canonicalize,
    close_shardings,
    constant_or_scalar_merger,
    drop_sharding_rules,
    export_named_computations,
    insert_explicit_reshards,
    insert_func_call_reshards,
    propagate_to_func_results,
    remove_propagation_debug_info,
    remove_sharding_groups,
    remove_sub_axes_in_input_output_shardings,
    reshard_to_collectives,
    sharding_constraint_to_reshard,
    sink_data_flow_edges,
    sink_func_data_flow_edges,
    unflatten_call_graph,
)
from shardy_py.passes.export import (
    remove_all_gather_reduce_scatter_for_cmv1 as remove_for_cmv1,
)
from shardy_py.passes.export import (
    update_non_divisible_input_output_shardings as update_non_divisible,
)
from shardy_py.passes.import_ import (
    add_data_flow_edges,
    add_func_data_flow_edges,
    apply_sharding_constraints,
    constant_or_scalar_splitter,
    flatten_call_graph,
    import_func_calls,
    import_inlined_calls,
    lift_inlined_meshes,
    manual_axes_cleanup,
    pre_order_funcs,
    propagate_sharding_from_func_to_call,
    remove_size_one_axes,
    sharding_group_import,
    symbol_dce,
)
from shardy_py.passes.propagation import user_priority_propagate
from shardy_py.passes.propagation.log import Step
from shardy_py.passes.propagation.step import Strategy
from shardy_py.passes.walk import Record


def plan_pipeline(
    program: Program,
    *,
    strategy: Strategy = "aggressive",
    conservative: bool = False,
    op_priority: bool = True,
    log: list[Step] | None = None,
) -> None:
    """What `sdy-propagation-pipeline` does to a program without calls, such as one read from a jaxpr, and a little more.

    The pipeline stops where an argument of a computation was not told that its operand changed. XLA runs it on programs whose calls are
    inlined, which have no such arguments. So it goes on here through ops that move no data until these change nothing.

    Every value ends with its final, closed sharding; None means replicated.

    Args:
        program: Changed in place.
        strategy: How conflicts are settled.
        conservative: Never propagate sub-axes.
        op_priority: Whether ops that move no data go first.
        log: Where each change of a sharding is written, with its cause; None to keep none.
    """
    record = None if log is None else _recorder(log)
    remove_size_one_axes.run(program)
    constant_or_scalar_splitter.run(program, in_order=True)
    manual_axes_cleanup.run(program)
    import_inlined_calls.run(program)
    apply_sharding_constraints.run(program, record=record)
    sharding_group_import.run(program)
    user_priority_propagate.run(
        program,
        propagation_strategy=strategy,
        conservative_propagation=conservative,
        run_op_priority_propagation=op_priority,
        settled=True,
        log=log,
    )
    sink_data_flow_edges.run(program, block_arguments=True)
    remove_sharding_groups.run(program)
    sharding_constraint_to_reshard.run(program, order_all_uses=False)
    update_non_divisible.run(program, record=record)
    remove_sub_axes_in_input_output_shardings.run(program, record=record)
    close_shardings.run(program, every_value=True)


def import_pipeline(program: Program, *, dedup_functions_fully: bool = False, record: Record | None = None) -> None:
    """`sdy-import-pipeline`: prepares a program with calls for propagation.

    Args:
        program: Changed in place.
        dedup_functions_fully: Calls stay calls, so constraints and groups are taken in here already.
        record: Told of each sharding that is set.
    """
    symbol_dce.run(program)
    lift_inlined_meshes.run(program)
    remove_size_one_axes.run(program)
    propagate_sharding_from_func_to_call.run(program)
    constant_or_scalar_splitter.run(program)
    symbol_dce.run(program)
    manual_axes_cleanup.run(program)
    add_data_flow_edges.run(program)
    if dedup_functions_fully:
        apply_sharding_constraints.run(program, record=record)
        sharding_group_import.run(program)


@no_collection()
def propagation_pipeline(
    program: Program,
    *,
    propagation_strategy: Strategy = "aggressive",
    conservative_propagation: bool = False,
    run_op_priority_propagation: bool = True,
    dedup_functions_fully: bool = False,
    log: list[Step] | None = None,
    **export_options: Any,
) -> None:
    """`sdy-propagation-pipeline`, for a program that was read from MLIR.

    Args:
        program: Changed in place.
        propagation_strategy: How conflicts are settled.
        conservative_propagation: Never propagate sub-axes.
        run_op_priority_propagation: Whether ops that move no data go first.
        dedup_functions_fully: Keep calls as they are instead of propagating through a copy of the function per call.
        log: Where each change of a sharding is written, with its cause; None to keep none.
        **export_options: Those of `export_pipeline`.
    """
    record = None if log is None else _recorder(log)
    import_pipeline(program, dedup_functions_fully=dedup_functions_fully, record=record)
    if dedup_functions_fully:
        add_func_data_flow_edges.run(program)
    else:
        flatten_call_graph.run(program)
        symbol_dce.run(program)
        import_func_calls.run(program)
        symbol_dce.run(program)
        apply_sharding_constraints.run(program, record=record)
        sharding_group_import.run(program)
    pre_order_funcs.run(program)
    user_priority_propagate.run(
        program,
        propagation_strategy=propagation_strategy,
        conservative_propagation=conservative_propagation,
        run_op_priority_propagation=run_op_priority_propagation,
        log=log,
    )
    if not dedup_functions_fully:
        export_named_computations.run(program)
    propagate_to_func_results.run(program)
    if dedup_functions_fully:
        sink_func_data_flow_edges.run(program)
    unflatten_call_graph.run(program)
    symbol_dce.run(program)
    insert_func_call_reshards.run(program)
    export_pipeline(program, record=record, **export_options)


def export_pipeline(
    program: Program,
    *,
    avoid_export_for_partitioning: bool = False,
    enable_insert_explicit_collectives: bool = False,
    remove_all_gather_reduce_scatter_for_cmv1: bool = False,
    keep_sharding_rules: bool = False,
    dump_sharding_origins: bool = False,
    dump_propagation_edges: bool = False,
    update_non_divisible_input_output_shardings: bool = True,
    record: Record | None = None,
    **_: object,
) -> None:
    """`sdy-export-pipeline`: makes shardings final and inserts what moves data.

    Args:
        program: Changed in place.
        avoid_export_for_partitioning: Leave groups, constraints and rules, and insert nothing.
        enable_insert_explicit_collectives: Settle every disagreement between shardings, by collectives.
        remove_all_gather_reduce_scatter_for_cmv1: Remove collectives that XLA fuses with a dot.
        keep_sharding_rules: Leave rules attached to ops.
        dump_sharding_origins: Remove `sdy.sharding_origins`, which the reference only writes to files.
        dump_propagation_edges: As for `sdy.propagation_edges`; either removes both.
        update_non_divisible_input_output_shardings: Cut shardings of inputs and outputs to axes that divide their dimensions.
        record: Told of each sharding that changes.
    """
    constant_or_scalar_merger.run(program)
    sink_data_flow_edges.run(program)
    if not avoid_export_for_partitioning:
        remove_sharding_groups.run(program)
        sharding_constraint_to_reshard.run(program)
    if update_non_divisible_input_output_shardings:
        update_non_divisible.run(program, record=record)
        remove_sub_axes_in_input_output_shardings.run(program, record=record)
    close_shardings.run(program)
    if avoid_export_for_partitioning:
        return
    insert_explicit_reshards.run(program, enable_full_version=enable_insert_explicit_collectives)
    if enable_insert_explicit_collectives:
        canonicalize.run(program, enable_patterns=(canonicalize.RESHARDS,))
        reshard_to_collectives.run(program)
    canonicalize.run(program, enable_patterns=(canonicalize.COLLECTIVES,))
    if remove_all_gather_reduce_scatter_for_cmv1:
        remove_for_cmv1.run(program)
    if dump_sharding_origins or dump_propagation_edges:
        remove_propagation_debug_info.run(program)
    if not keep_sharding_rules:
        drop_sharding_rules.run(program)


def _recorder(log: list[Step]) -> Record:
    def record(value: Value, old: TensorSharding | None, new: TensorSharding | None, why: str, op: Op | None) -> None:
        log.append(Step(value, old, new, op, (), (), why, 0, -1))

    return record
