"""Pairs donated inputs with outputs: by data flow, then by name, then by size."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from shardy_py.dialect.grouping import grouped


@dataclass(frozen=True, slots=True)
class DonatedBuffer:
    """A leaf of the arguments or of the result, as a device sees it."""

    index: int
    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    memory_kind: str = ""

    @property
    def elements(self) -> int:
        """Elements of a device's piece."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Pair:
    """A donated input and the output that reuses its memory."""

    input: int
    output: int
    reason: str


IS_RETURNED, UPDATED, SAME_NAME, SAME_PLACE, SAME_SIZE = (
    "it is this output",
    "the output is an update of it",
    "the names agree",
    "the places agree",
    "the sizes agree",
)
"""Grounds for a pair, the best first."""


def pairs(inputs: Sequence[DonatedBuffer], outputs: Sequence[DonatedBuffer], origins: Callable[[int], dict[int, int]]) -> list[Pair]:
    """Pairs as many inputs and outputs as sizes allow, in order of inputs.

    Pieces of the same shape and element type are paired first, then those of as many elements and bytes. Among candidates an input
    that is returned goes to that output, then to one that is computed from it position by position, then to one with the same end of
    its path, and so on; ties go by order.
    """
    paired: list[Pair] = []
    for key in (_exact, _roughly):
        paired_in, paired_out = {pair.input for pair in paired}, {pair.output for pair in paired}
        left_in = grouped((b for b in inputs if b.index not in paired_in), key)
        left_out = grouped((b for b in outputs if b.index not in paired_out), key)
        for group, candidates in left_in.items():
            if group in left_out:
                paired += _matched(candidates, left_out[group], origins)
    return sorted(paired, key=lambda pair: pair.input)


def _exact(buffer: DonatedBuffer) -> Hashable:
    return (buffer.shape, buffer.dtype, buffer.memory_kind)


def _roughly(buffer: DonatedBuffer) -> Hashable:
    return (buffer.elements, buffer.bytes, buffer.memory_kind)


def fits(a: DonatedBuffer, b: DonatedBuffer) -> bool:
    """Whether one buffer could reuse the memory of the other."""
    return _roughly(a) == _roughly(b)


class _Matching:
    """The unpaired inputs and outputs of one size."""

    def __init__(self, inputs: Sequence[DonatedBuffer], outputs: Sequence[DonatedBuffer]) -> None:
        self.inputs = {b.index: b for b in inputs}
        self.outputs = {b.index: b for b in outputs}
        self.pairs: list[Pair] = []

    def take(self, input: int, output: int, reason: str) -> None:
        """Pairs two that are both free."""
        if input in self.inputs and output in self.outputs:
            del self.inputs[input], self.outputs[output]
            self.pairs.append(Pair(input, output, reason))


def _matched(inputs: Sequence[DonatedBuffer], outputs: Sequence[DonatedBuffer], origins: Callable[[int], dict[int, int]]) -> list[Pair]:
    free = _Matching(inputs, outputs)
    candidates: list[tuple[tuple[int, ...], int, int]] = []
    for output in outputs:
        for index, steps in origins(output.index).items():
            if index in free.inputs:
                shared = len(same_end(free.inputs[index].names, output.names))
                candidates.append(((int(steps > 0), -shared, steps, index, output.index), index, output.index))
    for (updated, *_), index, output_index in sorted(candidates):
        free.take(index, output_index, UPDATED if updated else IS_RETURNED)
    _by_name(free, SAME_NAME, lambda tail: not all(part.isdigit() for part in tail))
    _by_name(free, SAME_PLACE, lambda tail: True)
    for index, output_index in zip(list(free.inputs), list(free.outputs)):
        free.take(index, output_index, SAME_SIZE)
    return free.pairs


def same_end(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    """The trailing components that two paths share."""
    count = 0
    for x, y in zip(reversed(a), reversed(b)):
        if x != y:
            break
        count += 1
    return a[len(a) - count :]


def _by_name(free: _Matching, reason: str, accept: Callable[[tuple[str, ...]], bool]) -> None:
    """Pairs leaves whose paths end in the same components, the longest ends first."""
    longest = max((len(b.names) for b in free.inputs.values()), default=0)
    for length in range(longest, 0, -1):
        ends: dict[tuple[str, ...], deque[int]] = defaultdict(deque)
        for output in free.outputs.values():
            if len(output.names) >= length:
                ends[output.names[-length:]].append(output.index)
        for buffer in list(free.inputs.values()):
            end = buffer.names[-length:]
            if len(end) == length and ends.get(end) and accept(end):
                free.take(buffer.index, ends[end].popleft(), reason)
