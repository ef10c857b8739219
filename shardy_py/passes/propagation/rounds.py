"""What all propagation passes run: user priorities as rounds, each of which runs the worklist to its end."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar, get_args

from shardy_py.dialect import AxisRef, DimensionSharding, Mesh, TensorSharding
from shardy_py.errors import ShardyError
from shardy_py.ir import Op, OpaqueType, Program, Value
from shardy_py.ir.type_text import type_text
from shardy_py.passes import dataflow
from shardy_py.passes.base import CONSERVATIVE, KEEP_SHARDING_RULES, PROPAGATION_EDGES, SHARDING_ORIGINS, UNUSED, Pass, option
from shardy_py.passes.export.close_shardings import DropShardingRules
from shardy_py.passes.propagation.graph import STAGES, Holder, Node, PropagationGraph
from shardy_py.passes.propagation.log import Log, LogStep
from shardy_py.passes.propagation.step import FactorStrategy, StepTable, Strategy, Update, step_table
from shardy_py.passes.walk import blocks_of, ops_of, place

STRATEGIES = get_args(Strategy)
STRATEGY = "how conflicts are settled"
OP_PRIORITY = "propagate through ops that move no data first"


@dataclass(frozen=True, kw_only=True)
class PropagationPass(Pass):
    """Propagates, then drops the rules that it attached, unless an option keeps them.

    The debug attributes are written from the log, by `opt/debug_attributes`.
    """

    keep_sharding_rules: bool = option(False, KEEP_SHARDING_RULES)
    module_dump_directory: str = option("", UNUSED)
    conservative_propagation: bool = option(False, CONSERVATIVE)
    debug_sharding_origins: bool = option(False, SHARDING_ORIGINS)
    debug_propagation_edge_sharding: bool = option(False, PROPAGATION_EDGES)
    propagation_strategy: Strategy = "basic"
    run_op_priority_propagation: bool = False
    settled: bool = False
    by_user_priority: ClassVar[bool] = False

    def run(self, program: Program, log: Log | None = None) -> None:
        """Lets sharding groups agree, runs a round per user priority, and writes results back; see `schedule` for op priority."""
        check_static_shapes(program)
        with shardings_on_values(program):
            groups = sharding_groups(program, log)
            propagation = Propagation(program, groups=groups, conservative=self.conservative_propagation, settled=self.settled, log=log)
            holders = list(_holders(propagation))
            if log is not None:
                log += [LogStep(holder, holder.sharding, holder.sharding, "annotation") for holder in holders]
            references = _take_priorities(program, holders, log) if self.by_user_priority else {}
            propagation.run(self.propagation_strategy, op_priority=self.run_op_priority_propagation)
            for priority in sorted(references):
                propagation.user_priority = priority
                for holder, original in references[priority]:
                    _restore(holder, original, priority, log)
                propagation.run(self.propagation_strategy, op_priority=self.run_op_priority_propagation)
            if propagation.graph.main is not None:
                propagation.graph.main.result_shardings = [slot.sharding for slot in propagation.graph.results]
            propagation.graph.sweep()
        if not self.keep_sharding_rules:
            DropShardingRules().run(program)


def _holders(propagation: Propagation) -> Iterator[Holder]:
    program = propagation.program
    for function in program.functions:
        yield from (v for v in function.arguments if dataflow.shardable_value(v) is v)
        if function is propagation.graph.main:
            yield from propagation.graph.results
        for op in function.body.walk():
            for result in op.results:
                if result.sharding is not None and dataflow.shardable_value(result) is result:
                    yield result
            if op.name in dataflow.COMPUTATIONS:
                yield from (v for v in op.regions[0].arguments if v.sharding is not None and dataflow.shardable_value(v) is v)


def _take_priorities(program: Program, holders: Sequence[Holder], log: Log | None) -> dict[int, list[tuple[Holder, TensorSharding]]]:
    """Keeps only what has priority 0; returns what is to be restored at each later priority, in program order."""
    references: dict[int, list[tuple[Holder, TensorSharding]]] = {}
    for holder in holders:
        original = holder.sharding
        if original is None or all(dim.priority is None for dim in original.dims):
            continue
        for priority in sorted({dim.priority for dim in original.dims if dim.priority}):
            references.setdefault(priority, []).append((holder, original))
        mesh = _mesh(program, original)
        dims = tuple(
            DimensionSharding((), is_closed=True) if dim.priority else DimensionSharding(dim.axes, dim.is_closed) for dim in original.dims
        )
        waiting = [axis for dim in original.dims if dim.priority for axis in dim.axes]
        replicated = (
            tuple(sorted((*original.replicated, *waiting), key=lambda axis: axis.sort_key(mesh))) if waiting else original.replicated
        )
        holder.sharding = TensorSharding(original.mesh, dims, replicated, original.unreduced)
        if log is not None and waiting:
            log.append(LogStep(holder, original, holder.sharding, "priority"))
    return references


def _restore(holder: Holder, original: TensorSharding, priority: int, log: Log | None) -> None:
    now = holder.sharding
    assert now is not None
    freed: list[AxisRef] = []
    dims = list(now.dims)
    for d, dim in enumerate(original.dims):
        if (dim.priority or 0) == priority:
            dims[d] = DimensionSharding(dim.axes, dim.is_closed)
            freed.extend(dim.axes)
    replicated = tuple(axis for axis in now.replicated if axis not in freed)
    holder.sharding = TensorSharding(now.mesh, tuple(dims), replicated, now.unreduced)
    if log is not None:
        log.append(LogStep(holder, now, holder.sharding, "priority", user_priority=priority))


def _mesh(program: Program, sharding: TensorSharding) -> Mesh:
    return sharding.mesh_in(program.meshes)


@contextmanager
def shardings_on_values(program: Program) -> Generator[None]:
    """Moves `in_shardings` and `out_shardings` of computations to their block arguments and results, and back afterwards.

    Nothing propagates between the inside and the outside of such a computation, but its block arguments and results take part
    like any other value. Where an edge stands on a value, the edge holds its sharding.
    """
    computations = [op for op in ops_of(program, dataflow.COMPUTATIONS) if not all(map(dataflow.edge_of_owner, dataflow.owners(op)))]
    for op in computations:
        for owner in dataflow.owners(op):
            if dataflow.edge_of_owner(owner) is None:
                owner.sharding = dataflow.get_sharding(owner)
    yield
    for op in computations:
        _to_attributes(op)


def _to_attributes(op: Op) -> None:
    for owner in dataflow.owners(op):
        if dataflow.edge_of_owner(owner) is not None:
            continue
        sharding, owner.sharding = owner.sharding, None
        if sharding is not None and sharding is not dataflow.get_sharding(owner):
            dataflow.set_sharding(owner, sharding)


def check_static_shapes(program: Program) -> None:
    """Checks the types of all results. Raises ShardyError if a result is a tensor without a static shape, or a tuple; in Shardy's words."""
    for block in blocks_of(program):
        for op in block.ops:
            for result in op.results:
                if type(result.type) is not OpaqueType:
                    continue
                text = type_text(result.type)
                tuples = text.startswith("tuple<")
                if not tuples and not text.startswith("tensor<"):
                    continue
                location = program.locate(op.location)
                raise ShardyError(
                    f"Shardy propagation doesn't support tuples: '{text}'"
                    if tuples
                    else f"Shardy propagation only supports ranked tensors with a static shape. type: '{text}'",
                    where=f"'{op.name}'" if location is None else f"{location.file}:{location.line}, '{op.name}'",
                )


class ShardingGroupConflictWarning(UserWarning):
    """Members of a sharding group come with different shardings."""


def sharding_groups(program: Program, log: list[LogStep] | None = None) -> dict[Holder, tuple[Value, ...]]:
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
            log += (LogStep(v, s := dataflow.get_sharding(v), s, "member", op_of_member[v], tensors=group) for v in group)
        if binding and not differ:
            for value in group:
                holder = dataflow.shardable_value(value)
                if holder is not None and holder.sharding is not binding[0]:
                    if log is not None:
                        log.append(LogStep(holder, holder.sharding, binding[0], "group", tensors=group, before=(binding[0],)))
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


_sharding = attrgetter("sharding")
_ALL = -1
_MOVES_NOTHING = 1
"""The last stage in which only elementwise ops, reshapes and slices propagate, see `schedule`."""
Shardings = tuple[TensorSharding | None, ...]


class Propagation:
    """A propagation over a program; if `settled`, until no op without data movement changes a sharding, where Shardy stops early."""

    def __init__(
        self,
        program: Program,
        *,
        groups: dict[Holder, tuple[Value, ...]] | None = None,
        conservative: bool = False,
        settled: bool = False,
        log: list[LogStep] | None = None,
    ) -> None:
        self.program = program
        self.graph = PropagationGraph(program, conservative)
        self.groups = groups or {}
        self.conservative = conservative
        self.settled = settled
        self.changes = 0
        self.log = log
        self.user_priority = 0

    def run(self, strategy: Strategy = "aggressive", *, op_priority: bool = True) -> None:
        """Propagates to the fixed point: function results, all ops, function results, at each op priority."""
        strategies: tuple[FactorStrategy, ...] = ("basic", "aggressive") if strategy == "basic-then-aggressive" else (strategy,)
        stages = range(STAGES) if op_priority else (_ALL,)
        settled_by: FactorStrategy | None = None  # of an earlier run, at another user priority, nothing is known
        for stage in stages:
            for factors in strategies:
                if factors is not settled_by:
                    self.graph.unsettle_all()
                    settled_by = factors
                self._stage(factors, stage)
        before = -1
        while self.settled and before != self.changes:
            before = self.changes
            self._stage(strategies[-1], stages[: _MOVES_NOTHING + 1][-1])

    def _stage(self, factors: FactorStrategy, stage: int) -> None:
        meshes = tuple(self.program.meshes.items())
        table, edge_table = step_table(meshes, factors, self.conservative), step_table(meshes, factors, False)
        self._function_results(edge_table, stage)
        self._worklist(table, edge_table, stage)
        self._function_results(edge_table, stage)

    def _function_results(self, table: StepTable, stage: int) -> None:
        for node in self.graph.result_nodes:
            self._visit(node, table, stage, None)

    def _worklist(self, table: StepTable, edge_table: StepTable, stage: int) -> None:
        stack = [node for node in reversed(self.graph.nodes) if not node.erased]
        for node in stack:
            node.queued = True
        while stack:
            node = stack.pop()
            node.queued = False
            if node.erased:
                continue
            if node.removable:
                op = node.op
                for result in op.results:  # pyright: ignore[reportOptionalMemberAccess]
                    if result.uses:
                        break
                else:
                    self._push(self.graph.erase(node), stack)
                    continue
            stages = node.stages
            if stages is None:
                continue
            directions = node.all_directions if stage < 0 else stages[stage]
            if directions is None or directions is node.settled:
                continue
            if stage == 0 and node.waits_for_single_use and not _single_uses(node):
                continue
            if not node.is_edge:
                shardings = tuple(map(_sharding, node.tensors))
                update = table[node.rule, directions, node.elementwise, shardings]  # pyright: ignore[reportArgumentType]
                if update:
                    self._apply(node, update, shardings, stage, stack)
                else:
                    node.settled = directions
            else:
                self._visit(node, edge_table, stage, stack)

    def _visit(self, node: Node, table: StepTable, stage: int, stack: list[Node] | None) -> None:
        """One step through an edge or a function result."""
        stages = node.stages
        directions = node.all_directions if stage < 0 or node.op is None or stages is None else stages[stage]
        if directions is None:
            return
        stored = tuple(map(_sharding, node.tensors))
        shardings = stored
        if node.transform is not None and stored[-1] is not None:
            shardings = (*stored[:-1], node.transform[0](stored[-1]))
        update = table[node.rule, directions, node.elementwise, shardings]  # pyright: ignore[reportArgumentType]
        self._apply(node, update, stored, stage, stack)

    def _apply(self, node: Node, update: Update, before: Shardings, stage: int, stack: list[Node] | None) -> None:
        log = self.log
        last = len(node.tensors) - 1
        for i, new_sharding in update:
            value = node.tensors[i]
            old = value.sharding
            new = new_sharding if node.transform is None or i != last else node.transform[1](new_sharding)
            if old is new:
                continue
            value.sharding = new
            self.graph.unsettle(value)
            self.changes += 1
            if old is None and isinstance(value, Value):
                self._open_siblings(value, new)
            if log is not None:
                log.append(LogStep(value, old, new, "propagate", node.op, node.tensors, before, self.user_priority, stage, i))
            if stack is not None:
                self._push(self.graph.concerned(node.tensors[i]), stack, node)
            if self.groups:
                for member in self.groups.get(value, ()):
                    holder = None if member is value else self.graph.holder(member)
                    if holder is not None and holder.sharding is not new_sharding:
                        if log is not None:
                            log.append(
                                LogStep(
                                    holder,
                                    holder.sharding,
                                    new_sharding,
                                    "group",
                                    tensors=(value,),
                                    before=(new_sharding,),
                                    user_priority=self.user_priority,
                                    op_priority=stage,
                                )
                            )
                        holder.sharding = new_sharding
                        self.graph.unsettle(holder)
                        if stack is not None:
                            self._push(self.graph.concerned(member), stack, node)

    def _open_siblings(self, value: Value, sharding: TensorSharding) -> None:
        """An op states the shardings of all its results or of none: the other results of a first one become fully open."""
        owner = value.owner
        if isinstance(owner, Op) and len(owner.results) > 1:
            for other in owner.results:
                if other.sharding is None:
                    other.sharding = TensorSharding.open(sharding.mesh, other.type.rank)
                    self.graph.unsettle(other)

    @staticmethod
    def _push(nodes: list[Node], stack: list[Node], current: Node | None = None) -> None:
        for node in nodes:
            if not node.queued and node is not current and not node.erased:
                node.queued = True
                stack.append(node)


def _single_uses(node: Node) -> bool:
    for operand in node.op.operands:  # pyright: ignore[reportOptionalMemberAccess]
        if operand.type.rank and len(operand.uses) != 1:
            return False
    return True


@dataclass(frozen=True, kw_only=True)
class UserPriorityPropagate(PropagationPass):
    """Propagates shardings by their priority."""

    name = "sdy-user-priority-propagate"
    by_user_priority: ClassVar[bool] = True

    propagation_strategy: Strategy = option("aggressive", STRATEGY, choices=STRATEGIES)
    run_op_priority_propagation: bool = option(True, OP_PRIORITY)
