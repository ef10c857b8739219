"""The program that a planner shards: a plan's program with calls inlined, loops that carry only what they change, and no dead ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardy_py.ir import Block, Function, Op, Program, Value
from shardy_py.partition.op import FORWARDING
from shardy_py.passes.clone import block_like, function_like, op_like, program_like
from shardy_py.passes.collection import no_collection
from shardy_py.passes.dataflow import CASE, NAMED_COMPUTATION, WHILE
from shardy_py.rules.traits import CONSTRAINTS, TERMINATORS, is_pure

_BARRIER = "sdy.propagation_barrier"
_HOLDING = frozenset((CASE, NAMED_COMPUTATION, WHILE))


@no_collection()
def inlined(program: Program) -> tuple[Program, Mapping[Value, Value]]:
    """The inlined program with the shardings that the program has, and the copies of the program's values in it."""
    inliner = _Inliner(program)
    copy = program_like(program, [inliner.function(function) for function in program.functions])
    _drop_dead_ops(copy)
    return copy, inliner.values


class _Inliner:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.values: dict[Value, Value] = {}

    def function(self, original: Function) -> Function:
        """A copy of a function."""
        body = block_like(original.body)
        for old, new in zip(original.arguments, body.arguments):
            self.name(old, new)
        self.block(original.body.ops, body)
        copy = function_like(original, body)
        copy.result_shardings = [None if s is None else s.closed_like() for s in original.result_shardings]
        return copy

    def name(self, old: Value, new: Value) -> None:
        """Lets a value stand for another, whose name and sharding it gets."""
        new.name, new.sharding = old.name, old.sharding
        self.values[old] = new

    def block(self, ops: Sequence[Op], into: Block) -> None:
        """Copies ops."""
        values = self.values
        for op in ops:
            if op.name == NAMED_COMPUTATION:
                inner = op.regions[0]
                values.update((a, values[v]) for a, v in zip(inner.arguments, op.operands))
                self.block(inner.ops[:-1], into)
                values.update((r, values[v]) for r, v in zip(op.results, inner.terminator.operands))
            elif op.name == _BARRIER:
                values.update((r, values[v]) for r, v in zip(op.results, op.operands))
            elif op.name == WHILE:
                self.loop(op, into)
            else:
                self.op(op, into)

    def op(self, op: Op, into: Block) -> None:
        """A copy of an op."""
        regions: list[Block] = []
        for region in op.regions:
            body = Block([a.type for a in region.arguments])
            for old, new in zip(region.arguments, body.arguments):
                self.name(old, new)
            self.block(region.ops, body)
            regions.append(body)
        copy = self.append(op, op.operands, op.results, regions, into)
        if op.name in CONSTRAINTS:
            copy.name = "sdy.sharding_constraint"

    def loop(self, op: Op, into: Block) -> None:
        """A copy of a loop that carries only the values that it changes."""
        same = _unchanged(op)
        changed = [i for i in range(len(op.operands)) if i not in same]
        for i in same:
            for value in (op.results[i], *(r.arguments[i] for r in op.regions)):
                self.values[value] = self.values[op.operands[i]]
        regions: list[Block] = []
        for region in op.regions:
            body = Block([region.arguments[i].type for i in changed])
            for i, new in zip(changed, body.arguments):
                self.name(region.arguments[i], new)
            self.block(region.ops[:-1], body)
            end = region.terminator
            self.append(end, end.operands if region is op.regions[0] else [end.operands[i] for i in changed], (), (), body)
            regions.append(body)
        self.append(op, [op.operands[i] for i in changed], [op.results[i] for i in changed], regions, into)

    def append(self, op: Op, operands: Sequence[Value], results: Sequence[Value], regions: Sequence[Block], into: Block) -> Op:
        """Adds a copy of an op with some of its operands and results."""
        copy = into.append(op_like(op, [self.values[v] for v in operands], [r.type for r in results], regions, op.attributes))
        for old, new in zip(results, copy.results):
            self.name(old, new)
        return copy


def _unchanged(loop: Op) -> set[int]:
    """Indices of the values that a loop carries unchanged."""
    body = loop.regions[1]
    return {i for i, (a, end) in enumerate(zip(body.arguments, body.terminator.operands)) if _passed(end) is a}


def _passed(value: Value) -> Value:
    """The value itself, or the one that calls forward to it."""
    while True:
        op = value.defining_op
        if op is not None and op.name == _BARRIER:
            value = op.operands[value.index]
        elif op is not None and op.name == NAMED_COMPUTATION:
            value = op.regions[0].terminator.operands[value.index]
        elif isinstance(value.owner, Block) and isinstance(call := value.owner.parent, Op) and call.name == NAMED_COMPUTATION:
            value = call.operands[value.index]
        else:
            return value


def _drop_dead_ops(program: Program) -> None:
    """Takes out the ops that no result and no effect needs, with all ops in their bodies; propagation keeps loops and constraints."""
    dead: set[Op] = set()
    pending = [op for op in program.walk() if op.results and not any(r.uses for r in op.results) and _is_droppable(op)]
    while pending:
        op = pending.pop()
        if op in dead:
            continue
        gone = [op, *(inner for region in op.regions for inner in region.walk())]
        dead.update(gone)
        for value in (v for each in gone for v in each.operands):
            maker = value.defining_op
            if maker is not None and maker not in dead and all(user in dead for r in maker.results for user, _ in r.uses):
                if _is_droppable(maker):
                    pending.append(maker)
    outermost = [op for op in program.walk() if op in dead and op.parent not in dead]
    blocks = dict.fromkeys(op.block for op in outermost if op.block is not None)
    for op in outermost:
        op.drop_uses()
    for block in blocks:
        block.ops = [op for op in block.ops if op not in dead]
    for op in outermost:
        op.block = None


def _is_droppable(op: Op) -> bool:
    """Whether an op has no effect but its results."""
    if op.name not in _HOLDING:
        return op.name in FORWARDING or is_pure(op)
    return all(inner.name in TERMINATORS or _is_droppable(inner) for region in op.regions for inner in region.ops)
