"""The graph of what one device computes and keeps under a plan."""

from __future__ import annotations

from shardy_py.cost.liveness.compilers import COMPILERS, Compiler
from shardy_py.cost.liveness.graph import Graph
from shardy_py.ir import Program
from shardy_py.plan.executed import collectives_of, explicit_of
from shardy_py.plan.memory.expansions import EXPANSIONS
from shardy_py.plan.memory.floats import widened
from shardy_py.plan.memory.reader import Reader
from shardy_py.plan.record import PlanRecord


def local_graph(plan: PlanRecord, compiler: Compiler = COMPILERS["cpu"]) -> tuple[Graph, Program]:
    """What one device computes and keeps under a plan, and the program it is read from.

    Args:
        plan: Under `lowering="shard_map"` its region is read, which is made if need be; under `lowering="jit"` the program that XLA's
            partitioner is predicted to make of it.
        compiler: Whose ways to follow.
    """
    if plan.source is None:
        program, sums = explicit_of(plan).program, ()
    else:
        program = plan.source.local_program(plan)
        sums = [c.axes for c in collectives_of(plan) if c.kind == "all_reduce"]
    if compiler.widens:
        program = widened(program)
    graph = Reader(program, EXPANSIONS, sums, compiler.widens).read([value.path for value in plan.inputs])
    graph.donated = {d.input: d.output for d in plan.donation if d.output is not None}
    return graph, program
