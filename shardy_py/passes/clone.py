"""Copies of ops, blocks and functions, with uses made in the order in which MLIR makes them."""

from __future__ import annotations

from shardy_py.ir import Block, Function, Op, Value


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


def clone_function(function: Function, name: str) -> Function:
    """A copy of a function under another name."""
    made = Function(name, clone_block(function.body, {}), function.result_types, visibility=function.visibility)
    made.result_shardings = list(function.result_shardings)
    made.attributes = dict(function.attributes)
    made.argument_attributes = [dict(attributes) for attributes in function.argument_attributes]
    made.result_attributes = [dict(attributes) for attributes in function.result_attributes]
    return made
