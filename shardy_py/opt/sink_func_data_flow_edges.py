"""Writes the shardings of function data-flow edges back to arguments and calls, and removes the edges."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.ir import Program
from shardy_py.passes.base import FUNCTION, Pass
from shardy_py.passes.dataflow import FUNC_EDGE, get_sharding, set_sharding
from shardy_py.passes.export.sink_data_flow_edges import erase_edges
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import ops_of


@dataclass(frozen=True, kw_only=True)
class SinkFuncDataFlowEdges(Pass):
    """Writes the shardings of edges back to arguments and calls."""

    name = "sdy-sink-func-data-flow-edges"
    anchor = FUNCTION

    def run(self, program: Program, log: Log | None = None) -> None:
        """Gives the operand of each `sdy.func_data_flow_edge` the sharding of the edge.

        Where the edge has none, an open sharding replaces that of the operand.

        Source: Shardy's sink_func_data_flow_edges.cc.
        """
        edges = ops_of(program, (FUNC_EDGE,))
        for edge in edges:
            value, sharding = edge.operands[0], edge.results[0].sharding
            if sharding is None:
                own = get_sharding(value)
                sharding = None if own is None else own.fully_open_like()
            if sharding is not None:
                set_sharding(value, sharding)
        erase_edges(edges)
