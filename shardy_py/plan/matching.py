"""Matches the values of two plans across edits of the code in between.

Inputs and outputs match by path. Intermediates match by a description of themselves and their surroundings: primitive, type, module,
function, and the ops that make their operands and use them, to a distance of two ops; then by ever coarser descriptions. Source lines and
numbers, which any edit moves, do not count. Among equals the order in the program decides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from difflib import SequenceMatcher
from typing import Any

from shardy_py.ir import Block, Op, Value
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.values import PlannedValue, typed

_ROUNDS = 2
"""Radius of the surroundings of a value, in ops."""

_MAX_ALIGNED = 64
"""Up to so many equals, changed shardings are distinguished from additions and removals."""


def partners(plan: PlanRecord, other: PlanRecord) -> list[int]:
    """For each of `plan.values` the number of its match among the values of the other plan; -1 where there is none.

    Runs in time linear in the number of ops.
    """
    matches = [-1] * len(plan.values)
    named = {(v.kind, v.path): number for number, v in enumerate(other.values) if v.kind != "intermediate"}
    for number, value in enumerate(plan.values):
        if value.kind != "intermediate":
            matches[number] = named.get((value.kind, value.path), -1)
    numbers: dict[Hashable, int] = {}
    first, second = _Descriptions(plan, numbers), _Descriptions(other, numbers)
    offset, other_offset = len(plan.inputs), len(other.inputs)
    left, right = list(range(len(first.planned))), list(range(len(second.planned)))
    for level in range(len(_LEVELS)):
        pairs = list(_pairs(level, first, second, left, right))
        for i, j in pairs:
            matches[offset + i] = other_offset + j
        matched, matched_there = {i for i, _ in pairs}, {j for _, j in pairs}
        left = [i for i in left if i not in matched]
        right = [j for j in right if j not in matched_there]
        if not left or not right:
            break
    return matches


class _Descriptions:
    """The intermediates of a plan with their descriptions; equal descriptions are equal numbers in both plans."""

    def __init__(self, plan: PlanRecord, numbers: dict[Hashable, int]) -> None:
        self.plan = plan
        self.numbers = numbers
        self.values = [value for value, _ in plan.intermediates]
        self.planned = [planned for _, planned in plan.intermediates]
        self.functions = self._functions()
        self.rounds = self._rounds()

    def number(self, key: Hashable) -> int:
        """The number of a description."""
        return self.numbers.setdefault(key, len(self.numbers))

    def _functions(self) -> list[str]:
        """The user's function in which each was written; inside a library's function, in which it was called."""
        names: dict[Op, str] = {}
        locate = self.plan.program.locate
        functions: list[str] = []
        for value in self.values:
            op = value.owner
            assert isinstance(op, Op)
            name = names.get(op)
            if name is None:
                where = locate(op.location)
                inherited = "" if op.parent is None else names.get(op.parent, "")
                name = names[op] = inherited if where is None else where.function
            functions.append(name)
        return functions

    def _rounds(self) -> list[dict[Op, int]]:
        """Descriptions of each op: alone, with its neighbours, and with theirs."""
        ops: dict[Op, int] = {}
        for value, planned, function in zip(self.values, self.planned, self.functions):
            op = value.owner
            assert isinstance(op, Op)
            if op not in ops:
                types = tuple(result.type for result in op.results)
                ops[op] = self.number((planned.primitive, types, planned.module, function, planned.depth))
        around = {op: self._around(op) for op in ops}
        rounds = [ops]
        for _ in range(_ROUNDS):
            last = rounds[-1]
            rounds.append({op: self._with_neighbours(last, op, *around[op]) for op in ops})
        return rounds

    def _with_neighbours(self, last: dict[Op, int], op: Op, before: Sequence[Any], after: Sequence[Any]) -> int:
        operands = tuple(last.get(b, -1) if isinstance(b, Op) else b for b in before)
        users = tuple(sorted(last.get(a, -1) if isinstance(a, Op) else a for a in after))
        return self.number((last[op], operands, users))

    def _around(self, op: Op) -> tuple[list[Any], list[Any]]:
        before = [self._maker(operand) for operand in op.operands]
        after = [self._user(user, i) for result in op.results for user, i in result.uses]
        return before, after

    def _maker(self, value: Value) -> Op | int:
        owner = value.owner
        if isinstance(owner, Op):
            return self.number(("constant", value.type)) if owner.name == "sdy.constant" else owner
        parent = owner.parent if isinstance(owner, Block) else None
        if isinstance(parent, Op):
            return self.number(("argument", parent.name, value.index))
        return self.number(("input", self.plan.inputs[value.index].path if value.index < len(self.plan.inputs) else value.index))

    def _user(self, op: Op, operand: int) -> Op | int:
        if op.name == "func.return":
            return self.number(("output", self.plan.outputs[operand].path if operand < len(self.plan.outputs) else operand))
        return self.number((op.name, operand)) if op.name.endswith(".return") else op


def _near(rounds: int) -> Callable[[_Descriptions, int], Hashable]:
    def key(plan: _Descriptions, i: int) -> Hashable:
        value = plan.values[i]
        op = value.owner
        assert isinstance(op, Op)
        return plan.rounds[rounds][op], value.index

    return key


def _by(*parts: Callable[[PlannedValue], Hashable], function: bool = False) -> Callable[[_Descriptions, int], Hashable]:
    def key(plan: _Descriptions, i: int) -> Hashable:
        description = tuple(part(plan.planned[i]) for part in parts)
        return (*description, plan.functions[i], plan.values[i].index) if function else (*description, plan.values[i].index)

    return key


_LEVELS: tuple[tuple[Callable[[_Descriptions, int], Hashable], bool], ...] = (
    (_near(2), False),
    (_near(1), False),
    (_near(0), True),
    (_by(lambda v: v.primitive, lambda v: v.type, lambda v: v.module), True),
    (_by(lambda v: v.primitive, lambda v: v.type, function=True), True),
    (_by(lambda v: v.primitive, lambda v: v.module, lambda v: v.type.rank, function=True), True),
)
"""Descriptions that values match by, finest first; and whether one suffices where the plans have different numbers of equals."""


def _pairs(level: int, first: _Descriptions, second: _Descriptions, left: Sequence[int], right: Sequence[int]) -> list[tuple[int, int]]:
    key, enough = _LEVELS[level]
    groups: dict[Hashable, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for i in left:
        groups[key(first, i)][0].append(i)
    for j in right:
        groups[key(second, j)][1].append(j)
    pairs: list[tuple[int, int]] = []
    for of_first, of_second in groups.values():
        if len(of_first) == len(of_second):
            pairs += zip(of_first, of_second)
        elif enough and of_first and of_second:
            pairs += _aligned(first, second, of_first, of_second)
    return pairs


def _aligned(first: _Descriptions, second: _Descriptions, of_first: list[int], of_second: list[int]) -> list[tuple[int, int]]:
    """Pairs equals of which one plan has more; equal shardings first."""
    a = [typed(first.planned[i].type, first.planned[i].sharding) for i in of_first]
    b = [typed(second.planned[j].type, second.planned[j].sharding) for j in of_second]
    if len(a) > _MAX_ALIGNED or len(b) > _MAX_ALIGNED:
        return list(zip(of_first, of_second))
    pairs: list[tuple[int, int]] = []
    i = j = 0
    for block in SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks():
        pairs += zip(of_first[i : block.a], of_second[j : block.b])
        pairs += zip(of_first[block.a : block.a + block.size], of_second[block.b : block.b + block.size])
        i, j = block.a + block.size, block.b + block.size
    return pairs
