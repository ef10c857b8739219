"""Gives every call a function of its own."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.ir import Program
from shardy_py.passes.base import Pass
from shardy_py.passes.call_graph import check_copies, check_no_cycles, functions_in_order
from shardy_py.passes.clone import FunctionCloner
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import calls_in, functions_by_name


@dataclass(frozen=True, kw_only=True)
class FlattenCallGraph(Pass):
    """Gives each call its own copy of the function."""

    name = "sdy-flatten-call-graph"

    def run(self, program: Program, log: Log | None = None) -> None:
        """Copies the callee of each call but the first, and all that it calls; a copy remembers the name of the original.

        Calls in a function come before those of the function. Raises ShardyError if a function calls itself, directly or not, or copies
        would have too many ops.

        Source: Shardy's flatten_call_graph.cc.
        """
        check_no_cycles(program)
        check_copies(program)
        cloner = FunctionCloner(program, functions_by_name(program))
        called: set[str] = set()
        for function in functions_in_order(program, post=True):
            for call in calls_in(function):
                callee = call.attributes["callee"]
                if callee in called:
                    call.attributes = {**call.attributes, "callee": cloner.clone(callee)}
                called.add(callee)
