"""Gives every call a function of its own."""

from __future__ import annotations

from shardy_py.ir import Function, Program
from shardy_py.passes.clone import FunctionCloner
from shardy_py.passes.walk import calls_in, functions_by_name, functions_in_order

NAME = "sdy-flatten-call-graph"


def run(program: Program, **_: object) -> None:
    """Copies the callee of each call but the first, and all that it calls; a copy remembers the name of the original.

    Source: Shardy's flatten_call_graph.cc.
    """
    functions = functions_by_name(program)
    cloner = FunctionCloner(program, functions)
    called: set[str] = set()

    def visit(function: Function) -> None:
        for call in calls_in(function):
            callee = call.attributes["callee"]
            if callee in called:
                call.attributes = {**call.attributes, "callee": cloner.clone(callee)}
            else:
                called.add(callee)
                visit(functions[callee])

    for function in functions_in_order(program, post=False):
        if function.name not in called:
            called.add(function.name)
            visit(function)
