"""Gives every call a function of its own."""

from __future__ import annotations

from shardy_py.ir import Program
from shardy_py.passes.clone import FunctionCloner
from shardy_py.passes.walk import calls_in, functions_by_name, functions_in_order

NAME = "sdy-flatten-call-graph"


def run(program: Program, **_: object) -> None:
    """Copies the callee of each call but the first, and all that it calls; a copy remembers the name of the original.

    Calls in a function come before those of the function.

    Source: Shardy's flatten_call_graph.cc.
    """
    cloner = FunctionCloner(program, functions_by_name(program))
    called: set[str] = set()
    for function in functions_in_order(program, post=True):
        for call in calls_in(function):
            callee = call.attributes["callee"]
            if callee in called:
                call.attributes = {**call.attributes, "callee": cloner.clone(callee)}
            called.add(callee)
