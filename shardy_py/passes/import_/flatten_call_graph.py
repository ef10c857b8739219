"""Gives every call a function of its own."""

from __future__ import annotations

from shardy_py.errors import ShardyError
from shardy_py.ir import Program
from shardy_py.passes.clone import FunctionCloner
from shardy_py.passes.walk import calls_in, functions_by_name, functions_in_order

NAME = "sdy-flatten-call-graph"


def run(program: Program, **_: object) -> None:
    """Copies the callee of each call but the first, and all that it calls; a copy remembers the name of the original.

    Calls in a function come before those of the function.

    Raises:
        ShardyError: A function calls itself, directly or not.

    Source: Shardy's flatten_call_graph.cc.
    """
    _check_no_cycles(program)
    cloner = FunctionCloner(program, functions_by_name(program))
    called: set[str] = set()
    for function in functions_in_order(program, post=True):
        for call in calls_in(function):
            callee = call.attributes["callee"]
            if callee in called:
                call.attributes = {**call.attributes, "callee": cloner.clone(callee)}
            called.add(callee)


def _check_no_cycles(program: Program) -> None:
    callees = {function.name: {call.attributes["callee"]: None for call in calls_in(function)} for function in program.functions}
    done: set[str] = set()
    for start in callees:
        path: list[tuple[str, list[str]]] = [(start, list(callees[start]))]
        while path:
            name, left = path[-1]
            if not left or name in done:
                done.add(name)
                path.pop()
                continue
            callee = left.pop()
            if any(callee == other for other, _ in path):
                names = [other for other, _ in path]
                cycle = " calls ".join(f"@{each}" for each in [*names[names.index(callee) :], callee])
                raise ShardyError(
                    "functions that call themselves cannot be copied per call", where=cycle, fix="write the recursion as a loop"
                )
            path.append((callee, list(callees.get(callee, ()))))
