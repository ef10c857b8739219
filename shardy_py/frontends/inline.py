"""Copies the ops of a lowered fragment into a block, with the functions it calls as named computations."""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.frontends.importer import Importer
from shardy_py.ir import Block, Op, Program, Type, Value
from shardy_py.passes.walk import CALL
from shardy_py.rules.traits import CONSTANTS


def inline(importer: Importer, program: Program, arguments: Sequence[Value], block: Block, location: object, primitive: str) -> list[Value]:
    """Appends the body of a fragment's `main` to a block and returns its results.

    Constants become `sdy.constant`, and a broadcast scalar constant one constant.
    """
    return _FragmentCopy(importer, program, location, primitive).block(program.main.body, arguments, block)


class _FragmentCopy:
    def __init__(self, importer: Importer, program: Program, location: object, primitive: str) -> None:
        self.importer = importer
        self.functions = {function.name: function for function in program.functions}
        self.program = program
        self.location = location
        self.primitive = primitive
        self.values: dict[Value, Value] = {}

    def block(self, source: Block, arguments: Sequence[Value], target: Block) -> list[Value]:
        """Appends all ops but the terminator; returns the copies of the terminator's operands."""
        self.values.update(zip(source.arguments, arguments, strict=True))
        for op in source.ops[:-1]:
            self.op(op, target)
        return [self.values[v] for v in source.ops[-1].operands]

    def op(self, op: Op, target: Block) -> None:
        operands = [self.values[v] for v in op.operands]
        if op.name == CALL:
            copy = self.call(op, operands, target)
        elif op.name in CONSTANTS or is_splat(op, operands):
            attributes = operands[0].owner.attributes if operands else op.attributes  # pyright: ignore[reportAttributeAccessIssue]
            type_ = op.results[0].type
            copy = Op("sdy.constant", (), (type_,), attributes, rule_decided=True, location=self.location, primitive=self.primitive)
            target.append(copy)
        else:
            regions = [Block([a.type for a in region.arguments]) for region in op.regions]
            types = [r.type for r in op.results]
            copy = Op(op.name, operands, types, op.attributes, regions, location=self.location, primitive=self.primitive)
            if op.rule_decided:
                copy.rule, copy.rule_decided = op.rule, True
            self.importer.append(copy, target)
            for source, region in zip(op.regions, regions):
                results = self.block(source, region.arguments, region)
                region.append(Op(source.ops[-1].name, results, (), rule_decided=True, location=self.location))
        for old, new in zip(op.results, copy.results):
            new.sharding = old.sharding
            self.values[old] = new

    def call(self, op: Op, operands: Sequence[Value], target: Block) -> Op:
        function = self.functions[op.attributes["callee"]]
        body = Block([a.type for a in function.arguments])
        name = self.importer.symbol((self.program, function.name), function.name)
        copy = named_computation(name, operands, function.result_types, body, self.location, self.primitive)
        target.append(copy)
        results = self.block(function.body, body.arguments, body)
        body.append(Op("sdy.return", results, (), rule_decided=True, location=self.location))
        return copy


def is_splat(op: Op, operands: Sequence[Value]) -> bool:
    """Whether an op broadcasts a constant of one number."""
    if op.name != "stablehlo.broadcast_in_dim" or operands[0].type.rank:
        return False
    owner = operands[0].defining_op
    return owner is not None and owner.name == "sdy.constant"


def named_computation(
    name: str, operands: Sequence[Value], result_types: Sequence[Type], body: Block, location: object, primitive: str
) -> Op:
    """An `sdy.named_computation` whose shardings are not known."""
    attributes = {"name": name, "in_shardings": None, "out_shardings": None}
    return Op(
        "sdy.named_computation", operands, result_types, attributes, (body,), rule_decided=True, location=location, primitive=primitive
    )
