"""The program that runs under `lowering="jit"`: the plan, or XLA's own propagation where the plan does not move notably less.

Inputs, results, constraints, and operands and results of ops that XLA may get wrong are always sharded as planned. Where shardings between
them conflict, the result depends on the form of the program, and XLA propagates through another form than the one that JAX makes and Shardy
reads. Both are propagated here. Where the plan is predicted to move notably fewer bytes, the values around conflicts are constrained to it;
else they are left to XLA.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from shardy_py.ir import Block, Op, Program, TensorType, Value
from shardy_py.partition.misaligned import is_misaligned_product
from shardy_py.partition.mispartitioned import cut_in_any_way, is_mispartitioned
from shardy_py.passes.collection import no_collection
from shardy_py.passes.dataflow import CASE
from shardy_py.passes.pipelines import PlanPipeline
from shardy_py.plan.collectives import received_by
from shardy_py.plan.explicit import Lineage
from shardy_py.plan.partitioner import partition
from shardy_py.plan.prediction.conflicts import ConflictCache, conflicts
from shardy_py.plan.prediction.loops import XlaProgramBuilder
from shardy_py.plan.record import Analysis, PlanRecord, PropagationOptions

MAX_BYTES_RATIO = 0.9
"""The plan runs where it moves less than this part of the bytes that XLA's own propagation moves: predictions are mostly within 10 %, and
XLA's partitioner has been seen to fail on constraints."""

_BROADCAST = "stablehlo.broadcast_in_dim"


@dataclass(frozen=True, eq=False)
class JitProgram:
    """A program with the shardings that it runs with."""

    program: Program
    follows_plan: bool
    lineage: Lineage


@no_collection()
def jit_program(program: Program, options: PropagationOptions) -> JitProgram:
    """Chooses between the plan and XLA's own propagation, for a program that XLA partitions.

    A plan that was propagated with other options than XLA's is always followed.
    """
    cache: ConflictCache = {}
    if replace(options, recorded=True) == PropagationOptions() and any(
        op.rule is not None and not op.regions and conflicts(op, program.meshes, cache) for op in program.walk()
    ):
        free = left_to_xla(program, _around_mispartitioned(program))
        if any(_has_misaligned_product(each) for each in (program, free.program)):  # XLA would exchange parts of its result
            return JitProgram(program, True, Lineage(program))
        if _received_bytes(program) >= MAX_BYTES_RATIO * _received_bytes(free.program):
            return free
    return JitProgram(program, True, Lineage(program))


def left_to_xla(program: Program, constrained: Set[Value] = frozenset()) -> JitProgram:
    """The program as XLA itself propagates it, from its inputs, results and constraints, and some values more."""
    builder = _UnconstrainedBuilder(program, constrained)
    unconstrained = builder.program()
    PlanPipeline().run(unconstrained)
    return JitProgram(unconstrained, False, builder.lineage())


@Analysis
def jit_program_of(plan: PlanRecord) -> JitProgram:
    """The program that runs under `lowering="jit"`."""
    if plan.is_assigned:  # its shardings were chosen by their cost, and no propagation would find them
        return JitProgram(plan.program, True, Lineage(plan.program))
    return jit_program(plan.program, plan.propagation)


def _has_misaligned_product(program: Program) -> bool:
    return any(op.name == "stablehlo.dot_general" and is_misaligned_product(op, program.meshes) for op in program.walk())


def _received_bytes(program: Program) -> int:
    return received_by(transfer.collective for transfer in partition(program, lambda value: "").transfers)


def _around_mispartitioned(program: Program) -> set[Value]:
    parts = cut_in_any_way(program.meshes)
    ops = [op for op in program.walk() if is_mispartitioned(op, parts)]
    values = {v for op in ops for v in (*op.operands, *op.results) if v.type.size and v.type.rank}
    branches = [op for op in program.walk() if op.name == CASE and len(op.results) == 1]  # XLA refuses constraints on these
    return values - {v for op in branches for r in op.regions for v in r.terminator.operands}


class _UnconstrainedBuilder(XlaProgramBuilder):
    """Builds the program as XLA sees it before it propagates, constrained only by the user and around ops that XLA may get wrong.

    A broadcast along dimensions of one element is a reshape that drops them and a broadcast of the others: XLA's own broadcasts only add
    dimensions. Reshapes are propagated through before broadcasts are, in both directions, so this decides many conflicts.
    """

    def __init__(self, program: Program, constrained: Set[Value]) -> None:
        super().__init__(program, constrained, loops=True)

    def op(self, op: Op, into: Block, names: dict[Value, Value], regions: Sequence[Block]) -> Op:
        operand = op.operands[0].type if op.name == _BROADCAST else None
        if operand is not None and operand.size != op.result.type.size:
            dims = op.attributes["broadcast_dimensions"]
            matching = [d for d, at in enumerate(dims) if operand.shape[d] == op.result.type.shape[at]]
            if len(matching) < len(dims):
                small = TensorType(tuple(operand.shape[d] for d in matching), operand.dtype)
                dropped = Op("stablehlo.reshape", [names[op.operands[0]]], [small], location=op.location, primitive=op.primitive)
                wide = {"broadcast_dimensions": tuple(dims[d] for d in matching)}
                broadcast = Op(
                    _BROADCAST, [into.append(dropped).result], [op.result.type], wide, location=op.location, primitive=op.primitive
                )
                into.append(broadcast).result.name = op.result.name
                names[op.result] = broadcast.result
                self.origins[dropped] = self.origins[broadcast] = op
                return broadcast
        return super().op(op, into, names, regions)
