"""Copies of ops, blocks and functions, with uses made in the order in which MLIR makes them."""

from __future__ import annotations

from collections.abc import Iterator

from shardy_py.ir import Block, Function, Op, Program, Value
from shardy_py.passes.symbols import ORIGINAL_NAME, SymbolNames, original_name


def clone_op(op: Op, mapping: dict[Value, Value]) -> Op:
    """A copy of an op and its regions that uses `mapping[v]` for `v`; its results are added to the mapping."""
    made = Op(
        op.name,
        [mapping.get(operand, operand) for operand in op.operands],
        [result.type for result in op.results],
        op.attributes,
        rule=op.rule,
        rule_known=op.rule_known,
        location=op.location,
        primitive=op.primitive,
    )
    for old, new in zip(op.results, made.results, strict=True):
        new.sharding = old.sharding
        new.name = old.name
        mapping[old] = new
    if op.regions:
        made.regions = [clone_block(region, mapping) for region in op.regions]
        for region in made.regions:
            region.parent = made
    return made


def clone_block(block: Block, mapping: dict[Value, Value]) -> Block:
    """A copy of a block; values from outside that are not in the mapping stay."""
    made = Block([argument.type for argument in block.arguments])
    for old, new in zip(block.arguments, made.arguments, strict=True):
        new.sharding = old.sharding
        new.name = old.name
        mapping[old] = new
    for op in block.ops:
        made.append(clone_op(op, mapping))
    return made


def clone_program(program: Program) -> tuple[Program, dict[Value, Value]]:
    """A copy of a program that passes may change, and the copy of each value."""
    mapping: dict[Value, Value] = {}
    functions: list[Function] = []
    for original in program.functions:
        made = Function(original.name, clone_block(original.body, mapping), original.result_types, visibility=original.visibility)
        made.result_shardings = list(original.result_shardings)
        made.attributes = dict(original.attributes)
        made.argument_attributes = [dict(attributes) for attributes in original.argument_attributes]
        made.result_attributes = [dict(attributes) for attributes in original.result_attributes]
        functions.append(made)
    copy = Program(functions, program.meshes)
    copy.mesh_attributes = {name: dict(attributes) for name, attributes in program.mesh_attributes.items()}
    copy.attributes = dict(program.attributes)
    copy.locate = program.locate
    copy.calls = program.calls
    return copy, mapping


class FunctionCloner:
    """Adds copies of functions to a program, each with copies of all that it calls."""

    def __init__(self, program: Program, functions: dict[str, Function]) -> None:
        self.program = program
        self.functions = functions
        self.names = SymbolNames(program)

    def clone(self, name: str) -> str:
        """Copies those it calls, then the function itself, to the end of the program; returns the name of the copy."""
        path = [self._started(name, None)]
        while True:
            made, calls, caller = path[-1]
            call = next(calls, None)
            if call is not None:
                path.append(self._started(call.attributes["callee"], call))
                continue
            path.pop()
            made.name = self.names.take(made.name)
            self.program.functions.append(made)
            self.functions[made.name] = made
            if caller is None:
                return made.name
            caller.attributes = {**caller.attributes, "callee": made.name}

    def _started(self, name: str, caller: Op | None) -> tuple[Function, Iterator[Op], Op | None]:
        """A copy that calls the same functions and has the same name still, its calls, and the call that it is for."""
        original = self.functions[name]
        made = Function(name, clone_block(original.body, {}), original.result_types, visibility=original.visibility)
        made.result_shardings = list(original.result_shardings)
        made.attributes = {**original.attributes, ORIGINAL_NAME: original_name(original)}
        made.argument_attributes = [dict(attributes) for attributes in original.argument_attributes]
        made.result_attributes = [dict(attributes) for attributes in original.result_attributes]
        return made, (op for op in made.body.walk() if op.name == "func.call"), caller


def move_terminator(block: Block, name: str) -> None:
    """Replaces the terminator by one of another dialect, which uses the same values anew."""
    old = block.ops[-1]
    made = Op(name, old.operands, (), location=old.location)
    made.block = block
    old.drop_uses()
    old.block = None
    block.ops[-1] = made
