"""The graph of the nodes that one device runs under a plan, and of their values."""

from __future__ import annotations

from shardy_py.cost.liveness.graph import Graph
from shardy_py.ir import Program
from shardy_py.plan.executed import collectives_of, explicit_of
from shardy_py.plan.memory.models import MODELS, MemoryModel
from shardy_py.plan.record import PlanRecord


def local_graph(plan: PlanRecord, model: MemoryModel = MODELS["cpu"]) -> tuple[Graph, Program]:
    """The graph of one device, and the program that it is read from: the region, or under `lowering="jit"` XLA's predicted program."""
    if plan.active_partitioner is None:
        program, sums = explicit_of(plan).program, ()
    else:
        program = plan.active_partitioner.local_program(plan)
        sums = [c.axes for c in collectives_of(plan) if c.kind == "all_reduce"]
    graph, program = model.read(program, sums)
    graph.donated = {d.input: d.output for d in plan.donation if d.output is not None}
    graph.dropped = frozenset(plan.dropped)
    if plan.platform != "cpu":  # whose devices have one memory
        graph.host_arguments, graph.host_results = (
            frozenset(i for i, value in enumerate(values) if value.memory_kind) for values in (plan.inputs, plan.outputs)
        )
    return graph, program
