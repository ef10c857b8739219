"""Turns every `sdy.reshard` into the collectives it takes."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.dialect import AllToAllParamList, ListOfAxisRefLists, TensorSharding
from shardy_py.ir import Op, Program, Value
from shardy_py.passes.base import FUNCTION, Pass, option
from shardy_py.passes.dataflow import get_sharding
from shardy_py.passes.export.collective_steps import CollectiveStep, collectives_for
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import blocks_of

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
