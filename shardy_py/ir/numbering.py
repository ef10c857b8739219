"""Names of values as MLIR gives them: `%arg0`, `%0`, `%1#2`, `%cst`, `%c_0`, `%iterArg`."""

from __future__ import annotations

from shardy_py.ir.core import Block, Function, Op, Value

_NAMED = {"stablehlo.constant": ("c", "cst")}
"""Ops whose result has a name instead of a number: that of integers, that of others."""

_WHILE = "stablehlo.while"


class Names:
    """Names of the values of a function, or of an op and its regions.

    As in MLIR, numbers go through a block first and then through the regions in it, each of which goes on from where the
    block ended, so that regions beside each other use the same names.
    """

    def __init__(self, top: Function | Block | None) -> None:
        self.of: dict[Value, str] = {}
        self.groups: dict[Op, str] = {}
        self._used: set[str] = set()
        if top is not None:
            self.region(top.body if isinstance(top, Function) else top, 0, 0, 0)

    def region(self, block: Block, number: int, argument: int, conflict: int, arguments: str = "") -> None:
        """Names the values of a block and of the regions in it, from the numbers given on."""
        of = self.of
        mine: list[str] = []
        for value in block.arguments:
            if arguments:
                name, conflict = self._unique(arguments, conflict)
            else:
                name = f"arg{argument}"
                argument += 1
            mine.append(name)
            self._used.add(name)
            of[value] = f"%{name}"
        nested: list[Op] = []
        for op in block.ops:
            results = op.results
            if len(results) == 1:
                named = _NAMED.get(op.name)
                if named is None:
                    of[results[0]] = f"%{number}"
                    number += 1
                else:
                    integer = results[0].type.dtype.startswith(("int", "uint", "bool"))
                    name, conflict = self._unique(named[0] if integer else named[1], conflict)
                    mine.append(name)
                    self._used.add(name)
                    of[results[0]] = f"%{name}"
            elif results:
                self.groups[op] = f"%{number}"
                for value in results:
                    of[value] = f"%{number}#{value.index}"
                number += 1
            if op.regions:
                nested.append(op)
        for op in nested:
            for region in op.regions:
                self.region(region, number, argument, conflict, "iterArg" if op.name == _WHILE else "")
        self._used.difference_update(mine)

    def _unique(self, name: str, conflict: int) -> tuple[str, int]:
        if name not in self._used:
            return name, conflict
        while f"{name}_{conflict}" in self._used:
            conflict += 1
        return f"{name}_{conflict}", conflict + 1

    def get(self, value: Value) -> str:
        """The name of a value; `%?` of one that stands nowhere."""
        return self.of.get(value, "%?")

    def list(self, values: list[Value]) -> str:
        """Names with commas between."""
        get = self.of.get
        return ", ".join([get(value, "%?") for value in values])

    def results(self, op: Op) -> str:
        """`%0 = `, `%0:2 = `, or nothing."""
        if not op.results:
            return ""
        if len(op.results) == 1:
            return f"{self.get(op.results[0])} = "
        return f"{self.groups.get(op, '%?')}:{len(op.results)} = "
