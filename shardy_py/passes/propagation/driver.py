"""The worklist that runs propagation steps over a program until nothing changes.

The order is the reference's: a stack that starts as the program's ops from top to bottom; where a sharding changes, the ops it
concerns are pushed unless they are already on the stack. Shardings only grow, so this ends; where annotations conflict
the order decides, which is why it is kept exactly.
"""

from __future__ import annotations

from operator import attrgetter

from shardy_py.dialect import TensorSharding
from shardy_py.ir import Op, Program, Value
from shardy_py.passes.propagation.graph import Holder, Node, PropagationGraph
from shardy_py.passes.propagation.log import Step
from shardy_py.passes.propagation.schedule import STAGES
from shardy_py.passes.propagation.step import FactorStrategy, StepTable, Strategy, Update, step_table

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
        log: list[Step] | None = None,
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
        table = step_table(self.program.meshes, factors, self.conservative)
        edge_table = step_table(self.program.meshes, factors, False)
        self._function_results(edge_table, stage)
        self._worklist(table, edge_table, stage)
        self._function_results(edge_table, stage)

    def finish(self) -> None:
        """Writes the function results back and removes dead ops."""
        if self.graph.main is not None:
            self.graph.main.result_shardings = [slot.sharding for slot in self.graph.results]
        self.graph.sweep()

    def _function_results(self, table: StepTable, stage: int) -> None:
        for node in self.graph.result_nodes:
            self._visit(node, table, stage, None)

    def _worklist(self, table: StepTable, edge_table: StepTable, stage: int) -> None:
        stack = [node for node in reversed(self.graph.nodes) if not node.erased]
        for node in stack:
            node.queued = True
        steps = table.steps
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
                key = (node.rule, directions, node.elementwise, shardings)
                update = steps.get(key)
                if update is None:
                    update = table.compute(key, node.rule, directions, node.elementwise, shardings)  # pyright: ignore[reportArgumentType]
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
        key = (node.rule, directions, node.elementwise, shardings)
        update = table.steps.get(key)
        if update is None:
            update = table.compute(key, node.rule, directions, node.elementwise, shardings)  # pyright: ignore[reportArgumentType]
        if not update:
            return
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
                log.append(Step(value, old, new, node.op, node.tensors, before, "propagate", self.user_priority, stage, i))
            if stack is not None:
                self._push(self.graph.concerned(node.tensors[i]), stack, node)
            if self.groups:
                for member in self.groups.get(value, ()):
                    holder = None if member is value else self.graph.holder(member)
                    if holder is not None and holder.sharding is not new_sharding:
                        if log is not None:
                            log.append(
                                Step.outside(
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
