"""Adds a `sdy.func_data_flow_edge` on what flows into functions and out of calls, for programs whose calls stay calls."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.ir import Program
from shardy_py.passes.base import Pass
from shardy_py.passes.dataflow import FUNC_EDGE
from shardy_py.passes.import_.add_data_flow_edges import edges_on
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import CALL, blocks_of


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
