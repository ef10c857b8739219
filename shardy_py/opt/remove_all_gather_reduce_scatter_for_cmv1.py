"""Removes collectives around dots that XLA's collective matmul brings back in a better form."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.ir import Op, Program, Value
from shardy_py.passes.base import FUNCTION, Pass
from shardy_py.passes.dataflow import get_sharding, set_sharding
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import blocks_of
from shardy_py.rules.traits import DOTS


@dataclass(frozen=True, kw_only=True)
class RemoveAllGatherReduceScatterForCmv1(Pass):
    """Removes collectives around dots that XLA fuses with them."""

    name = "sdy-remove-all-gather-reduce-scatter-for-cmv1"
    anchor = FUNCTION

    def run(self, program: Program, log: Log | None = None) -> None:
        """Lets dots take the operands of all-gathers that nothing else uses, and give the results of reduce-scatters.

        A dot that lost an all-gather passes its reduce-scatter by, which stays in place unused; one that did not takes the sharding
        of its reduce-scatter. Unreduced axes keep a reduce-scatter as it is.

        Source: Shardy's remove_all_gather_reduce_scatter_for_cmv1.cc.
        """
        for block in blocks_of(program):
            erased: dict[Op, None] = {}
            for op in block.ops:
                if op.name in DOTS:
                    _simplify(op, erased)
            if erased:
                block.ops = [op for op in block.ops if op not in erased]


def _simplify(dot: Op, erased: dict[Op, None]) -> None:
    gathered = False
    for i, operand in enumerate(dot.operands):
        gather = operand.defining_op
        if gather is not None and gather.name == "sdy.all_gather" and len(operand.uses) == 1:
            dot.set_operand(i, gather.operands[0])
            _erase(gather, erased)
            gathered = True
    scatter = _reduce_scatter(dot.results[0])
    if scatter is None:
        return
    sharding = scatter.results[0].sharding
    scatter.results[0].replace_uses(dot.results[0])
    if not gathered and sharding is not None:
        set_sharding(dot.results[0], sharding)
        _erase(scatter, erased)


def _reduce_scatter(value: Value) -> Op | None:
    """The reduce-scatter that is the only user of a value, if no axis is unreduced before or after it."""
    if len(value.uses) != 1:
        return None
    ((scatter, _),) = value.uses
    if scatter.name != "sdy.reduce_scatter":
        return None
    shardings = (get_sharding(value), scatter.results[0].sharding)
    return None if any(sharding is not None and sharding.unreduced for sharding in shardings) else scatter


def _erase(op: Op, erased: dict[Op, None]) -> None:
    op.drop_uses()
    op.block = None
    erased[op] = None
