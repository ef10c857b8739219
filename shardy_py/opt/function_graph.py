"""Functions as a call graph: copies per call and their removal, order, and functions that nobody calls."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from shardy_py.errors import ShardyError
from shardy_py.ir import Function, Program
from shardy_py.ir.attribute_text import MLIR_TEXT_KEY
from shardy_py.passes.base import DEDUP_FUNCTIONS_FULLY, Pass, option
from shardy_py.passes.call_graph import MAX_COPIED_OPS, functions_in_order, ops_per_call, size
from shardy_py.passes.clone import FunctionCloner
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import CALL, ORIGINAL_NAME, calls_in, functions_by_name, ops_of, original_name

_MANUAL_AXES = "sdy.func_manual_axes"


@dataclass(frozen=True, kw_only=True)
class UnflattenCallGraph(Pass):
    """Lets calls of equal copies of a function share one."""

    name = "sdy-unflatten-call-graph"

    dedup_functions_fully: bool = option(False, DEDUP_FUNCTIONS_FULLY)

    def run(self, program: Program, log: Log | None = None) -> None:
        """Redirects calls to one of the copies of a function that have the same manual axes and shardings.

        Copies that are no longer called stay for symbol-dce to remove.

        With `dedup_functions_fully` shardings are ignored, and the copy that is called most often stays.

        Source: Shardy's unflatten_call_graph.cc.
        """
        functions = functions_by_name(program)
        calls = ops_of(program, (CALL,))
        copy_of: dict[Any, str] = {}
        if self.dedup_functions_fully:
            copy_of = _leading_copies([call.attributes["callee"] for call in calls], functions)
        for call in calls:
            callee = functions[call.attributes["callee"]]
            name = copy_of.setdefault(_key(callee, self.dedup_functions_fully), callee.name)
            if name != callee.name:
                call.attributes = {**call.attributes, "callee": name}
        for function in program.functions:
            for name in (ORIGINAL_NAME, _MANUAL_AXES):
                function.attributes.pop(name, None)


def _key(function: Function, ignore_shardings: bool) -> tuple[Any, ...]:
    key = (original_name(function), repr(function.attributes.get(_MANUAL_AXES)))
    if ignore_shardings:
        return key
    return (*key, tuple(argument.sharding for argument in function.arguments), tuple(function.result_shardings))


def _leading_copies(callees: list[str], functions: dict[str, Function]) -> dict[Any, str]:
    """Per function, the copy at whose call its kind took the lead in number of calls for good."""
    counts: Counter[Any] = Counter()
    best: dict[Any, tuple[Any, str]] = {}
    for name in callees:
        key, kind = _key(functions[name], True), _key(functions[name], False)
        counts[kind] += 1
        if key not in best or (best[key][0] != kind and counts[kind] > counts[best[key][0]]):
            best[key] = kind, name
    return {key: name for key, (_, name) in best.items()}


def check_no_cycles(program: Program) -> None:
    """Raises ShardyError if a function calls itself, directly or not."""
    order = {function.name: i for i, function in enumerate(functions_in_order(program, post=True))}
    for function in program.functions:
        for call in calls_in(function):
            callee: str = call.attributes["callee"]
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
    callees = {call.attributes["callee"] for function in program.functions for call in calls_in(function)}
    total = sum(copied[function.name] for function in program.functions if function.name not in callees)
    if total - sum(map(size, program.functions)) > MAX_COPIED_OPS:
        raise ShardyError(
            f"a copy of each function per call would have {total:,} ops",
            where=f"function '{program.functions[0].name}' and what it calls",
            why=f"copies may have {MAX_COPIED_OPS:,} ops together",
            fix="call functions fewer times, or write the calls as a loop",
        )


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


@dataclass(frozen=True, kw_only=True)
class PreOrderFuncs(Pass):
    """Puts callers before the functions they call."""

    name = "sdy-pre-order-funcs"

    def run(self, program: Program, log: Log | None = None) -> None:
        """Orders functions in the reverse of post-order of the call graph. Source: Shardy's pre_order_funcs.cc."""
        program.functions = functions_in_order(program, post=False)


@dataclass(frozen=True, kw_only=True)
class SymbolDce(Pass):
    """Removes private functions that nothing public reaches."""

    name = "symbol-dce"

    def run(self, program: Program, log: Log | None = None) -> None:
        """Keeps public functions and those they mention, in a call or in another attribute, directly or not.

        As MLIR's symbol-dce; meshes are public and stay.
        """
        functions = functions_by_name(program)
        reachable: set[str] = set()
        stack = [function for function in program.functions if function.visibility != "private"]
        reachable.update(function.name for function in stack)
        while stack:
            for name in _mentioned(stack.pop(), functions):
                if name not in reachable:
                    reachable.add(name)
                    stack.append(functions[name])
        program.functions = [function for function in program.functions if function.name in reachable]


def _mentioned(function: Function, functions: dict[str, Function]) -> list[str]:
    names: list[str] = []
    for op in function.body.walk():
        attributes = op.attributes
        if not attributes:
            continue
        if op.name in _CALLERS:
            names.append(attributes[_CALLERS[op.name]])
        text = attributes.get(MLIR_TEXT_KEY)
        if text is not None and "@" in text:
            names += [quoted or name for quoted, name in _SYMBOL.findall(text)]
    return [name for name in names if name in functions]


_CALLERS = {"func.call": "callee", "stablehlo.composite": "decomposition"}
_SYMBOL = re.compile(r'@(?:"([^"]*)"|([\w.$-]+))')
