"""Edges on what flows into functions and out of calls, for programs whose calls stay calls: added before the propagation, removed after."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.ir import Program
from shardy_py.passes.base import FUNCTION, Pass
from shardy_py.passes.dataflow import FUNC_EDGE, get_sharding, set_sharding
from shardy_py.passes.export.sink_data_flow_edges import erase_edges
from shardy_py.passes.import_.add_data_flow_edges import edges_on
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import CALL, blocks_of, ops_of


@dataclass(frozen=True, kw_only=True)
class AddFuncDataFlowEdges(Pass):
    """Adds an edge to the arguments and results of calls, for programs whose calls stay."""

    name = "sdy-add-func-data-flow-edges"

    def run(self, program: Program, log: Log | None = None) -> None:
        """Adds edges to all arguments of functions other than main, and to all results of calls.

        The edge starts with the sharding of its value and takes over all its other uses. Values without a static shape get none. Raises
        VerificationError if there are several functions and none is named main.

        Source: Shardy's add_func_data_flow_edges.cc.
        """
        main = program.main if program.functions else None
        for function in program.functions:
            if function is not main and function.body.ops:
                function.body.ops = [*edges_on(function.arguments, function.body, FUNC_EDGE), *function.body.ops]
        for block in blocks_of(program):
            if any(op.name == CALL for op in block.ops):
                block.ops = [
                    each for op in block.ops for each in ((op, *edges_on(op.results, block, FUNC_EDGE)) if op.name == CALL else (op,))
                ]


@dataclass(frozen=True, kw_only=True)
class SinkFuncDataFlowEdges(Pass):
    """Writes the shardings of edges back to arguments and calls."""

    name = "sdy-sink-func-data-flow-edges"
    anchor = FUNCTION

    def run(self, program: Program, log: Log | None = None) -> None:
        """Gives the operand of each `sdy.func_data_flow_edge` the sharding of the edge.

        Where the edge has none, an open sharding replaces the operand's.

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
