"""Lets calls of equal copies of a function share one of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from shardy_py.ir import Function, Program
from shardy_py.passes.base import DEDUP_FUNCTIONS_FULLY, Pass, option
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.symbols import ORIGINAL_NAME, original_name
from shardy_py.passes.walk import CALL, functions_by_name, ops_of

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
