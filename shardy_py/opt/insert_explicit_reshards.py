"""Inserts reshards and all-reduces, so that every op has operands and results that it can be partitioned with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardy_py.dialect import TensorSharding
from shardy_py.ir import Block, Function, Op, Program, Value
from shardy_py.opt.edits import erase, insert_after, insert_after_value, insert_before
from shardy_py.opt.explicit_reshards.decision import Decision, decide
from shardy_py.opt.explicit_reshards.unreduced import (
    KINDS,
    RESHARD,
    Insertion,
    all_reduce,
    more_unreduced,
    reduce_to,
    unreduced_of,
)
from shardy_py.passes.base import FUNCTION, Pass, option
from shardy_py.passes.dataflow import COMPUTATIONS, DATA_FLOW_OPS, get_sharding, set_sharding, sharding_for_sources, sources
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import CALL, functions_by_name
from shardy_py.rules import rule_of
from shardy_py.rules.traits import DOTS, TERMINATORS

Record = Callable[[Op, str, Op], None]
"""`record(op, why, cause)`: called for every op that is inserted, with the op that it is inserted for."""

_BARRIER = "sdy.propagation_barrier"
_CONCATENATE = "stablehlo.concatenate"


@dataclass(frozen=True, kw_only=True)
class InsertExplicitReshards(Pass):
    """Inserts reshards where the shardings around an op disagree."""

    name = "sdy-insert-explicit-reshards"
    anchor = FUNCTION

    enable_full_version: bool = option(False, "settle every disagreement, not only those that XLA handles badly")

    def run(self, program: Program, log: Log | None = None, *, record: Record | None = None) -> None:
        """Makes the shardings around every op compatible with its sharding rule.

        Without `enable_full_version` only what XLA's partitioner would do worse is inserted: collectives for unreduced axes,
        reshards around calls and concatenates, and those of results of dots that can become reduce-scatters.

        Shardings must be final. Shardy runs an op as the tensors with the most elements agree, whatever their element types, so that an op
        on a small type may move more than needed.

        Source: Shardy's insert_explicit_reshards.cc.
        """
        inserter = Inserter(program, full=self.enable_full_version, record=record)
        for function in program.functions:
            inserter.visit(function.body)
            inserter.returns(function)


class Inserter:
    """Makes the shardings of a program's ops agree, all of them if `full`."""

    def __init__(self, program: Program, *, full: bool, record: Record | None = None) -> None:
        self.full = full
        self.record = record
        self.meshes = program.meshes
        self.semantics = program.semantics
        self.functions = functions_by_name(program)
        self.decisions: dict[tuple[object, ...], Decision | None] = {}

    def visit(self, block: Block) -> None:
        """Visits the ops of a block, those in the regions of an op before it."""
        for op in list(block.ops):
            for region in op.regions:
                self.visit(region)
            if op.name not in TERMINATORS:
                self.op(op)

    def op(self, op: Op) -> None:
        """Inserts what one op needs."""
        name = op.name
        if name in DATA_FLOW_OPS:
            self.data_flow(op)
        elif name == CALL:
            self.call(op)
        elif name != RESHARD or not self.reshard(op):
            self.reduce_operands(op)
            if name != RESHARD:  # one that was a constraint may still have the rule of that
                self.settle(op)

    def data_flow(self, op: Op) -> None:
        """Gives every source of an edge the sharding of the edge."""
        owners = [*op.results, *op.regions[0].arguments] if op.name in COMPUTATIONS else op.results
        for owner in owners:
            target = sharding_for_sources(owner)
            for user, i in sources(owner):
                self.to_target(user, i, target, self.full, f"{op.name} needs it")

    def call(self, op: Op) -> None:
        """Gives operands the shardings of the arguments of the function that is called."""
        arguments = self.functions[op.attributes["callee"]].arguments
        mesh = next((argument.sharding.mesh for argument in arguments if argument.sharding is not None), None)
        for i, argument in enumerate(arguments):
            target = argument.sharding
            if target is None and mesh is not None:
                target = TensorSharding.open(mesh, argument.type.rank)
            self.to_target(op, i, target, True, f"function '{op.attributes['callee']}' takes it")

    def returns(self, function: Function) -> None:
        """Gives returned values the shardings of the function's results."""
        if not function.body.ops:
            return
        terminator = function.body.terminator
        for i in range(min(len(terminator.operands), len(function.result_shardings))):  # an unregistered op need not return all results
            self.to_target(terminator, i, function.result_shardings[i], self.full, "the function returns it")

    def to_target(self, user: Op, i: int, target: TensorSharding | None, full: bool, why: str) -> None:
        """Brings one use of a value to a sharding; a missing one is replicated. Without `full` only unreduced axes are."""
        for find in (reduce_to, more_unreduced):
            source = get_sharding(user.operands[i])
            self.convert(user, i, find(source, target, self.meshes), why)
        source = get_sharding(user.operands[i])
        present, other = (source, target) if source is not None else (target, None)
        if full and present is not None and not present.is_equivalent(other):
            self.convert(user, i, [Insertion(RESHARD, target if target is not None else present.fully_closed_like())], why)

    def convert(self, user: Op, i: int, steps: Sequence[Insertion], why: str) -> None:
        """Inserts collectives between a value and one use of it, right after the value."""
        for step in steps:
            value = user.operands[i]
            collective = self.make(step, value, why, user)
            if _ends_function(user):
                insert_before(user, [collective])
            else:
                insert_after_value(value, [collective])
            user.set_operand(i, collective.results[0])

    def reshard(self, op: Op) -> bool:
        """Replaces a reshard to more unreduced axes by collectives; False where it is not one."""
        value = op.operands[0]
        steps = more_unreduced(get_sharding(value), op.results[0].sharding, self.meshes)
        if not steps:
            return False
        for step in steps:
            collective = self.make(step, value, "the reshard makes axes unreduced", op)
            insert_before(op, [collective])
            value = collective.results[0]
        op.results[0].replace_uses(value)
        assert op.block is not None
        op.block.ops.remove(op)
        erase(op)
        return True

    def reduce_operands(self, op: Op) -> None:
        """All-reduces operands along unreduced axes that the first result does not have."""
        for i, operand in enumerate(op.operands):
            sharding = get_sharding(operand)
            if not unreduced_of(sharding):
                continue
            target = get_sharding(op.results[0]) if op.results else None
            for step in reduce_to(sharding, target, self.meshes):
                collective = self.make(step, operand, f"{op.name} needs the sum", op)
                insert_before(op, [collective])
                op.set_operand(i, collective.results[0])

    def settle(self, op: Op) -> None:
        """Inserts what the op needs to run under one sharding per factor."""
        full = self.full or op.name == _CONCATENATE
        if not full and op.name not in DOTS and not (op.results and unreduced_of(get_sharding(op.results[0]))):
            return
        rule = rule_of(op, self.semantics)
        if rule is None or rule.is_custom:
            return
        values = (*op.operands, *op.results)
        shardings = tuple([_sharding_at_op(value) for value in values])
        if not self.full and op.name == _CONCATENATE:
            full = any(sharding is not shardings[-1] for sharding in shardings)
        key = (op.name, rule, full, shardings, tuple([value.type for value in values]))
        if key in self.decisions:
            decision = self.decisions[key]
        else:
            decision = decide(op.name, rule, shardings, [value.type for value in values], self.meshes, full)
            self.decisions[key] = decision
        if decision is not None:
            self.carry_out(op, decision)

    def carry_out(self, op: Op, decision: Decision) -> None:
        """Inserts reshards before and after an op, and all-reduces between the op and the reshards of its results."""
        for i, sharding in decision.operands:
            if decision.unless_equal and sharding.is_equivalent(get_sharding(op.operands[i])):
                continue
            reshard = self.make(Insertion(RESHARD, sharding), op.operands[i], f"{op.name} reads it so", op)
            insert_before(op, [reshard])
            op.set_operand(i, reshard.results[0])
        back: list[Op] = []
        for i, sharding in decision.results:
            result = op.results[i]
            planned = get_sharding(result) or sharding.fully_closed_like()
            set_sharding(result, sharding)
            back.append(self.follow(result, Insertion(RESHARD, planned), f"{op.name} makes it otherwise", op))
        if back:
            insert_after(op, back)
        if not decision.reduced:
            return
        sums: list[Op] = []
        kind = "sum"
        if op.name == "stablehlo.reduce" and self.semantics.has("reshards: reductions by kind"):
            kind = KINDS.get(op.attributes["body"], kind)
        for result in op.results:
            sharding = get_sharding(result) or TensorSharding.closed(decision.mesh, result.type.rank)
            sums.append(self.follow(result, all_reduce(decision.reduced, sharding, kind), f"{op.name} makes parts of the sum", op))
        insert_after(op, sums)

    def follow(self, value: Value, step: Insertion, why: str, cause: Op) -> Op:
        """Makes a collective on a value that all its users use instead."""
        collective = self.make(step, value, why, cause)
        value.replace_uses(collective.results[0], lambda user, _: user is collective)
        return collective

    def make(self, step: Insertion, value: Value, why: str, cause: Op) -> Op:
        """Makes the op of a collective and records it; the caller inserts it."""
        defining = value.defining_op
        location = None if defining is None else defining.location
        collective = Op(step.name, (value,), (value.type,), dict(step.attributes), location=location, sharding=step.sharding)
        if self.record is not None:
            self.record(collective, why, cause)
        return collective


def _ends_function(op: Op) -> bool:
    return op.block is not None and isinstance(op.block.parent, Function) and op is op.block.terminator


def _sharding_at_op(value: Value) -> TensorSharding | None:
    """The sharding of a value; for the result of a propagation barrier, its operand's."""
    while (op := value.defining_op) is not None and op.name == _BARRIER:
        value = op.operands[0]
    return get_sharding(value)
