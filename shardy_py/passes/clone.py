"""Copies of ops, blocks and functions, with uses made in the order in which MLIR makes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from shardy_py.ir import Block, Function, Op, Program, Type, Value
from shardy_py.passes.walk import ORIGINAL_NAME, SymbolNames, calls_in, original_name


def op_like(
    op: Op, operands: Sequence[Value], types: Sequence[Type], regions: Sequence[Block] = (), attributes: dict[str, Any] | None = None
) -> Op:
    """An op with the name, the rule and the origin of another, and by default its attributes; its results have no shardings."""
    return Op(
        op.name,
        operands,
        types,
        op.attributes if attributes is None else attributes,
        regions,
        rule=op.rule,
        rule_decided=op.rule_decided,
        location=op.location,
        primitive=op.primitive,
    )


def label_like(values: Sequence[Value], others: Sequence[Value]) -> None:
    """Gives values the shardings and names of others."""
    for value, other in zip(values, others, strict=True):
        value.sharding, value.name = other.sharding, other.name


def block_like(block: Block) -> Block:
    """An empty block with the arguments of another."""
    copy = Block([argument.type for argument in block.arguments])
    label_like(copy.arguments, block.arguments)
    return copy


def function_like(function: Function, body: Block) -> Function:
    """A function that differs from another in its body."""
    copy = Function(function.name, body, function.result_types, visibility=function.visibility)
    copy.result_shardings = list(function.result_shardings)
    copy.attributes = dict(function.attributes)
    copy.argument_attributes = [dict(attributes) for attributes in function.argument_attributes]
    copy.result_attributes = [dict(attributes) for attributes in function.result_attributes]
    return copy


def program_like(program: Program, functions: Sequence[Function]) -> Program:
    """A program that differs from another in its functions."""
    copy = Program(functions, program.meshes)
    copy.mesh_attributes = {name: dict(attributes) for name, attributes in program.mesh_attributes.items()}
    copy.attributes = dict(program.attributes)
    copy.locate, copy.calls, copy.semantics = program.locate, program.calls, program.semantics
    return copy


def clone_op(op: Op, mapping: dict[Value, Value]) -> Op:
    """A copy of an op and its regions that uses `mapping[v]` for `v`; its results are added to the mapping."""
    copy = op_like(op, [mapping.get(operand, operand) for operand in op.operands], [result.type for result in op.results])
    label_like(copy.results, op.results)
    mapping.update(zip(op.results, copy.results))
    if op.regions:
        copy.regions = [clone_block(region, mapping) for region in op.regions]
        for region in copy.regions:
            region.parent = copy
    return copy


def clone_block(block: Block, mapping: dict[Value, Value]) -> Block:
    """A copy of a block; values from outside that are not in the mapping stay."""
    copy = block_like(block)
    mapping.update(zip(block.arguments, copy.arguments))
    for op in block.ops:
        copy.append(clone_op(op, mapping))
    return copy


def clone_function(function: Function, mapping: dict[Value, Value]) -> Function:
    """A copy of a function, under the same name."""
    return function_like(function, clone_block(function.body, mapping))


def clone_program(program: Program) -> tuple[Program, dict[Value, Value]]:
    """A copy of a program that passes may change, and the copy of each value."""
    mapping: dict[Value, Value] = {}
    return program_like(program, [clone_function(function, mapping) for function in program.functions]), mapping


class FunctionCloner:
    """Adds copies of functions to a program, each with copies of all that it calls."""

    def __init__(self, program: Program, functions: dict[str, Function]) -> None:
        self.program = program
        self.functions = functions
        self.names = SymbolNames(program)

    def clone(self, name: str) -> str:
        """Copies those it calls, then the function itself, to the end of the program; returns the name of the copy."""
        path = [self._copy(name, None)]
        while True:
            copy, calls, caller = path[-1]
            call = next(calls, None)
            if call is not None:
                path.append(self._copy(call.attributes["callee"], call))
                continue
            path.pop()
            copy.name = self.names.take(copy.name)
            self.program.functions.append(copy)
            self.functions[copy.name] = copy
            if caller is None:
                return copy.name
            caller.attributes = {**caller.attributes, "callee": copy.name}

    def _copy(self, name: str, caller: Op | None) -> tuple[Function, Iterator[Op], Op | None]:
        """A copy under the same name that still calls the same functions; its calls; and the call that it is for."""
        original = self.functions[name]
        copy = clone_function(original, {})
        copy.attributes[ORIGINAL_NAME] = original_name(original)
        return copy, iter(calls_in(copy)), caller


def move_terminator(block: Block, name: str) -> None:
    """Replaces the terminator by one of another dialect, which uses the same values anew."""
    old = block.ops[-1]
    new = Op(name, old.operands, (), location=old.location)
    new.block = block
    old.drop_uses()
    old.block = None
    block.ops[-1] = new
