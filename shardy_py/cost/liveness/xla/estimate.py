"""The memory that XLA needs for a program, from its graph."""

from __future__ import annotations

from shardy_py.cost.liveness.estimate import Estimate, estimated
from shardy_py.cost.liveness.graph import Graph
from shardy_py.cost.liveness.live import lives
from shardy_py.cost.liveness.order import from_results, order_nodes
from shardy_py.cost.liveness.stacks import name_stacks
from shardy_py.cost.liveness.xla.combine import combine
from shardy_py.cost.liveness.xla.compilers import COMPILERS, Compiler
from shardy_py.cost.liveness.xla.copies import insert_copies
from shardy_py.cost.liveness.xla.fusion import fuse
from shardy_py.cost.liveness.xla.packing import into_outputs, packed
from shardy_py.cost.liveness.xla.simplify import simplify


def estimate(graph: Graph, compiler: Compiler = COMPILERS["cpu"]) -> Estimate:
    """The memory that a compiled program takes.

    Equal nodes are merged, nodes are fused into their readers, loops get the copies that they need, nodes are scheduled, and buffers live
    from the node that makes them to the last that reads them.
    """
    name_stacks(graph)
    simplify(graph)
    if compiler.order != "program":
        from_results(graph)
    combine(graph)
    fuse(graph)
    insert_copies(graph)
    order_nodes(graph, compiler.order)
    lifetimes = lives(graph)
    temporaries = into_outputs(lifetimes.buffers)
    temp = packed(temporaries, compiler.alignment) if len(temporaries) <= compiler.small_program else None
    return estimated(graph, lifetimes, temporaries, temp, compiler.alignment, compiler.pointer)
