"""Plans of modules of text, which have what no front end writes: groups, barriers and priorities everywhere."""

from __future__ import annotations

from typing import Any

from shardy_py.facade import Plan
from shardy_py.opt.from_mlir import from_mlir
from shardy_py.passes.export.close_shardings import CloseShardings
from shardy_py.passes.export.input_output_shardings import RemoveSubAxesInInputOutputShardings, UpdateNonDivisibleInputOutputShardings
from shardy_py.passes.export.sharding_constraint_to_reshard import ShardingConstraintToReshard
from shardy_py.passes.export.sink_data_flow_edges import SinkDataFlowEdges
from shardy_py.passes.import_.sharding_group_import import RemoveShardingGroups
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.propagation.rounds import UserPriorityPropagate
from shardy_py.plan.record import PropagationOptions
from shardy_py.plan.values import PlannedValue


def plan_of_module(text: str, **options: Any) -> Plan:
    """The plan of a module after the import passes.

    Args:
        text: The module.
        **options: Those of `UserPriorityPropagate`.
    """
    program = from_mlir(text)
    given = [argument.sharding for argument in program.main.arguments], list(program.main.result_shardings)
    log: Log = []

    UserPriorityPropagate(keep_sharding_rules=True, **options).run(program, log)
    SinkDataFlowEdges(block_arguments=True).run(program)
    RemoveShardingGroups().run(program)
    ShardingConstraintToReshard(order_all_uses=False).run(program)
    UpdateNonDivisibleInputOutputShardings().run(program, log)
    RemoveSubAxesInInputOutputShardings().run(program, log)
    CloseShardings(every_value=True).run(program)
    main = program.main
    inputs = tuple(
        PlannedValue(f"a{i}", "input", v.type, v.sharding, given=was, given_by="in_shardings")
        for i, (v, was) in enumerate(zip(main.arguments, given[0], strict=True))
    )
    outputs = tuple(
        PlannedValue(f"result[{i}]", "output", t, s, given=was, given_by="out_shardings")
        for i, (t, s, was) in enumerate(zip(main.result_types, main.result_shardings, given[1], strict=True))
    )
    (mesh,) = [mesh for mesh in program.meshes.values() if not mesh.is_empty]
    how = PropagationOptions(
        options.get("propagation_strategy", "aggressive"),
        options.get("conservative_propagation", False),
        options.get("run_op_priority_propagation", True),
    )
    return Plan("module", mesh, inputs, outputs, (), program, log, propagation=how)
