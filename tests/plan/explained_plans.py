"""Plans of modules of text, which have what no front end writes: groups, barriers and priorities everywhere."""

from __future__ import annotations

from typing import Any

from shardy_py.facade import Plan
from shardy_py.frontends.mlir import from_mlir
from shardy_py.ir import Op
from shardy_py.passes.export import (
    close_shardings,
    remove_sharding_groups,
    remove_sub_axes_in_input_output_shardings,
    sharding_constraint_to_reshard,
    sink_data_flow_edges,
    update_non_divisible_input_output_shardings,
)
from shardy_py.passes.propagation import user_priority_propagate
from shardy_py.passes.propagation.log import Step
from shardy_py.plan import PlannedValue
from shardy_py.plan.settings import Propagated


def plan_of_module(text: str, **options: Any) -> Plan:
    """The plan of a module after the import passes.

    Args:
        text: The module.
        **options: Those of `user_priority_propagate`.
    """
    program = from_mlir(text)
    given = [argument.sharding for argument in program.main.arguments], list(program.main.result_shardings)
    log: list[Step] = []

    def record(value: Any, old: Any, new: Any, why: str, op: Op | None) -> None:
        log.append(Step(value, old, new, op, (), (), why, 0, -1))

    user_priority_propagate.run(program, log=log, **options)
    sink_data_flow_edges.run(program, block_arguments=True)
    remove_sharding_groups.run(program)
    sharding_constraint_to_reshard.run(program, order_all_uses=False)
    update_non_divisible_input_output_shardings.run(program, record=record)
    remove_sub_axes_in_input_output_shardings.run(program, record=record)
    close_shardings.run(program, every_value=True)
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
    how = Propagated(
        options.get("propagation_strategy", "aggressive"),
        options.get("conservative_propagation", False),
        options.get("run_op_priority_propagation", True),
    )
    return Plan("module", mesh, inputs, outputs, (), program, log, propagation=how)
