"""XLA's propagation through a program with loops that it is left to partition, which may differ from the plan.

Before it propagates, XLA inlines calls and makes loops carry only the values that they change; the body reads all others from outside,
through open constraints. So weights still shard the body of a loop, but nothing shards them through it, and residuals may have other
shardings than in the plan, in which every carried value takes part.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence, Set

from shardy_py.dialect import TensorSharding
from shardy_py.ir import Block, Function, Op, Program, Type, Value
from shardy_py.ir.types import moves_elements
from shardy_py.partition.variables import variable_sharding
from shardy_py.passes.clone import block_like, function_like, op_like, program_like
from shardy_py.passes.collection import no_collection
from shardy_py.passes.dataflow import CASE, NAMED_COMPUTATION, WHILE
from shardy_py.passes.pipelines import PlanPipeline
from shardy_py.plan.explicit import Lineage
from shardy_py.plan.prediction.conflicts import ConflictCache, conflicts
from shardy_py.plan.prediction.dead_ops import drop_dead_ops
from shardy_py.rules.traits import CONSTANTS, CONSTRAINTS

_CONSTRAINT = "sdy.sharding_constraint"
_SHAPES = frozenset(("stablehlo.broadcast_in_dim", "stablehlo.transpose"))
_SAME = frozenset(("sdy.propagation_barrier",))
"""Ops that are not handed on to XLA."""


@no_collection()
def as_xla_propagates(program: Program) -> tuple[Program, Lineage]:
    """The program with the shardings that XLA gives it under `lowering="jit"`, and its lineage in the plan.

    It is the program itself where no loop carries a value unchanged. Otherwise arguments, results, constraints and the values around
    conflicts are as planned, and so are the first values that another propagation shards otherwise than the plan, since these are
    constrained to it. All else is propagated once more.
    """
    if not any(op.name == WHILE and _unchanged(op) for op in program.walk()):
        return program, Lineage(program)
    pinned = _around_conflicts(program)
    for per_region in PER_REGION:
        builder = XlaProgramBuilder(program, pinned, loops=False)
        PlanPipeline().run(builder.program())
        if not sum(_pin(f.body, builder.names, pinned, per_region) for f in program.functions):
            break
    builder = XlaProgramBuilder(program, pinned, loops=True)
    copy = builder.program()
    PlanPipeline().run(copy)
    return copy, builder.lineage()


PER_REGION = (1, 1, 2, 4, 16, None, None)
"""Number of values to constrain in each region of differing ones, per propagation; None is all."""


class XlaProgramBuilder:
    """Copies a program without its shardings, except those of arguments, results, constraints and pinned values."""

    def __init__(self, program: Program, pinned: Set[Value], loops: bool) -> None:
        self.source = program
        self.mesh = next((name for name, mesh in program.meshes.items() if not mesh.is_maximal), "mesh")
        self.pinned = pinned
        self.loops = loops
        self.names: dict[Value, Value] = {}
        self.inside: dict[Value, Value] = {}
        self.origins: dict[Op, Op] = {}

    def lineage(self) -> Lineage:
        """The lineage of the copy's ops and values in the source program."""
        values: dict[Value, Value] = {}
        for old, new in (*self.names.items(), *self.inside.items()):
            values.setdefault(new, old)
        return Lineage(self.source, self.origins, values)

    def program(self) -> Program:
        """The copy."""
        return program_like(self.source, [self.function(f) for f in self.source.functions])

    def function(self, original: Function) -> Function:
        """A copy of a function."""
        body = block_like(original.body)
        for old, new in zip(original.arguments, body.arguments):
            new.sharding = self.planned(old.sharding, old)
        self.names.update(zip(original.arguments, body.arguments))
        self.ops(original.body.ops, body, self.names)
        copy = function_like(original, body)
        copy.result_shardings = [self.planned(s, v) for s, v in zip(original.result_shardings, original.body.terminator.operands)]
        return copy

    def planned(self, sharding: TensorSharding | None, value: Value) -> TensorSharding:
        """A planned sharding, closed."""
        return TensorSharding.closed(self.mesh, value.type.rank) if sharding is None else sharding.closed_like()

    def ops(self, ops: Sequence[Op], into: Block, names: dict[Value, Value]) -> None:
        """Copies ops; calls are inlined, and shardings left out unless they are constrained.

        Constraints stand behind all ops of an equation, as in the program that JAX makes, or behind the op itself, as in XLA's: where
        shardings conflict, the order of ops decides.
        """
        waiting: list[Op] = []
        for op in ops:
            if waiting and (self.loops or op.location is not waiting[-1].location or op.name.endswith(".return")):
                self.pin_results(waiting, into, names)
            if op.name == NAMED_COMPUTATION and self.loops:
                inner = op.regions[0]
                names.update((a, names[v]) for a, v in zip(inner.arguments, op.operands))
                self.pin(inner.arguments, into, names, op)
                self.ops(inner.ops[:-1], into, names)
                names.update((r, names[v]) for r, v in zip(op.results, inner.terminator.operands))
            elif op.name in _SAME:
                names.update(zip(op.results, [names[v] for v in op.operands]))
            elif op.name == WHILE and self.loops:
                self.loop(op, into, names)
            else:
                self.op(op, into, names, [self.block(r, names) for r in op.regions])
            waiting.append(op)
        self.pin_results(waiting, into, names)

    def pin_results(self, waiting: list[Op], into: Block, names: dict[Value, Value]) -> None:
        """Constrains the results of ops that wait for it."""
        for op in waiting:
            self.pin(op.results, into, names, op)
        waiting.clear()

    def pin(self, values: Sequence[Value], into: Block, names: dict[Value, Value], op: Op) -> None:
        """Constrains the pinned ones among some values."""
        for v in values:
            if v in self.pinned:
                names[v] = self.constrained(names[v], self.planned(variable_sharding(v), v), into, op)

    def block(self, block: Block, names: dict[Value, Value]) -> Block:
        """A copy of a block, its operands replaced by `names`."""
        copy = Block([a.type for a in block.arguments])
        for old, new in zip(block.arguments, copy.arguments):
            new.name = old.name
            names[old] = new
        if isinstance(block.parent, Op):
            self.pin(block.arguments, copy, names, block.parent)
        self.ops(block.ops, copy, names)
        return copy

    def op(self, op: Op, into: Block, names: dict[Value, Value], regions: Sequence[Block]) -> Op:
        """A copy of an op."""
        operands = [names[v] for v in op.operands]
        copy = _rebuild_op(op, operands, [r.type for r in op.results], regions)
        if self.loops and op.name in _SHAPES and _keeps_order(op):
            copy.name, copy.attributes, copy.rule, copy.rule_decided = "stablehlo.reshape", {}, None, False
        constraint = op.name in CONSTRAINTS
        if constraint:
            copy.name = _CONSTRAINT
        for old, new in zip(op.results, copy.results):
            new.name = old.name
            if constraint:
                new.sharding = self.planned(old.sharding, old)
            elif old.sharding is not None and old.sharding.mesh_in(self.source.meshes).is_maximal:
                new.sharding = old.sharding
            names[old] = new
        self.origins[copy] = op
        return into.append(copy)

    def loop(self, op: Op, into: Block, names: dict[Value, Value]) -> None:
        """A copy of a loop that carries only the values that it changes."""
        same = _unchanged(op)
        changed = [i for i in range(len(op.operands)) if i not in same]
        for i in same:
            for target in (op.results[i], *(r.arguments[i] for r in op.regions)):
                names[target] = names[op.operands[i]]
        read = dict.fromkeys(names[v] for region in op.regions for v in _read(region) if v in names)
        opened = {v: self.constrained(v, v.sharding.fully_open_like(), into, op) for v in read if v.sharding is not None}
        inside = {v: opened.get(new, new) for v, new in names.items()}
        regions: list[Block] = []
        for region in op.regions:
            body = Block([region.arguments[i].type for i in changed])
            for i, new in zip(changed, body.arguments):
                new.name = region.arguments[i].name
                inside[region.arguments[i]] = new
            self.pin([region.arguments[i] for i in changed], body, inside, op)
            self.ops(region.ops[:-1], body, inside)
            end = region.terminator
            operands = end.operands if region is op.regions[0] else [end.operands[i] for i in changed]
            self.origins[body.append(_rebuild_op(end, [inside[v] for v in operands], ()))] = end
            regions.append(body)
        copy = _rebuild_op(op, [names[op.operands[i]] for i in changed], [op.results[i].type for i in changed], regions)
        self.inside.update((old, new) for old, new in inside.items() if old not in names)
        self.origins[into.append(copy)] = op
        for i, new in zip(changed, copy.results):
            new.name = op.results[i].name
            names[op.results[i]] = new

    def constrained(self, value: Value, sharding: TensorSharding, into: Block, op: Op) -> Value:
        """A constraint on a value."""
        constraint = Op(_CONSTRAINT, [value], [value.type], location=op.location)
        constraint.result.sharding, constraint.result.name = sharding, value.name
        self.origins[constraint] = op
        return into.append(constraint).result


class _InliningBuilder(XlaProgramBuilder):
    """Copies a program in XLA's form, every value with the sharding that it has."""

    def __init__(self, program: Program) -> None:
        super().__init__(program, frozenset(), loops=True)

    def program(self) -> Program:
        """The copy."""
        copy = super().program()
        for old, new in (*self.names.items(), *self.inside.items()):
            if new.sharding is None or (old.defining_op is not None and old.defining_op.name in CONSTRAINTS):
                new.sharding = old.sharding
        return copy

    def constrained(self, value: Value, sharding: TensorSharding, into: Block, op: Op) -> Value:
        """The value itself: all shardings are decided."""
        return value


@no_collection()
def as_xla_inlines(program: Program) -> tuple[Program, Lineage, Mapping[Value, Value]]:
    """The program in XLA's form, with the shardings that it has: calls inlined, loops carrying only what they change, no dead ops."""
    builder = _InliningBuilder(program)
    copy = builder.program()
    drop_dead_ops(copy)
    return copy, builder.lineage(), {**builder.inside, **builder.names}


_ENDS = frozenset(("in_shardings", "out_shardings"))


def _rebuild_op(op: Op, operands: Sequence[Value], types: Sequence[Type], regions: Sequence[Block] = ()) -> Op:
    attributes = op.attributes
    if op.name == NAMED_COMPUTATION:  # shardings of operands and results are set by propagation
        attributes = {name: None if name in _ENDS else value for name, value in attributes.items()}
    return op_like(op, operands, types, regions, attributes)


def _keeps_order(op: Op) -> bool:
    """Whether only dimensions of one element come or move, which is a reshape to XLA, and is propagated through earlier."""
    before, after = op.operands[0].type, op.result.type
    if op.name == "stablehlo.transpose":
        return not moves_elements(before.shape, op.attributes["permutation"])
    return before.size == after.size


def _passed(value: Value) -> Value:
    """The value itself, or the one that calls forward to it."""
    while True:
        op = value.defining_op
        if op is not None and op.name in _SAME:
            value = op.operands[value.index]
        elif op is not None and op.name == NAMED_COMPUTATION:
            value = op.regions[0].terminator.operands[value.index]
        elif isinstance(value.owner, Block) and isinstance(call := value.owner.parent, Op) and call.name == NAMED_COMPUTATION:
            value = call.operands[value.index]
        else:
            return value


def _unchanged(loop: Op) -> set[int]:
    """Indices of the values that a loop carries unchanged."""
    body = loop.regions[1]
    return {i for i, (a, end) in enumerate(zip(body.arguments, body.terminator.operands)) if _passed(end) is a}


def _read(block: Block) -> Iterator[Value]:
    for op in block.walk():
        yield from op.operands


def _around_conflicts(program: Program) -> set[Value]:
    """Operands and results of ops whose shardings conflict; values that enter a computation are constrained outside of it."""
    cache: ConflictCache = {}
    values: set[Value] = set()
    for op in program.walk():
        if op.rule is None or op.regions or op.name in CONSTRAINTS or not conflicts(op, program.meshes, cache) or _drives_scan(op):
            continue
        for v in (*op.operands, *op.results):
            maker = v.defining_op
            if maker is None or maker.name in CONSTANTS or not v.type.size or not v.type.rank:
                continue
            if v.sharding is None or not v.sharding.mesh_in(program.meshes).is_maximal:
                values.add(v)
    branches = [op for op in program.walk() if op.name == CASE and len(op.results) == 1]  # XLA refuses constraints on these
    return values - {v for op in branches for r in op.regions for v in r.terminator.operands}


def _pin(block: Block, copies: Mapping[Value, Value], pinned: set[Value], per_region: int | None) -> bool:
    """Pins values that a copy has in another sharding, the first few of each region of such values; whether there were any."""
    regions: dict[Value, list[Value]] = {v: [v] for v in block.arguments if _differs(v, copies, pinned) and not _drives_scan(block.ops[0])}
    any_differ = bool(regions)
    for op in block.ops:
        differing = [] if _drives_scan(op) else [v for v in op.results if _differs(v, copies, pinned)]
        if differing:
            any_differ = True
            into: list[Value] = []
            for members in {id(m): m for v in op.operands if (m := regions.get(v)) is not None}.values():
                into += members
            into += differing
            regions.update(dict.fromkeys(into, into))
        for inner in op.regions:
            any_differ |= _pin(inner, copies, pinned, per_region)
    for members in {id(m): m for m in regions.values()}.values():
        pinned.update(members[:per_region])
    return any_differ


def _differs(value: Value, copies: Mapping[Value, Value], pinned: Set[Value]) -> bool:
    copy = copies[value]
    planned, has = value.sharding, copy.sharding
    if value in pinned or not value.type.rank or not value.type.size or not value.uses or not copy.uses or planned is has:
        return False
    if planned is None or has is None:
        return any(s is not None and not s.is_fully_replicated for s in (planned, has))
    return not planned.is_equivalent(has)


def _drives_scan(op: Op) -> bool:
    """Whether an op is not the user's but part of a lowered scan, which slices its inputs and stacks its outputs."""
    inner = op
    for around in itertools.islice(op.outward(), 1, None):
        if around.name == WHILE:
            return around.location is op.location and inner.block is not None and any(map(_is_scanned, inner.block.ops))
        if _is_scanned(around):
            return False
        inner = around
    return False


def _is_scanned(op: Op) -> bool:
    return op.name == NAMED_COMPUTATION and op.primitive == "closed_call"
