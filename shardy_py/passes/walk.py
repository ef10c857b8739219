"""Walks over the blocks, ops and calls of a program, and names of functions: free names for copies, and the name of the original."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from shardy_py.dialect import TensorSharding, TensorShardingPerValue
from shardy_py.ir import Block, Function, Op, Program

CALL = "func.call"
SHARDING = "sdy.sharding"
"""Attribute that holds the sharding of an op without results."""


def blocks_in(block: Block) -> list[Block]:
    """A block and all blocks nested in it, in pre-order."""
    blocks = [block]
    for current in blocks:
        for op in current.ops:
            if op.regions:
                blocks.extend(op.regions)
    return blocks


def blocks_of(program: Program) -> list[Block]:
    """All blocks, function by function, in pre-order."""
    return [block for function in program.functions for block in blocks_in(function.body)]


def order_uses(ops: list[Op]) -> None:
    """Puts the uses that these ops make into the order of the ops; no other op may use the same values."""
    for op in ops:
        for operand in op.operands:
            operand.uses = {}
    for op in ops:
        for i, operand in enumerate(op.operands):
            operand.uses[op, i] = None


def ops_of(program: Program, names: Iterable[str]) -> list[Op]:
    """The ops with one of these names, function by function, an op before those in its regions."""
    names = frozenset(names)
    return [op for function in program.functions for op in function.body.walk() if op.name in names]


def ops_of_post(program: Program, name: str) -> list[Op]:
    """The ops with a name, function by function, those in the regions of an op before it."""

    def walk(block: Block) -> Iterator[Op]:
        for op in block.ops:
            for region in op.regions:
                yield from walk(region)
            if op.name == name:
                yield op

    return [op for function in program.functions for op in walk(function.body)]


def functions_by_name(program: Program) -> dict[str, Function]:
    """Name -> function."""
    return {function.name: function for function in program.functions}


def calls_in(function: Function) -> list[Op]:
    """The `func.call` ops of a function, in order."""
    return [op for op in function.body.walk() if op.name == CALL]


def map_shardings(program: Program, change: Callable[[TensorSharding], TensorSharding], visit: Callable[[Op], None] | None = None) -> None:
    """Replaces every sharding: of functions, of op results, and of what computations state; `visit` gets each op after its shardings."""
    for function in program.functions:
        for argument in function.arguments:
            if argument.sharding is not None:
                argument.sharding = change(argument.sharding)
        function.result_shardings = [None if s is None else change(s) for s in function.result_shardings]
        for op in list(function.body.walk()):
            for result in op.results:
                if result.sharding is not None:
                    result.sharding = change(result.sharding)
            for name in ("in_shardings", "out_shardings"):
                shardings = op.attributes.get(name)
                if shardings:
                    op.attributes = {**op.attributes, name: tuple(map(change, shardings))}
            alone = op.attributes.get(SHARDING)
            if isinstance(alone, TensorShardingPerValue):
                op.attributes = {**op.attributes, SHARDING: TensorShardingPerValue(tuple(map(change, alone.shardings)))}
            for region in op.regions:
                for argument in region.arguments:
                    if argument.sharding is not None:
                        argument.sharding = change(argument.sharding)
            if visit is not None:
                visit(op)


def place(program: Program, op: Op) -> str:
    """The op for an error: its name and its place in the source, where that is known."""
    location = program.locate(op.location)
    return f"'{op.name}'" if location is None else f"'{op.name}' at {location.place}"


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
