"""Trip counts of loops, where the program states them."""

from __future__ import annotations

from collections.abc import Iterator

from shardy_py.ir import Block, Op, Value
from shardy_py.passes.dataflow import WHILE

_COUNTS_UP = ("lt", "scan")
"""Primitives whose comparison ends a loop when the counter is no longer less than the limit."""


def trip_count(loop: Op) -> int | None:
    """Trips of a `stablehlo.while` that counts up by one from a constant to a constant, as in a scan; None for any other."""
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
