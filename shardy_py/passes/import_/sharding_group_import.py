"""Sharding groups: checked, joined where they share a value, numbered from 0, and removed in the end."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.dialect.grouping import Components, grouped
from shardy_py.errors import ShardyError
from shardy_py.ir import Block, Function, Op, Program, Value
from shardy_py.passes.base import Pass
from shardy_py.passes.dataflow import MANUAL_COMPUTATION
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import ops_of, place

GROUP = "sdy.sharding_group"


@dataclass(frozen=True, kw_only=True)
class ShardingGroupImport(Pass):
    """Merges sharding groups that share a value and numbers them."""

    name = "sdy-sharding-group-import"

    def run(self, program: Program, log: Log | None = None) -> None:
        """Makes every value a member of at most one group.

        Groups with a value in common become one, which stands where the first group of that value stands; groups are numbered
        in the order in which they appear; a value keeps one `sdy.sharding_group` op. Raises ShardyError if values of a group have different
        shapes, or stand in different manual computations.

        Source: Shardy's sharding_group_import.cc.
        """
        ops = ops_of(program, (GROUP,))
        if not ops:
            return
        members: dict[int, list[Op]] = {}
        for op in ops:
            members.setdefault(op.attributes["group_id"], []).append(op)
        for group, constraints in members.items():
            _check(program, group, constraints)

        joined = Components[int]()
        for of_value in grouped(ops, lambda op: op.operands[0]).values():
            joined.join(op.attributes["group_id"] for op in of_value)
        leaders = (group for group in members if joined.root(group) == group)
        numbers = {group: i for i, group in enumerate(leaders)}

        seen: set[Value] = set()
        repeated: dict[Block, set[Op]] = {}
        for op in ops:
            if op.operands[0] in seen:
                assert op.block is not None
                repeated.setdefault(op.block, set()).add(op)
                continue
            seen.add(op.operands[0])
            op.attributes = {**op.attributes, "group_id": numbers[joined.root(op.attributes["group_id"])]}
        for block, dropped in repeated.items():
            for op in dropped:
                op.drop_uses()
                op.block = None
            block.ops = [op for op in block.ops if op not in dropped]


def _check(program: Program, group: int, ops: list[Op]) -> None:
    shape, within = ops[0].operands[0].type.shape, _manual_computation(ops[0])
    for op in ops[1:]:
        if _manual_computation(op) is not within:
            raise ShardyError(
                f"ShardingGroupOps values cannot cross ManualComputationOp boundaries for groupId: {group}",
                where=place(program, op),
                fix="group values inside and outside of a manual computation separately",
            )
        if op.operands[0].type.shape != shape:
            raise ShardyError(
                f"ShardingGroupOps values must have the same shape for groupId: {group}",
                where=place(program, op),
                why=f"shapes {shape} and {op.operands[0].type.shape} are in one group",
                fix="give the groups different numbers",
            )


def _manual_computation(op: Op) -> Op | None:
    parent = op.block.parent if op.block is not None else None
    while isinstance(parent, Op) and parent.name != MANUAL_COMPUTATION:
        parent = parent.block.parent if parent.block is not None else None
    return None if isinstance(parent, Function) else parent


@dataclass(frozen=True, kw_only=True)
class RemoveShardingGroups(Pass):
    """Removes sharding groups."""

    name = "sdy-remove-sharding-groups"

    def run(self, program: Program, log: Log | None = None) -> None:
        """Erases all sharding groups; propagation has done what they asked for. Source: Shardy's remove_sharding_groups.cc."""
        blocks: dict[Block, None] = {}
        for op in ops_of(program, (GROUP,)):
            op.drop_uses()
            assert op.block is not None
            blocks[op.block] = None
            op.block = None
        for block in blocks:
            block.ops = [op for op in block.ops if op.name != GROUP]
