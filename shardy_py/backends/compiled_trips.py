"""Trip counts of the loops of a compiled program whose text has none, as that of the compiler for TPUs.

A counted loop begins at a constant, adds a constant in each trip, and is compared with a constant. Each of these may be carried by the loop
unchanged, be a copy, or stand in a fusion; so values are followed to `carried + offset`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shardy_py.backends.compiled_ops import CompiledOp

Computation = Sequence[CompiledOp]
Constants = Mapping[int, int]
"""Element of the tuple that a loop carries -> its value, where that is the same integer in every trip."""

_COPIES = frozenset(("bitcast", "convert", "copy", "copy-done", "copy-start", "reshape"))
_INDEX = re.compile(r"\bindex=(\d+)")
_DIRECTION = re.compile(r"\bdirection=(\w+)")
_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE", "EQ": "EQ"}
_DEEPEST = 64
"""Ops between a value and what it comes from, at most: more is not a counter."""


@dataclass(frozen=True, slots=True)
class Carried:
    """An integer in terms of what a loop carries."""

    element: int | None
    offset: int


class _Values:
    """Integers in one computation."""

    def __init__(
        self,
        computation: Computation,
        find: Callable[[str], Computation],
        constants: Constants,
        parameters: Sequence[Carried | None] | None = None,
    ) -> None:
        self.ops = {op.name: op for op in computation}
        self.find = find
        self.constants = constants
        self.parameters = parameters

    def of(self, name: str, depth: int = 0) -> Carried | None:
        """The constant that an op computes; None where it is unknown."""
        op = self.ops.get(name)
        if op is None or depth > _DEEPEST:
            return None
        names = op.operand_names
        if op.opcode == "constant":
            return Carried(None, int(op.operands)) if re.fullmatch(r"-?\d+", op.operands) else None
        if op.opcode == "parameter":
            number = int(op.operands)
            return self.parameters[number] if self.parameters is not None and number < len(self.parameters) else None
        if op.opcode == "get-tuple-element":
            return self._element(op, depth)
        if op.opcode in _COPIES and names:
            return self.of(names[0], depth + 1)
        if op.opcode in ("add", "subtract"):
            a, b = (self.of(operand, depth + 1) for operand in names)
            return _sum(a, b if op.opcode == "add" or b is None else _negated(b))
        return self._called(op, None, depth) if op.opcode in ("call", "fusion") else None

    def _element(self, op: CompiledOp, depth: int) -> Carried | None:
        match, source = _INDEX.search(op.attributes), self.ops.get(op.operand_names[0])
        if match is None or source is None:
            return None
        index = int(match[1])
        if source.opcode == "parameter" and self.parameters is None:
            constant = self.constants.get(index)
            return Carried(index, 0) if constant is None else Carried(None, constant)
        if source.opcode == "tuple":
            return self.of(source.operand_names[index], depth + 1)
        return self._called(source, index, depth) if source.opcode in ("call", "fusion") else None

    def inside(self, op: CompiledOp, depth: int = 0) -> tuple[_Values, CompiledOp] | None:
        """The values of the computation that an op calls, and its root."""
        called = [name for role, name in op.called if role in ("calls", "to_apply")]
        body = self.find(called[0]) if called else ()
        root = next((inner for inner in body if inner.is_root), None)
        if root is None:
            return None
        return _Values(body, self.find, {}, [self.of(operand, depth + 1) for operand in op.operand_names]), root

    def _called(self, op: CompiledOp, index: int | None, depth: int) -> Carried | None:
        inner = self.inside(op, depth)
        if inner is None:
            return None
        values, root = inner
        if index is None:
            return values.of(root.name, depth + 1)
        return values.of(root.operand_names[index], depth + 1) if root.opcode == "tuple" else None


def _negated(value: Carried) -> Carried | None:
    return Carried(None, -value.offset) if value.element is None else None


def _sum(a: Carried | None, b: Carried | None) -> Carried | None:
    if a is None or b is None or (a.element is not None and b.element is not None):
        return None
    return Carried(b.element if a.element is None else a.element, a.offset + b.offset)


def loop_constants(loop: CompiledOp, around: Computation, find: Callable[[str], Computation], constants: Constants) -> dict[int, int]:
    """The integers that a loop carries unchanged."""
    first = _carried_tuple(loop, around)
    body = find(dict(loop.called).get("body", ""))
    values, last = _Values(around, find, constants), next((op for op in body if op.is_root), None)
    if first is None or last is None or last.opcode != "tuple":
        return {}
    inner = _Values(body, find, {})
    steady = [i for i, name in enumerate(last.operand_names) if inner.of(name) == Carried(i, 0)]
    initial = {i: values.of(first[i]) for i in steady if i < len(first)}
    return {i: value.offset for i, value in initial.items() if value is not None and value.element is None}


def _carried_tuple(loop: CompiledOp, around: Computation) -> list[str] | None:
    """The ops that make the elements with which a loop begins."""
    names = loop.operand_names
    source = next((op for op in around if op.name in names), None)
    return source.operand_names if source is not None and source.opcode == "tuple" else None


def trips_of(loop: CompiledOp, around: Computation, find: Callable[[str], Computation], constants: Constants) -> int | None:
    """Trip count of a loop; None if it depends on data, or cannot be derived from the text."""
    roles, first = dict(loop.called), _carried_tuple(loop, around)
    condition, body = find(roles.get("condition", "")), find(roles.get("body", ""))
    test = next((op for op in condition if op.is_root), None)
    last = next((op for op in body if op.is_root), None)
    if first is None or test is None or last is None or last.opcode != "tuple":
        return None
    steady = loop_constants(loop, around, find, constants)
    values = _Values(condition, find, steady)
    if test.opcode == "fusion" and (inner := values.inside(test)) is not None:
        values, test = inner
    direction = _DIRECTION.search(test.attributes)
    if test.opcode != "compare" or direction is None:
        return None
    counter, bound = (values.of(name) for name in test.operand_names)
    relation = direction[1]
    if counter is None or bound is None:
        return None
    if counter.element is None:
        counter, bound, relation = bound, counter, _MIRRORED[relation]
    if counter.element is None or bound.element is not None or counter.element >= min(len(first), len(last.operand_names)):
        return None
    initial = _Values(around, find, constants).of(first[counter.element])
    step = _Values(body, find, steady).of(last.operand_names[counter.element])
    if initial is None or initial.element is not None or step is None or step.element != counter.element:
        return None
    return _count(initial.offset + counter.offset, step.offset, bound.offset, relation)


def _count(start: int, step: int, bound: int, relation: str) -> int | None:
    """Number of terms of `start, start + step, ...` before the first that is not in a relation to a bound."""
    if relation in ("GT", "GE"):
        start, step, bound, relation = -start, -step, -bound, _MIRRORED[relation]
    if relation == "LE":
        bound, relation = bound + 1, "LT"
    if relation == "LT":
        return 0 if start >= bound else -(-(bound - start) // step) if step > 0 else None
    if relation == "NE" and step and (bound - start) % step == 0 and (bound - start) // step >= 0:
        return (bound - start) // step
    return None
