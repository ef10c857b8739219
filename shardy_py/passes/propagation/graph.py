"""The nodes of a propagation: ops with a rule, edges and barriers, with the values that hold their shardings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

from shardy_py.dialect import OpShardingRule, PropagationDirection, TensorSharding
from shardy_py.errors import ShardyError
from shardy_py.ir import Block, Function, Op, Program, TensorType, Value
from shardy_py.passes import dataflow
from shardy_py.passes.propagation.compatible import BACKWARD, BOTH, NONE
from shardy_py.passes.propagation.log import FunctionResult
from shardy_py.passes.walk import CALL, functions_by_name, ops_of, place
from shardy_py.rules import identity_rule, is_elementwise, is_pure, pass_through_direction, rule_for

Holder = Value | FunctionResult
EDGES = frozenset({"sdy.data_flow_edge", "sdy.func_data_flow_edge"})
UNERASABLE_OPS = EDGES | {"sdy.sharding_constraint"}
"""Ops that stay even when nobody uses their result."""


@dataclass(slots=True, eq=False)
class Node:
    """An op in the propagation graph.

    Attributes:
        stages: Directions per op priority; None where the node never propagates.
        waits_for_single_use: At op priority 0 it needs operands without other uses.
        transform: For edges of manual computations: sharding as stored -> as the edge compares it, and back.
        settled: The directions along which its last step changed nothing, as long as no sharding of its tensors has changed since.
        is_edge: Whether it is a data-flow edge or a barrier; these are never conservative.
    """

    op: Op | None
    rule: OpShardingRule | None
    tensors: tuple[Holder, ...] = ()
    stages: tuple[Directions | None, ...] | None = None
    all_directions: Directions | None = None
    elementwise: bool = False
    waits_for_single_use: bool = False
    transform: tuple[Callable[[TensorSharding], TensorSharding], Callable[[TensorSharding], TensorSharding]] | None = None
    removable: bool = False
    queued: bool = False
    erased: bool = False
    settled: Directions | None = None
    is_edge: bool = False


def _is_manual(owner: Value) -> bool:
    op = owner.owner.parent if isinstance(owner.owner, Block) else owner.owner
    return isinstance(op, Op) and op.name == dataflow.MANUAL_COMPUTATION


@lru_cache(maxsize=1 << 16)
def _connects(rule: OpShardingRule) -> bool:
    seen = Counter(f for mapping in rule.operand_mappings + rule.result_mappings for dim in mapping for f in dim)
    return any(n > 1 for n in seen.values())


class PropagationGraph:
    """All nodes of a program in pre-order, and whom a change of a value concerns."""

    def __init__(self, program: Program, conservative: bool = False) -> None:
        self.program = program
        self.nodes: list[Node] = []
        self.node_of: dict[Op, Node] = {}
        self._concerned: dict[Holder, list[Node]] = {}
        self._readers: dict[Holder, list[Node]] = {}
        self._holders: dict[Value, Value] = {}
        self._leaves: list[Op] = []
        self._calls: dict[str, list[Op]] = {}
        self._functions: dict[str, Function] = {}
        self.main = program.main if program.functions else None
        self.results = [FunctionResult(i, s) for i, s in enumerate(self.main.result_shardings if self.main else ())]
        if len(program.functions) > 1:
            self._functions = functions_by_name(program)
            for call in ops_of(program, (CALL,)):
                self._calls.setdefault(call.attributes["callee"], []).append(call)
        for function in program.functions:
            for op in function.body.walk():
                self._add(op, conservative)
        self.result_nodes = self._result_nodes()

    def _add(self, op: Op, conservative: bool) -> None:
        name = op.name
        if name in EDGES:
            node = self._edge(op)
        elif name == "sdy.propagation_barrier":
            node = self._barrier(op)
        else:
            if op.rule_decided and not (conservative and op.rule is not None and not op.rule.is_custom):
                rule = op.rule
            else:
                rule = op.rule = rule_for(op, conservative=conservative, semantics=self.program.semantics)
                op.rule_decided = True
            if rule is None or not _connects(rule):
                if not op.regions and not (op.operands and op.results):
                    if op.results:
                        self._leaves.append(op)
                    return
                node = Node(op, None)
            else:
                tensors = tuple([self.holder(v) for v in (*op.operands, *op.results)])
                if None in tensors:
                    node = Node(op, None)
                else:
                    node = Node(op, rule, tensors)  # pyright: ignore[reportArgumentType]
                    early = int(pass_through_direction(op))
                    node.elementwise = is_elementwise(name) or (name == "stablehlo.bitcast_convert" and early != 0)
                    node.stages = schedule(rule, early, name == "stablehlo.broadcast_in_dim")
                    node.all_directions = everything(rule)
                    node.waits_for_single_use = early != 0
        node.removable = name not in UNERASABLE_OPS and is_pure(op)
        readers = self._readers
        for holder in node.tensors:
            readers.setdefault(holder, []).append(node)
        self.nodes.append(node)
        self.node_of[op] = node

    def _edge(self, op: Op) -> Node:
        result = op.results[0]
        owner = op.operands[0]
        sources = [user.operands[i] for user, i in self._sources(op, owner)]
        holders = [holder for source in sources if (holder := self.holder(source)) is not None]
        if not isinstance(result.type, TensorType) or result.type.rank == 0:
            return Node(op, None)
        rule = identity_rule(result.type.shape, len(holders))
        node = Node(op, rule, (*holders, result))
        node.stages = schedule(rule, int(pass_through_direction(op)), False)
        node.is_edge = True
        node.all_directions = everything(rule)
        if _is_manual(owner):
            node.transform = (partial(dataflow.before_edge, owner), partial(dataflow.after_edge, owner))  # pyright: ignore[reportAttributeAccessIssue]
        return node

    def _sources(self, edge: Op, owner: Value) -> list[tuple[Op, int]]:
        """The `(op, operand number)` that flow into an edge; for a function's argument, the operands of all its calls."""
        if edge.name == dataflow.EDGE:
            if dataflow.owner_of(owner) is not owner:
                raise ShardyError(
                    "expected input of sdy.data_flow_edge to own an edge",
                    where=place(self.program, edge),
                    why="only results of loops, branches, barriers and computations, and arguments of these, own one",
                    fix="remove the sdy.data_flow_edge, or run sdy-add-data-flow-edges on a module without edges",
                )
            return dataflow.sources(owner)
        if isinstance(owner.owner, Op):
            callee = self._functions.get(owner.owner.attributes.get("callee", ""))
            return [(callee.body.terminator, owner.index)] if callee is not None and callee.body.ops else []
        function = owner.owner.parent
        return [(call, owner.index) for call in self._calls.get(function.name, ())] if isinstance(function, Function) else []

    def _barrier(self, op: Op) -> Node:
        result = op.results[0]
        holder = self.holder(op.operands[0])
        if not isinstance(result.type, TensorType) or result.type.rank == 0 or holder is None:
            return Node(op, None)
        rule = identity_rule(result.type.shape)
        node = Node(op, rule, (holder, result))
        direction = int(op.attributes.get("allowed_direction", PropagationDirection.NONE))
        if direction:
            directions = (direction,) * result.type.rank
            node.stages = (directions,) * 5
            node.all_directions = directions
        node.elementwise = True
        node.is_edge = True
        return node

    def _result_nodes(self) -> list[Node]:
        nodes: list[Node] = []
        if self.main is None or not self.main.body.ops:  # a declaration
            return nodes
        for value, slot in zip(self.main.body.terminator.operands, self.results):  # an unregistered op need not return all results
            holder = self.holder(value)
            if holder is None or not isinstance(value.type, TensorType) or value.type.rank == 0:
                continue
            rule = identity_rule(value.type.shape)
            node = Node(None, rule, (holder, slot))
            node.all_directions = everything(rule)
            nodes.append(node)
        return nodes

    def holder(self, value: Value) -> Value | None:
        """The value whose `sharding` stands for this one; None where none can."""
        owner = value.owner
        if type(owner) is Op and owner.name not in dataflow.DATA_FLOW_OPS:
            return value
        holder = self._holders.get(value)
        if holder is None:
            holder = dataflow.shardable_value(value)
            if holder is not None:
                self._holders[value] = holder
        return holder

    def unsettle(self, holder: Holder) -> None:
        """Marks the nodes of a value whose sharding has changed, so that their next visit computes them even without a notification."""
        for node in self._readers.get(holder, ()):
            node.settled = None

    def unsettle_all(self) -> None:
        """Has every node computed when it is next visited."""
        for node in self.nodes:
            node.settled = None

    def concerned(self, value: Holder) -> list[Node]:
        """The nodes to visit again when a value's sharding changes, in the order in which they are pushed.

        As `notifyShardingModified` of the reference: users of an edge's other targets, the defining op, then the users,
        latest use first, so that on a stack the earliest comes first. It is told of what holds the sharding: an edge, where
        there is one.
        """
        cached = self._concerned.get(value)
        if cached is not None:
            return cached
        pushed: list[Node] = []
        if isinstance(value, Value):
            op = value.defining_op
            if op is not None and op.name in EDGES:
                for target in dataflow.other_targets(op.operands[0]):
                    self._push_users(target, pushed)
            if op is not None:
                if (node := self.node_of.get(op)) is not None:
                    pushed.append(node)
            self._push_users(value, pushed)
        self._concerned[value] = pushed
        return pushed

    def _push_users(self, value: Value, pushed: list[Node]) -> None:
        """Adds the nodes of the users of a value, the latest use first; calls and returns come behind the users on their other side."""
        crossed = {value}  # functions that return an argument make rings of values
        stack: list[Value | tuple[Op, int] | Op] = [value]
        while stack:
            entry = stack.pop()
            if isinstance(entry, Value):
                stack += entry.uses
                continue
            if isinstance(entry, tuple):
                op, i = entry
                # an edge that a block argument owns is not told of its operand's change, only one that a result owns
                owner = None if op.name in dataflow.COMPUTATIONS else dataflow.owner_fed_by(op, i)
                edge = None if owner is None else dataflow.edge_of_owner(owner)
                entry = op if edge is None else edge
                others = self._across_call(op, i) if self._calls and op.name in (CALL, "func.return") else []
                others = [other for other in others if other not in crossed]
                if others:
                    crossed.update(others)
                    stack += [entry, *reversed(others)]
                    continue
            node = self.node_of.get(entry)
            if node is not None:
                pushed.append(node)

    def _across_call(self, op: Op, i: int) -> list[Value]:
        """The values that an operand of a call or of a function's return stands for on the other side: an argument, or results of calls."""
        if op.name == CALL:
            callee = self._functions.get(op.attributes["callee"])
            return [] if callee is None else [callee.arguments[i]]
        function = op.block.parent if op.block is not None else None
        return [call.results[i] for call in self._calls.get(function.name, ())] if isinstance(function, Function) else []

    def erase(self, node: Node) -> list[Node]:
        """Erases a dead op; returns the nodes of those operands that may have become dead, as MLIR's driver pushes them."""
        assert node.op is not None
        maybe_dead: list[Node] = []
        self._erase_tree(node.op, maybe_dead)
        return maybe_dead

    def _erase_tree(self, op: Op, maybe_dead: list[Node]) -> None:
        for region in op.regions:
            for nested in reversed(region.ops):
                nested_node = self.node_of.get(nested)
                if nested_node is None or not nested_node.erased:
                    self._erase_tree(nested, maybe_dead)
        for value in op.operands:
            definition = value.defining_op
            if definition is None:
                continue
            others = {id(user): user for user, _ in value.uses if user is not op}
            if len(others) <= 1 and (definition_node := self.node_of.get(definition)) is not None:
                maybe_dead.append(definition_node)
        for i, operand in enumerate(op.operands):
            del operand.uses[op, i]
        node = self.node_of.get(op)
        if node is not None:
            node.erased = True

    def sweep(self) -> None:
        """Takes erased ops out of their blocks."""
        erased = {node.op for node in self.nodes if node.erased}
        erased.update(op for op in self._leaves if not any(result.uses for result in op.results) and is_pure(op))
        if erased:
            for function in self.program.functions:
                _sweep(function.body, erased)


def _sweep(block: Block, erased: set[Op | None]) -> None:
    remaining = [op for op in block.ops if op not in erased]
    if len(remaining) != len(block.ops):
        for op in block.ops:
            if op in erased:
                op.block = None
        block.ops = remaining
    for op in remaining:
        for region in op.regions:
            _sweep(region, erased)


STAGES = 5
Directions = tuple[int, ...]


@lru_cache(maxsize=1 << 16)
def schedule(rule: OpShardingRule, early: int, broadcast: bool) -> tuple[Directions | None, ...]:
    """Directions per factor at each of the five stages; None where none may propagate. A broadcast only goes backward until the last."""
    late = BACKWARD if broadcast else BOTH
    waiting = rule.reduction + rule.need_replication + rule.permutation
    stages: list[Directions | None] = []
    for stage in range(STAGES):
        directions: list[int] = []
        for f in range(len(rule.factor_sizes)):
            direction = early
            if stage >= 2 and f not in waiting:
                direction |= late
            if stage >= 3:
                direction |= late
            if stage >= 4:
                direction = BOTH
            directions.append(NONE if f in rule.blocked_propagation else direction)
        stages.append(tuple(directions) if any(directions) else None)
        if len(stages) > 1 and stages[-1] == stages[-2]:
            stages[-1] = stages[-2]  # one object, by which the worklist knows a stage that asks an op for nothing new
    return tuple(stages)


@lru_cache(maxsize=1 << 16)
def everything(rule: OpShardingRule) -> Directions:
    """All factors in both directions, as without op priorities."""
    return tuple(NONE if f in rule.blocked_propagation else BOTH for f in range(len(rule.factor_sizes)))
