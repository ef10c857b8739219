"""Removes private functions that nothing public reaches."""

from __future__ import annotations

from shardy_py.ir import Function, Program
from shardy_py.passes.walk import functions_by_name

NAME = "symbol-dce"


def run(program: Program, **_: object) -> None:
    """Keeps public functions and those they mention, in a call or in another attribute, directly or not.

    As MLIR's symbol-dce; meshes are public and stay.
    """
    functions = functions_by_name(program)
    kept: set[str] = set()
    stack = [function for function in program.functions if function.visibility != "private"]
    kept.update(function.name for function in stack)
    while stack:
        for name in _mentioned(stack.pop(), functions):
            if name not in kept:
                kept.add(name)
                stack.append(functions[name])
    program.functions = [function for function in program.functions if function.name in kept]


def _mentioned(function: Function, functions: dict[str, Function]) -> list[str]:
    found: list[str] = []
    for op in function.body.walk():
        if op.attributes:
            found += [value for value in op.attributes.values() if isinstance(value, str) and value in functions]
    return found
