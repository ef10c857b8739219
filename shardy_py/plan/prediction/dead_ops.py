"""Ops that XLA drops before it partitions a program: those that no result and no effect needs.

Propagation keeps more of them, as Shardy's does: loops, sorts that were read once, constraints. They must not count in a prediction.
"""

from __future__ import annotations

from shardy_py.ir import Op, Program
from shardy_py.partition.policies import FORWARDING
from shardy_py.passes.dataflow import CASE, NAMED_COMPUTATION, WHILE
from shardy_py.rules.traits import TERMINATORS, is_pure

_HOLDING = frozenset((CASE, NAMED_COMPUTATION, WHILE))


def dead_ops(program: Program) -> frozenset[Op]:
    """The ops that XLA drops, with all ops in their bodies."""
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
    return frozenset(dead)


def drop_dead_ops(program: Program) -> None:
    """Takes the dead ops out of a program."""
    dead = dead_ops(program)
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
