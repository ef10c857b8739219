"""Turns every `sdy.reshard` into the collectives it takes, and leaves out those that XLA fuses with a dot."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.dialect import AllToAllParamList, ListOfAxisRefLists, TensorSharding
from shardy_py.ir import Op, Program, Value
from shardy_py.passes.base import FUNCTION, Pass, option
from shardy_py.passes.dataflow import get_sharding, set_sharding
from shardy_py.passes.export.collective_steps import CollectiveStep, collectives_for
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import blocks_of
from shardy_py.rules.traits import DOTS

RESHARD = "sdy.reshard"
_BARRIER = "sdy.propagation_barrier"


@dataclass(frozen=True, kw_only=True)
class ReshardToCollectives(Pass):
    """Replaces reshards by collectives."""

    name = "sdy-reshard-to-collectives"
    anchor = FUNCTION

    keep_redundant_reshards: bool = option(False, "keep reshards that change nothing")

    def run(self, program: Program, log: Log | None = None) -> None:
        """Replaces reshards by `sdy.all_slice`, `sdy.collective_permute`, `sdy.all_to_all` and `sdy.all_gather` ops.

        A value without a sharding counts as replicated over the mesh it goes to. A reshard between meshes with different axes stays,
        unless its result is replicated; so does one that changes the rank, as to or from the mesh of a single device.

        Source: Shardy's reshard_to_collectives.cc.
        """
        for block in blocks_of(program):
            if not any(op.name == RESHARD for op in block.ops):
                continue
            ops: list[Op] = []
            for op in block.ops:
                collectives = _collectives(op, program, self.keep_redundant_reshards) if op.name == RESHARD else None
                ops += (op,) if collectives is None else collectives
            block.set_ops(ops)


def _collectives(op: Op, program: Program, keep_redundant: bool) -> list[Op] | None:
    """The ops that replace a reshard; None where it stays."""
    target = op.result.sharding
    assert target is not None
    value = op.operands[0]
    while value.defining_op is not None and value.defining_op.name == _BARRIER:
        value = value.defining_op.operands[0]
    source = get_sharding(value) or TensorSharding.open(target.mesh, target.rank)
    if keep_redundant and source.is_equivalent(target):
        return None
    if source.rank != target.rank:
        return None
    if not target.is_fully_replicated and not source.mesh_in(program.meshes).same_axes(target.mesh_in(program.meshes)):
        return None
    collectives: list[Op] = []
    for step in collectives_for(source, target, op.result.type.shape, program.meshes, complete=False):
        collectives.append(_op(step, value, op))
        value = collectives[-1].result
    op.drop_uses()
    op.block = None
    op.result.replace_uses(value)
    return collectives


def _op(step: CollectiveStep, value: Value, op: Op) -> Op:
    attributes: dict[str, object] = {}
    if step.kind == "all_gather":
        attributes = {"gathering_axes": ListOfAxisRefLists(step.axes)}
    elif step.kind == "all_slice":
        attributes = {"slicing_axes": ListOfAxisRefLists(step.axes)}
    elif step.kind == "all_to_all":
        attributes = {"params": AllToAllParamList(step.moves)}
    return Op(f"sdy.{step.kind}", (value,), (op.result.type,), attributes, location=op.location, sharding=step.result)


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
