"""Carries the strategies of some classes on to others along the factors of ops: what a template of arguments makes of a whole program."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from shardy_py.dialect.axis import Axes
from shardy_py.ir import Op, Program, Value
from shardy_py.passes.dataflow import WHILE
from shardy_py.planner.space import SLICE, Space
from shardy_py.rules import rule_of
from shardy_py.rules.traits import ELEMENTWISE

Neighbours = Sequence[Sequence[int]]
"""Per class, the classes that an op with one factor along both reads or makes."""


def neighbours_of(program: Program, space: Space) -> Neighbours:
    """The classes next to each."""
    neighbours: list[dict[int, None]] = [{} for _ in space.strategies]
    end = program.main.body.terminator
    results = [tuple(zip(space.classes[value], space.classes[number])) for number, value in enumerate(end.operands)]
    for pairs in (*(_pairs(op, space) for op in program.walk()), *results):
        for one, other in pairs:
            if one != other:
                neighbours[one][other] = neighbours[other][one] = None
    return tuple(map(tuple, neighbours))


def _pairs(op: Op, space: Space) -> Iterator[tuple[int, int]]:
    """Pairs of different classes that share a factor of an op, of a dimension that it merges or splits the first one."""
    if op.name == WHILE:
        for operand, result, end in zip(op.operands, op.results, op.regions[1].terminator.operands):
            yield from zip(space.classes[operand], space.classes[result])
            yield from zip(space.classes[end], space.classes[result])
    rule = None if op.regions else rule_of(op)
    if rule is None:
        return
    first: dict[int, int] = {}
    for value, mapping in zip((*op.operands, *op.results), rule.mappings):
        for c, factors in zip(space.classes[value], mapping):
            if factors:
                yield first.setdefault(factors[0], c), c


def computes(value: Value) -> bool:
    """Whether a value, or what ops of one operand make of it, as in another precision, is read by more than elementwise ops."""
    waiting = [value]
    while waiting:
        for op, _ in waiting.pop().uses:
            if op.name not in ELEMENTWISE:
                return True
            if len(op.operands) == 1:
                waiting.append(op.result)
    return False


def copies_of(arguments: Iterable[Value], space: Space) -> tuple[int, ...]:
    """The classes of what a step computes with of some arguments, such as a layer of a stack, or a value in another precision."""
    waiting, copies = list(arguments), dict[int, None]()
    own = {c for argument in waiting for c in space.classes[argument]}
    while waiting:
        for op, number in waiting.pop().uses:
            if number == 0 and (len(op.operands) == 1 or op.name == SLICE) and len(op.results) == 1 and computes(op.result):
                copies.update(dict.fromkeys(space.classes[op.result]))
                waiting.append(op.result)
    return tuple(c for c in copies if c not in own)


def followed(
    space: Space,
    neighbours: Neighbours,
    strategies: Mapping[int, int],
    order: Iterable[int],
    whole: Iterable[int],
    rest: Iterable[int],
    *,
    partly: bool = False,
) -> tuple[int, ...]:
    """The strategy of each class where some are stated and the others follow, as far as no value has an axis twice.

    Args:
        order: Classes whose strategies are carried on, the first as far as they go before the next.
        whole: Classes that stay whole where none of these reach them.
    """
    chosen = [strategies.get(c, 0 if len(each) == 1 else -1) for c, each in enumerate(space.strategies)]

    def left(c: int, axes: Axes) -> Axes:
        others = {other for value, _ in space.members[c] for other in space.classes[value]} - {c}
        taken = {axis for other in others if chosen[other] >= 0 for axis in space.strategies[other][chosen[other]]}
        free = tuple(axis for axis in axes if axis not in taken)
        return free if partly or free == axes else ()

    def carry(origin: int) -> None:
        waiting = deque((origin,))
        while waiting:
            c = waiting.popleft()
            axes = space.strategies[c][chosen[c]] if chosen[c] >= 0 else ()
            for other in neighbours[c] if axes else ():
                if chosen[other] < 0 and (free := left(other, axes)) and free in space.strategies[other]:
                    chosen[other] = space.strategies[other].index(free)
                    waiting.append(other)

    for c in order:
        carry(c)
    for c in whole:
        chosen[c] = max(chosen[c], 0)
    for c in rest:
        carry(c)
    return tuple(max(strategy, 0) for strategy in chosen)
