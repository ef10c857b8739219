"""The call graph of a program: orders in which passes visit functions, and what copies of functions per call have.

Nothing here calls itself, as calls may be nested as deep as a program likes.
"""

from __future__ import annotations

from shardy_py.ir import Function, Program
from shardy_py.passes.walk import calls_in, functions_by_name

MAX_REGIONS = 128
"""Regions that may stand inside each other, functions that are called included; passes call themselves for every level."""

MAX_COPIED_OPS = 1_000_000
"""Ops that copies of functions, or of constant expressions, may have together."""

_CALLEE = "callee"


def functions_in_order(program: Program, *, post: bool) -> list[Function]:
    """All functions in post-order of the call graph, entered from each function as they stand, or in the reverse of that.

    The reverse is what the reference takes as pre-order: callers come before those they call.
    """
    by_name = functions_by_name(program)
    ordered: list[Function] = []
    seen: set[str] = set()
    for start in program.functions:
        if start.name in seen:
            continue
        seen.add(start.name)
        path = [(start, iter(calls_in(start)))]
        while path:
            function, calls = path[-1]
            callee = next((callee for call in calls if (callee := call.attributes[_CALLEE]) not in seen), None)
            if callee is None:
                ordered.append(function)
                path.pop()
                continue
            seen.add(callee)
            path.append((by_name[callee], iter(calls_in(by_name[callee]))))
    return ordered if post else ordered[::-1]


def ops_per_call(program: Program) -> dict[str, int]:
    """Name of each function -> its number of ops with all calls inlined."""
    ops: dict[str, int] = {}
    for function in functions_in_order(program, post=True):
        ops[function.name] = size(function) + sum(ops[call.attributes[_CALLEE]] for call in calls_in(function))
    return ops


def size(function: Function) -> int:
    """The number of ops of a function, those in regions included."""
    return sum(1 for _ in function.body.walk())
