"""Ways through a program that passes share: blocks, ops in order, calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shardy_py.dialect import TensorSharding, TensorShardingPerValue
from shardy_py.ir import Block, Function, Op, Program, Value

CALL = "func.call"
SHARDING = "sdy.sharding"
"""Attribute that holds the sharding of an op without results."""

Record = Callable[[Value, TensorSharding | None, TensorSharding | None, str, Op | None], None]
"""`record(value, old, new, why, op)`: called where a pass changes a sharding that a user may ask about."""


def blocks_in(block: Block) -> list[Block]:
    """A block and all blocks nested in it, an outer one first."""
    found = [block]
    for current in found:
        for op in current.ops:
            if op.regions:
                found.extend(op.regions)
    return found


def blocks_of(program: Program) -> list[Block]:
    """All blocks, function by function, an outer one before those it holds."""
    return [block for function in program.functions for block in blocks_in(function.body)]


def ops_in(block: Block, skip: frozenset[str] = frozenset()) -> list[Op]:
    """All ops of a block, an op before those in its regions; regions of ops named in `skip` are left out."""
    found: list[Op] = []
    _add_ops(block, skip, found)
    return found


def order_uses(ops: list[Op]) -> None:
    """Puts the uses that these ops make into the order of the ops; no other op may use the same values."""
    for op in ops:
        for operand in op.operands:
            operand.uses = []
    for op in ops:
        for i, operand in enumerate(op.operands):
            operand.uses.append((op, i))


def ops_of(program: Program, names: Iterable[str]) -> list[Op]:
    """The ops with one of these names, function by function, an op before those in its regions."""
    names = frozenset(names)
    found: list[Op] = []
    for function in program.functions:
        _add_named(function.body, names, found)
    return found


def ops_of_post(program: Program, name: str) -> list[Op]:
    """The ops with a name, function by function, those in the regions of an op before it."""
    found: list[Op] = []
    for function in program.functions:
        _add_named_post(function.body, name, found)
    return found


def entry_function(program: Program) -> Function | None:
    """The function named main, else the only one, else None."""
    for function in program.functions:
        if function.name == "main":
            return function
    return program.functions[0] if len(program.functions) == 1 else None


def functions_by_name(program: Program) -> dict[str, Function]:
    """Name -> function."""
    return {function.name: function for function in program.functions}


def calls_in(function: Function) -> list[Op]:
    """The `func.call` ops of a function, in order."""
    found: list[Op] = []
    _add_named(function.body, frozenset((CALL,)), found)
    return found


def functions_in_order(program: Program, *, post: bool) -> list[Function]:
    """All functions in post-order of the call graph, entered from each function as they stand, or in the reverse of that.

    The reverse is what the reference takes as pre-order: callers come before those they call.
    """
    by_name = functions_by_name(program)
    found: list[Function] = []
    seen: set[str] = set()

    def visit(function: Function) -> None:
        if function.name in seen:
            return
        seen.add(function.name)
        for call in calls_in(function):
            visit(by_name[call.attributes["callee"]])
        found.append(function)

    for function in program.functions:
        visit(function)
    return found if post else found[::-1]


def map_shardings(program: Program, change: Callable[[TensorSharding], TensorSharding], visit: Callable[[Op], None] | None = None) -> None:
    """Replaces every sharding: of arguments and results of functions, of op results, and of what computations state.

    Args:
        program: Changed in place.
        change: Gives the new sharding for an old one.
        visit: Called with each op after its shardings.
    """
    for function in program.functions:
        for argument in function.arguments:
            if argument.sharding is not None:
                argument.sharding = change(argument.sharding)
        function.result_shardings = [None if s is None else change(s) for s in function.result_shardings]
        for op in ops_in(function.body):
            for result in op.results:
                if result.sharding is not None:
                    result.sharding = change(result.sharding)
            for name in ("in_shardings", "out_shardings"):
                stated = op.attributes.get(name)
                if stated:
                    op.attributes = {**op.attributes, name: tuple(map(change, stated))}
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


def _add_ops(block: Block, skip: frozenset[str], found: list[Op]) -> None:
    for op in block.ops:
        found.append(op)
        if op.regions and op.name not in skip:
            for region in op.regions:
                _add_ops(region, skip, found)


def _add_named(block: Block, names: frozenset[str], found: list[Op]) -> None:
    for op in block.ops:
        if op.name in names:
            found.append(op)
        if op.regions:
            for region in op.regions:
                _add_named(region, names, found)


def _add_named_post(block: Block, name: str, found: list[Op]) -> None:
    for op in block.ops:
        for region in op.regions:
            _add_named_post(region, name, found)
        if op.name == name:
            found.append(op)
