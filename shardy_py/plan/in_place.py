"""Inputs that an output can overwrite while it is computed: it depends on them position by position."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from shardy_py.ir import Op, Value
from shardy_py.partition.op import FORWARDING
from shardy_py.passes.dataflow import CASE, COMPUTATIONS, EDGE, WHILE
from shardy_py.rules.traits import is_elementwise

VALUES_AT_MOST = 512
"""Limit of values that are followed back from one output."""

FARTHER = 8
"""Ops beyond the nearest argument within which others are searched."""

BODIES = COMPUTATIONS | {CASE, "stablehlo.if", WHILE}
"""Ops whose results are those of their (last) body, or of one of their bodies."""

UPDATES = frozenset(("stablehlo.dynamic_update_slice", "stablehlo.scatter"))
"""Ops that replace a part of an operand."""


def origins(result: Value, arguments: Mapping[Value, int]) -> dict[int, int]:
    """The arguments that a value depends on position by position, with the number of ops between; 0 for the argument itself.

    Loops, branches and named computations are entered. Ops that change positions (products, sums, transposes) end the search.
    """
    distances: dict[int, int] = {}
    seen: set[Value] = set()
    queue = deque([(result, 0)])
    farthest = VALUES_AT_MOST
    while queue and len(seen) < VALUES_AT_MOST:
        value, steps = queue.popleft()
        if steps > farthest:
            break
        if value in seen:
            continue
        seen.add(value)
        number = arguments.get(value)
        if number is not None:
            distances[number] = steps
            farthest = min(farthest, steps + FARTHER)
            continue
        for earlier, more in _before(value):
            if more:
                queue.append((earlier, steps + more))
            else:
                queue.appendleft((earlier, steps))
    return distances


def _before(value: Value) -> Iterator[tuple[Value, int]]:
    """The values that one depends on position by position, each with the ops between."""
    op = value.defining_op
    k = value.index
    if op is None:
        yield from _into_body(value)
    elif op.name in FORWARDING or op.name == EDGE:
        yield op.operands[k], 0
    elif op.name in BODIES:
        loop = op.name == WHILE
        for body in list(op.regions)[1:] if loop else op.regions:
            yield body.terminator.operands[k], 0
        if loop:
            yield op.operands[k], 0
    elif op.name in UPDATES:
        yield op.operands[k], 1
    elif is_elementwise(op.name):
        for operand in op.operands:
            if operand.type.shape == value.type.shape:
                yield operand, 1


def _into_body(argument: Value) -> Iterator[tuple[Value, int]]:
    """The outer values that an argument of a body is bound to."""
    parent = getattr(argument.owner, "parent", None)
    if not isinstance(parent, Op) or parent.name not in BODIES or argument.index >= len(parent.operands):
        return
    yield parent.operands[argument.index], 0
    if parent.name == WHILE:
        yield list(parent.regions)[1].terminator.operands[argument.index], 0
