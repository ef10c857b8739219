"""Sharding groups: members agree before propagation starts, and change together while it runs."""

from __future__ import annotations

import warnings

from shardy_py.dialect import TensorSharding
from shardy_py.errors import ShardyError
from shardy_py.ir import Op, Program, Value
from shardy_py.passes import dataflow
from shardy_py.passes.propagation.graph import Holder
from shardy_py.passes.propagation.log import Step
from shardy_py.passes.walk import place


class ShardingGroupConflictWarning(UserWarning):
    """Members of a sharding group come with different shardings."""


def sharding_groups(program: Program, log: list[Step] | None = None) -> dict[Holder, tuple[Value, ...]]:
    """Value -> the members of its group, itself included, after giving all members their common sharding.

    Members are the values themselves: one whose sharding an edge holds takes changes of the group, but does not make any,
    as in the reference. A group whose members have different shardings is cut: an open constraint after each member takes its place
    (`ShardingGroupMap` of the reference), with a warning. Raises ShardyError if values of a group have different ranks.
    """
    members: dict[int, dict[Value, Op]] = {}
    for op in list(program.walk()):
        if op.name == "sdy.sharding_group":
            members.setdefault(op.attributes["group_id"], {}).setdefault(op.operands[0], op)
    groups: dict[Holder, tuple[Value, ...]] = {}
    for group_id in sorted(members):
        op_of_member = members[group_id]
        group = tuple(op_of_member)
        if any(v.type.rank != group[0].type.rank for v in group):  # sdy-sharding-group-import checks shapes, if it has run
            where = place(program, op_of_member[next(v for v in group if v.type.rank != group[0].type.rank)])
            raise ShardyError(f"ShardingGroupOps values must have the same shape for groupId: {group_id}", where=where)
        present = [s for v in group if (s := dataflow.get_sharding(v)) is not None]
        binding = [s for s in present if not (s.is_fully_open and s.is_fully_replicated)]
        differ = any(s is not binding[0] for s in binding[1:])
        if differ:
            different = ", ".join(map(str, dict.fromkeys(binding)))
            message = (
                f"sharding group {group_id} has members with different shardings: {different}; these stay, the group holds for the rest"
            )
            warnings.warn(ShardingGroupConflictWarning(message), stacklevel=2)
            group = tuple(_cut(value, binding[0].mesh) for value in group)
        elif log is not None:
            log += (Step.outside(v, s := dataflow.get_sharding(v), s, "member", op_of_member[v], tensors=group) for v in group)
        if binding and not differ:
            for value in group:
                holder = dataflow.shardable_value(value)
                if holder is not None and holder.sharding is not binding[0]:
                    if log is not None:
                        log.append(Step.outside(holder, holder.sharding, binding[0], "group", tensors=group, before=(binding[0],)))
                    holder.sharding = binding[0]
        groups.update(dict.fromkeys(group, group))
    return groups


def _cut(value: Value, mesh: object) -> Value:
    """Puts an open constraint after a value in place of its other uses."""
    sharding = TensorSharding.open(mesh, value.type.rank)  # pyright: ignore[reportArgumentType]
    constraint = Op("sdy.sharding_constraint", (value,), (value.type,), sharding=sharding)
    owner = value.owner
    if isinstance(owner, Op):
        assert owner.block is not None
        owner.block.insert(owner.block.ops.index(owner) + 1, constraint)
    else:
        owner.insert(0, constraint)
    value.replace_uses(constraint.result, keep=lambda op, _: op is constraint)
    return constraint.result
