"""What runs under `lowering="jit"`: the plan, or what XLA makes of its ends where the plan does not move notably less.

Inputs, results, constraints, and what goes through ops that XLA may get wrong lie as planned, always. Where shardings between them
conflict, what comes out depends on the form of the program, and XLA propagates through another form than the one that JAX makes and Shardy
reads. Both are propagated here. Where the plan is predicted to move notably fewer bytes, the values around conflicts are constrained to it;
else they are left to XLA.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardy_py.ir import Block, Op, Program, TensorType, Value
from shardy_py.partition.mispartitioned import cut_in_any_way, is_mispartitioned
from shardy_py.passes.collection import no_collection
from shardy_py.passes.dataflow import CASE
from shardy_py.passes.pipelines import PlanPipeline
from shardy_py.plan.analysis import Analysis
from shardy_py.plan.explicit import Lineage
from shardy_py.plan.partitioner import partition
from shardy_py.plan.prediction.conflicts import Seen, conflicts
from shardy_py.plan.prediction.loops import Copier
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.settings import Propagated

WORTH = 0.9
"""The part of XLA's bytes that the plan must stay below to be worth constraints: predictions are mostly within 10 %, and XLA's
partitioner has been seen to fail on constraints."""

_BROADCAST = "stablehlo.broadcast_in_dim"


@dataclass(frozen=True, eq=False)
class AsRun:
    """A program with the shardings that it runs with.

    Attributes:
        program: The plan's own where the plan is run.
        planned: Whether the plan is run, constrained where shardings conflict.
        lineage: The ops and values of the plan's program that those of `program` come from.
    """

    program: Program
    planned: bool
    lineage: Lineage


@no_collection()
def as_run(program: Program, how: Propagated) -> AsRun:
    """What runs of a program that is left to XLA to partition.

    A plan that was propagated in another way than XLA's is run as it is.

    Args:
        program: With final shardings.
        how: How they were found.
    """
    seen: Seen = {}
    if replace(how, recorded=True) == Propagated() and any(
        op.rule is not None and not op.regions and conflicts(op, program.meshes, seen) for op in program.walk()
    ):
        copier = _Seen(program)
        left = copier.program()
        PlanPipeline().run(left)
        if _moved(program) >= WORTH * _moved(left):
            return AsRun(left, False, copier.lineage())
    return AsRun(program, True, Lineage(program))


@Analysis
def as_run_of(plan: PlanRecord) -> AsRun:
    """The program that runs under `lowering="jit"`.

    Args:
        plan: The plan.
    """
    return as_run(plan.program, plan.propagation)


def _moved(program: Program) -> int:
    transfers = partition(program, lambda value: "").transfers
    return sum(t.collective.received_bytes * (t.collective.trips or 1) for t in transfers)


def _around_mispartitioned(program: Program) -> set[Value]:
    parts = cut_in_any_way(program.meshes)
    ops = [op for op in program.walk() if is_mispartitioned(op, parts)]
    found = {v for op in ops for v in (*op.operands, *op.results) if v.type.size and v.type.rank}
    branches = [op for op in program.walk() if op.name == CASE and len(op.results) == 1]  # XLA refuses constraints on these
    return found - {v for op in branches for r in op.regions for v in r.terminator.operands}


class _Seen(Copier):
    """A program as XLA sees it before it propagates, nothing constrained but what the user constrained and what XLA may get wrong.

    A broadcast along dimensions of one element is a reshape that drops them and a broadcast of the others: XLA's own broadcasts only add
    dimensions. Reshapes are propagated through before broadcasts are, in both directions, so this decides many conflicts.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program, _around_mispartitioned(program), loops=True)

    def op(self, op: Op, into: Block, names: dict[Value, Value], regions: Sequence[Block]) -> Op:
        operand = op.operands[0].type if op.name == _BROADCAST else None
        if operand is not None and operand.size != op.result.type.size:
            dims = op.attributes["broadcast_dimensions"]
            kept = [d for d, at in enumerate(dims) if operand.shape[d] == op.result.type.shape[at]]
            if len(kept) < len(dims):
                small = TensorType(tuple(operand.shape[d] for d in kept), operand.dtype)
                dropped = Op("stablehlo.reshape", [names[op.operands[0]]], [small], location=op.location, primitive=op.primitive)
                wide = {"broadcast_dimensions": tuple(dims[d] for d in kept)}
                made = Op(_BROADCAST, [into.append(dropped).result], [op.result.type], wide, location=op.location, primitive=op.primitive)
                into.append(made).result.name = op.result.name
                names[op.result] = made.result
                self.origins[dropped] = self.origins[made] = op
                return made
        return super().op(op, into, names, regions)
