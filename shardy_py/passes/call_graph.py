"""The call graph of a program: orders in which passes visit functions, and limits on what copying functions per call may make.

Nothing here calls itself, as calls may be nested as deep as a program likes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shardy_py.errors import ShardyError
from shardy_py.ir import Function, Op, Program
from shardy_py.passes.walk import calls_in, functions_by_name, place

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


def check_no_cycles(program: Program) -> None:
    """Raises ShardyError if a function calls itself, directly or not."""
    order = {function.name: i for i, function in enumerate(functions_in_order(program, post=True))}
    for function in program.functions:
        for call in calls_in(function):
            callee: str = call.attributes[_CALLEE]
            if order[callee] >= order[function.name]:
                turn = f", which calls @{function.name} in turn" if callee != function.name else ""
                raise ShardyError(
                    "functions that call themselves cannot be copied per call",
                    where=f"@{function.name} calls @{callee}{turn}",
                    fix="write the recursion as a loop",
                )


def check_copies(program: Program) -> None:
    """Raises ShardyError if a copy of its function per call would add more than `MAX_COPIED_OPS`; no function may call itself."""
    copied = ops_per_call(program)
    callees = {call.attributes[_CALLEE] for function in program.functions for call in calls_in(function)}
    total = sum(copied[function.name] for function in program.functions if function.name not in callees)
    if total - sum(map(_size, program.functions)) > MAX_COPIED_OPS:
        raise ShardyError(
            f"a copy of each function per call would have {total:,} ops",
            where=f"function '{program.functions[0].name}' and what it calls",
            why=f"copies may have {MAX_COPIED_OPS:,} ops together",
            fix="call functions fewer times, or write the calls as a loop",
        )


def ops_per_call(program: Program) -> dict[str, int]:
    """Name of each function -> its number of ops with all calls inlined."""
    own = {function.name: _size(function) for function in program.functions}
    return _per_call(program, own, lambda function, ops, calls: ops[function.name] + sum(ops[call.attributes[_CALLEE]] for call in calls))


def _size(function: Function) -> int:
    return sum(1 for _ in function.body.walk())


def check_depth(program: Program) -> None:
    """Raises ShardyError if inlining every call would nest more than `MAX_REGIONS` regions; no function may call itself."""
    own = {function.name: max(_depths(function).values(), default=0) for function in program.functions}

    def depth(function: Function, depth_of: Mapping[str, int], calls: list[Op]) -> int:
        if not calls:
            return depth_of[function.name]
        depths = _depths(function)
        deepest = max(calls, key=lambda call: depths[call] + depth_of[call.attributes[_CALLEE]])
        nested = max(depth_of[function.name], depths[deepest] + 1 + depth_of[deepest.attributes[_CALLEE]])
        if nested > MAX_REGIONS:
            raise ShardyError(
                f"calls and regions are nested more than {MAX_REGIONS} deep",
                where=f"{place(program, deepest)}, in function '{function.name}'",
                why="each call becomes a region, and passes call themselves for every level",
                fix="call fewer functions inside each other",
            )
        return nested

    _per_call(program, own, depth)


def _per_call(program: Program, own: Mapping[str, int], combine: Callable[[Function, Mapping[str, int], list[Op]], int]) -> dict[str, int]:
    """A number for each function, computed from its own and from those of the functions that it calls."""
    numbers = dict(own)
    for function in functions_in_order(program, post=True):
        numbers[function.name] = combine(function, numbers, calls_in(function))
    return numbers


def _depths(function: Function) -> dict[Op, int]:
    """Each op that has regions or is a call -> the number of regions around what is in it, or around the call."""
    depths: dict[Op, int] = {}
    waiting = [(function.body, 0)]
    while waiting:
        block, depth = waiting.pop()
        for op in block.ops:
            if op.regions:
                depths[op] = depth + 1
                waiting += [(region, depth + 1) for region in op.regions]
            elif _CALLEE in op.attributes:
                depths[op] = depth
    return depths
