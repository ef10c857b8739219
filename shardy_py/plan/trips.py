"""Trip counts of loops, where the program states them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Self

from shardy_py.ir import Block, Op, Value
from shardy_py.passes.dataflow import WHILE

_COUNTS_UP = ("lt", "scan")
"""Primitives whose comparison ends a loop when the counter is no longer less than the limit."""


def trip_count(loop: Op) -> int | None:
    """Trips of a `stablehlo.while` that counts up by one from a constant to a constant, as that of a scan does; None of another."""
    condition, body = loop.regions
    check = condition.terminator.operands[0].defining_op
    if check is None or check.name != "stablehlo.compare" or check.primitive not in _COUNTS_UP:
        return None
    counter, limit = check.operands
    if counter.owner is not condition:
        return None
    i = counter.index
    step = body.terminator.operands[i].defining_op
    if step is None or step.name != "stablehlo.add" or body.arguments[i] not in step.operands:
        return None
    added = [_constant(operand, loop) for operand in step.operands if operand is not body.arguments[i]]
    start, end = _constant(loop.operands[i], loop), _constant(limit, loop)
    return None if added != [1] or start is None or end is None else max(0, end - start)


def with_trips(block: Block, trips: int | None = 1, depth: int = 0) -> Iterator[tuple[Op, int | None, int]]:
    """Every op of a block and its regions, its executions (None where unknown), and the number of regions around it."""
    for op in block.ops:
        yield op, trips, depth
        if op.regions:
            count = trip_count(op) if op.name == WHILE else 1
            within = None if count is None or trips is None else count * trips
            for region in op.regions:
                yield from with_trips(region, within, depth + 1)


def _constant(value: Value, loop: Op) -> int | None:
    """Constant-folds a scalar, looking through loop-invariant carries."""
    for region in loop.regions:
        if value.owner is region:
            carried = loop.regions[1].terminator.operands[value.index] is loop.regions[1].arguments[value.index]
            return _constant(loop.operands[value.index], loop) if carried else None
    op = value.defining_op
    if op is None or op.name != "sdy.constant" or value.type.rank:
        return None
    try:
        return int(op.attributes["value"])
    except (KeyError, TypeError, ValueError):
        return None


class Trips:
    """A block, or the body of a call, which belongs to the block around it."""

    def __init__(self, trips: int | None, changing: set[Value] | None, around: Self | None = None) -> None:
        self.trips = trips
        self.changing = changing
        self.around: Self | None = around

    def outward(self) -> Iterator[Self]:
        """This scope and those around it, the innermost first."""
        scope: Self | None = self
        while scope is not None:
            yield scope
            scope = scope.around

    def hoisted(self) -> Iterator[Self]:
        """This scope and those around it that code can be moved to: out of loops, not out of branches."""
        for scope in self.outward():
            yield scope
            if scope.changing is None:
                return

    def hoist_scope(self, value: Value) -> Self:
        """The outermost scope in which a value does not change."""
        for scope in self.hoisted():
            if scope.changing is None or value in scope.changing or scope.around is None:
                return scope
        raise AssertionError("the outermost scope is no loop")

    def place(self, is_home: Callable[[Self], bool]) -> Self:
        """The outermost scope in which ops on a value can stand."""
        place = self
        for place in self.hoisted():
            if is_home(place):
                break
        return place

    def spread(self, op: Op, origin: Mapping[Value, Value]) -> None:
        """Marks the results of an op as changing where its operands change."""
        for scope in self.outward():
            inner = op.walk() if op.regions else (op,)
            if scope.changing and any(origin.get(v, v) in scope.changing for each in inner for v in each.operands):
                scope.changing.update(op.results)
                return
