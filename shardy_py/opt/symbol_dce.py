"""Removes private functions that nothing public reaches."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shardy_py.ir import Function, Program
from shardy_py.ir.attribute_text import MLIR_TEXT_KEY
from shardy_py.passes.base import Pass
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import functions_by_name


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
