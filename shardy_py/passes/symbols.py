"""Names of functions: free ones for copies, and the one a copy was made from."""

from __future__ import annotations

from shardy_py.ir import Function, Program

ORIGINAL_NAME = "sdy.original_func_name"


class SymbolNames:
    """Free function names, numbered as MLIR's SymbolTable numbers them: one counter for the whole table."""

    def __init__(self, program: Program) -> None:
        self.names = {*program.meshes, *(function.name for function in program.functions)}
        self.count = 0

    def take(self, name: str) -> str:
        """The name itself if it is free, else the first free one of `name_0`, `name_1`, ..."""
        free = name
        while free in self.names:
            free = f"{name}_{self.count}"
            self.count += 1
        self.names.add(free)
        return free


def original_name(function: Function) -> str:
    """The name of the original of a copied function, else its own."""
    return function.attributes.get(ORIGINAL_NAME, function.name)
