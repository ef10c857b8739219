"""Classes of corresponding dimensions in layers that are unrolled.

A class is known by its strategies, by the ops that it is in, and by the names of arguments there, numbers left out. Farther is not looked:
the first layer and the last have other surroundings than those between them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardy_py.ir import Block, Op, Program, Value
from shardy_py.partition.op import CHEAP, spec_of
from shardy_py.passes.dataflow import CASE, MANUAL_COMPUTATION, WHILE
from shardy_py.plan.trips import trip_count

Slots = tuple[tuple[int, ...], ...]
"""Per value of an op, the classes of its dimensions."""


LAYER = re.compile(r"(?<=[\[_])\d+")
"""The number of a layer in the name of an argument: `blocks[3]`, `['layer_3']`."""


def representatives(program: Program, classes: Mapping[Value | int, tuple[int, ...]], strategies: Sequence[object]) -> tuple[int, ...]:
    """Per class, the first one that is alike.

    Classes that meet in an op are not alike, whatever their colours: a value has no axis twice, and matrices that follow each other
    are best cut along different dimensions.
    """
    occurrences = Counter(_occurrences(program, classes))
    kinds: dict[object, int] = {}
    ops = [
        _Occurrence(kinds.setdefault((kind, _pattern(slots), count), len(kinds)), tuple(c for slot in slots for c in slot))
        for (kind, slots), count in occurrences.items()
    ]
    of_names: list[list[tuple[str, int]]] = [[] for _ in strategies]
    for argument in program.main.arguments:
        for dim, c in enumerate(classes[argument]):
            of_names[c].append((LAYER.sub("", argument.name or ""), dim))
    named = _numbered([(each, *sorted(names)) for each, names in zip(strategies, of_names)])
    colours = _refined(ops, named)
    meeting: set[int] = set()
    for op in ops:
        counts = Counter(colours[c] for c in dict.fromkeys(op.members))
        meeting.update(colour for colour, count in counts.items() if count > 1)
    # What is next to classes that meet is told apart too: the weights of a chain of layers.
    apart = [(name, c if colour in meeting else -1) for c, (name, colour) in enumerate(zip(named, colours))]
    first: dict[int, int] = {}
    return tuple(first.setdefault(colour, c) for c, colour in enumerate(_refined(ops, _numbered(apart))))


@dataclass(frozen=True, slots=True)
class _Occurrence:
    """An op, with the classes of the dimensions of its values."""

    kind: int
    members: tuple[int, ...]


def _refined(ops: Sequence[_Occurrence], colours: Sequence[int]) -> list[int]:
    """Refined colours of classes: equal only for classes in equal places of equal ops beside equal colours."""
    seen: list[list[tuple[int, int]]] = [[] for _ in colours]
    kinds = _numbered([(op.kind, *(colours[c] for c in op.members)) for op in ops])
    for kind, op in zip(kinds, ops):
        for place, c in enumerate(op.members):
            seen[c].append((kind, place))
    return _numbered([(colour, *sorted(at)) for colour, at in zip(colours, seen)])


def _numbered(keys: Sequence[object]) -> list[int]:
    """Per key, the number of its first appearance among distinct ones."""
    numbers: dict[object, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _pattern(slots: Slots) -> tuple[tuple[int, ...], ...]:
    """The partition of the dimensions of an op's values into classes."""
    numbers: dict[int, int] = {}
    return tuple(tuple(numbers.setdefault(c, len(numbers)) for c in slot) for slot in slots)


def _occurrences(program: Program, classes: Mapping[Value | int, tuple[int, ...]]) -> Iterator[tuple[object, Slots]]:
    """The ops of a program, each with the classes of its values, and its arguments and results."""
    main = program.main
    for argument in main.arguments:
        yield ("argument", argument.type), (classes[argument],)
    yield from _of_block(main.body, (), classes)
    for number, value in enumerate(main.body.terminator.operands):
        yield ("result", value.type), (classes[value], classes[number])


def _of_block(
    block: Block, trips: tuple[int | None, ...], classes: Mapping[Value | int, tuple[int, ...]]
) -> Iterator[tuple[object, Slots]]:
    for op in block.ops[:-1]:
        if op.name == MANUAL_COMPUTATION or not op.regions:
            types = tuple(v.type for v in (*op.operands, *op.results))
            key = (op.name, types) if op.regions or op.name in CHEAP else spec_of(op)  # whatever the number that a constant is
            yield (key, trips), tuple(classes[v] for v in (*op.operands, *op.results))
            continue
        inner = (*trips, trip_count(op)) if op.name == WHILE else trips
        for region in op.regions:
            yield from _of_block(region, inner, classes)
        for value, target in _handed_on(op):
            yield (op.name, value.type, trips), (classes[value], classes[target])


def _handed_on(op: Op) -> Iterator[tuple[Value, Value]]:
    """Pairs of values of an op with regions that the first hands on to the second."""
    if op.name == WHILE:
        yield from zip(op.operands, op.regions[-1].arguments)
    if op.name in (WHILE, CASE):
        for region in op.regions[op.name == WHILE :]:
            yield from zip(region.terminator.operands, op.results)
