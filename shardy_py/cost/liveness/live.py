"""Lifetimes of the buffers of a device's program, and the bytes that are alive at each step.

Ops run in program order; on CPUs each as soon as its operands are there, in the order in which they get ready, as XLA does to keep cores
busy. Results are written over operands of their size that are read for the last time, position by position; what a loop carries lies in one
place where the next value is made after the last read of the one before; so do donated arguments and their results. Temporaries lie in
results that are not written yet.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shardy_py.cost.liveness.placement import host_values, passed_on
from shardy_py.cost.liveness.values import BRANCHES, UPDATES, Scratch, Values
from shardy_py.cost.sizes import LocalSizes
from shardy_py.ir import Block, Op, Value
from shardy_py.ir.core import Function
from shardy_py.passes.dataflow import WHILE

ALIGNMENT = 64
"""Of the start of buffers, in bytes."""

CONTROL = BRANCHES | {WHILE}


class Life(NamedTuple):
    """The first and the last step at which a value is alive."""

    start: int
    end: int
    value: Value


@dataclass(slots=True, eq=False)
class Buffer:
    """A piece of memory, which one value after another may use.

    Attributes:
        maker: The op that makes its first value; None of an argument.
        lives: Its values; none of scratch memory.
        role: `argument`, `output`, `temporary`, `packed` of a temporary that lies in a result, `host` of one in the host's memory, or
            `transfer` of what is on the way there or back.
        written: The argument of a loop's body, of an array that the loop fills step by step, such as the residuals of a scan; else None.
    """

    bytes: int
    start: int
    end: int
    maker: Op | None
    lives: Sequence[Life] = ()
    role: str = "temporary"
    written: Value | None = None


@dataclass(frozen=True, slots=True)
class Liveness:
    """The buffers of a program.

    Attributes:
        buffers: Temporaries in the device's memory.
        steps: The ops as they run; a loop or branch stands in front of its body and behind it.
        series: Bytes of temporaries at each step.
        host: Bytes of temporaries in the host's memory, where they take most.
        writers: Array that a loop fills step by step -> the op that makes its elements.
    """

    buffers: tuple[Buffer, ...]
    steps: tuple[Op, ...]
    series: tuple[int, ...]
    host: int
    writers: Mapping[Value, Op]

    @property
    def fullest(self) -> int:
        """The step at which most is alive; the first of several."""
        return max(range(len(self.series)), key=self.series.__getitem__, default=0)


def liveness(
    main: Function, sizes: LocalSizes, donated: Mapping[int, int], host_arguments: Iterable[int] = (), on_cpu: bool = False
) -> Liveness:
    """Temporaries of a program that calls `main`.

    Args:
        main: The function that runs.
        sizes: The sizes of its values' pieces.
        donated: Number of an argument -> number of the result that takes its memory.
        host_arguments: Numbers of the arguments in the host's memory.
        on_cpu: Whether it runs as XLA for CPUs runs it.
    """
    values = Values(main.body, sizes, on_cpu)
    walk = _Walk(values)
    for argument in main.arguments:
        walk.define(argument, 0, None)
    walk.region(main.body)
    buffers = walk.buffers(main, donated)
    host = host_values(main.body, {values.origin(main.arguments[i]) for i in host_arguments}, values.origin)
    passed = passed_on(main.body, host, values.origin) if host else set[Value]()
    for buffer in buffers:
        in_buffer = {life.value for life in buffer.lives}
        if buffer.role == "temporary" and not host.isdisjoint(in_buffer):
            buffer.role = "transfer" if in_buffer <= passed else "host"
    _pack(buffers)
    count = len(walk.steps)
    temporaries = tuple(b for b in buffers if b.role == "temporary")
    in_host = alive([b for b in buffers if b.role == "host"], count, 1)
    return Liveness(temporaries, tuple(walk.steps), tuple(alive(temporaries, count)), max(in_host, default=0), walk.writers)


def alive(buffers: Sequence[Buffer], steps: int, alignment: int = ALIGNMENT) -> list[int]:
    """Bytes of buffers that are alive at each step."""
    change = [0] * (steps + 1)
    for b in buffers:
        size = -(-b.bytes // alignment) * alignment
        change[b.start] += size
        change[min(b.end, steps - 1) + 1] -= size
    return list(itertools.accumulate(change))[:steps]


class _Carry(NamedTuple):
    """One value of a loop: in front of it, in its condition, in its body before and after, and behind it."""

    operand: Value
    tested: Value
    carried: Value
    end: Value
    result: Value


@dataclass(frozen=True, slots=True, eq=False)
class _Loop:
    begin: int
    first: int
    last: int
    carries: Sequence[_Carry]


@dataclass(slots=True, eq=False)
class _Walk:
    """Walks a program in the order in which it runs.

    Attributes:
        begins: The first step of the block that is walked.
        captured: For each loop around, the values from outside that it reads.
        writers: See `Liveness`.
    """

    values: Values
    start: dict[Value, int] = field(default_factory=dict[Value, int])
    end: dict[Value, int] = field(default_factory=dict[Value, int])
    makers: dict[Value, Op | None] = field(default_factory=dict[Value, "Op | None"])
    depth: dict[Value, int] = field(default_factory=dict[Value, int])
    steps: list[Op] = field(default_factory=list[Op])
    reads: list[Mapping[Value, bool]] = field(default_factory=list[Mapping[Value, bool]])
    begins: int = 0
    captured: list[list[Value]] = field(default_factory=list[list[Value]])
    loops: list[_Loop] = field(default_factory=list[_Loop])
    branches: list[tuple[Value, Value]] = field(default_factory=list[tuple[Value, Value]])
    copies: list[Buffer] = field(default_factory=list[Buffer])
    writers: dict[Value, Op] = field(default_factory=dict[Value, Op])

    def define(self, value: Value, time: int, maker: Op | None) -> None:
        """A value is made."""
        self.start[value] = self.end[value] = time
        self.makers[value] = maker
        self.depth[value] = len(self.captured)

    def use(self, values: Iterable[Value], time: int) -> None:
        """A step reads values."""
        for value in values:
            if value in self.start:
                self.end[value] = max(self.end[value], time)
                if self.depth[value] < len(self.captured):
                    self.captured[self.depth[value]].append(value)

    def step(self, op: Op, reads: Mapping[Value, bool]) -> int:
        """An op runs; returns its number."""
        self.steps.append(op)
        self.reads.append(reads)
        self.use(reads, len(self.steps) - 1)
        return len(self.steps) - 1

    def region(self, block: Block) -> None:
        """Runs the ops of a block."""
        around, self.begins = self.begins, len(self.steps)
        copies: dict[object, Buffer] = {}
        ops = [*self.values.steps(block)]
        for op in self._as_ready(ops) if self.values.on_cpu else ops:
            if op.name == WHILE:
                self._loop(op)
            elif op.name in BRANCHES:
                self._branch(op)
            else:
                time = self.step(op, self.values.reads(op))
                for scratch in self.values.scratch(op):
                    self._copy(scratch, op, time, copies)
                for value in op.results:
                    self.define(value, time, op)
        self.begins = around

    def _copy(self, scratch: Scratch, op: Op, time: int, copies: dict[object, Buffer]) -> None:
        """Scratch memory of a step; on CPUs, copies are made as soon as what they are made of is there."""
        source = scratch.source
        if source is None or not self.values.on_cpu:
            if scratch.key != "written":
                self.copies.append(Buffer(scratch.bytes, time, time, op))
            return
        key = (source, scratch.key)
        if scratch.key is not None and key in copies:
            copies[key].end = time
            return
        ready = max([self.begins, *(self.start.get(leaf, 0) for leaf in self.values.leaves(source))])
        copy = Buffer(scratch.bytes, ready, time - (scratch.key == "written"), op)
        if copy.start <= copy.end:
            self.copies.append(copy)
        if scratch.key not in (None, "written"):
            copies[key] = copy

    def _as_ready(self, ops: Sequence[Op]) -> list[Op]:
        """Ops in the order in which their operands get ready."""
        makers = {v: op for op in ops for v in op.results}
        waiting: dict[Op, int] = {}
        users: dict[Op, list[Op]] = {}
        for op in ops:
            before = dict.fromkeys(makers[v] for v in self._reads_inside(op) if v in makers and makers[v] is not op)
            waiting[op] = len(before)
            for maker in before:
                users.setdefault(maker, []).append(op)
        order = [op for op in ops if not waiting[op]]
        for op in order:  # which grows
            for user in users.get(op, ()):
                waiting[user] -= 1
                if not waiting[user]:
                    order.append(user)
        return order

    def _reads_inside(self, op: Op) -> dict[Value, bool]:
        """The values in memory that an op reads, with those that its regions do."""
        return self._leaves(v for inner in op.walk() for v in inner.operands)

    def _leaves(self, values: Iterable[Value]) -> dict[Value, bool]:
        return {leaf: False for value in values for leaf in self.values.leaves(value)}

    def _loop(self, op: Op) -> None:
        condition, body = op.regions
        origin, begin = self.values.origin, self.begins
        first = self.step(op, self._leaves(op.operands))
        self.captured.append([])
        for value in (*condition.arguments, *body.arguments):
            self.define(value, first, op)
        self.region(condition)
        self.use(self._leaves(condition.terminator.operands), len(self.steps) - 1)
        self.region(body)
        ends = body.terminator.operands
        last = self.step(op, self._leaves(ends))
        self.use(self.captured.pop(), last)
        for value in op.results:
            self.define(value, last, op)
        carries = zip(map(origin, op.operands), condition.arguments, body.arguments, map(origin, ends), op.results)
        loop = _Loop(begin, first, last, [_Carry(*carry) for carry in carries])
        self.loops.append(loop)
        for carry in loop.carries:
            update = carry.end.defining_op
            if update is not None and update.name == "stablehlo.dynamic_update_slice" and origin(update.operands[0]) is carry.carried:
                writer = self._writer(update.operands[1], {c.carried: c.end for c in loop.carries})
                if writer is not None:
                    self.writers[carry.carried] = writer

    def _writer(self, value: Value, carries: Mapping[Value, Value]) -> Op | None:
        """The op that makes the elements that a loop writes to an array.

        Of a value from the step before, it is the op that makes it there; of an array that an inner loop fills, the op in that loop.
        """
        for _ in range(2):
            value = self.values.origin(value)
            while (op := value.defining_op) is not None and op.name == "stablehlo.broadcast_in_dim":
                value = self.values.origin(op.operands[0])
            if op is not None and op.name == WHILE:
                return self.writers.get(op.regions[1].arguments[value.index], op)
            if op is not None or value not in carries:
                return op
            value = carries[value]
        return None

    def _branch(self, op: Op) -> None:
        first = self.step(op, self._leaves(op.operands))
        for inner in op.regions:
            for value in inner.arguments:
                self.define(value, first, op)
            self.region(inner)
            self.use(self._leaves(inner.terminator.operands), len(self.steps) - 1)
        last = self.step(op, {})
        for value in op.results:
            self.define(value, last, op)
        self.branches += [
            (self.values.origin(end), result) for inner in op.regions for end, result in zip(inner.terminator.operands, op.results)
        ]

    def buffers(self, main: Function, donated: Mapping[int, int]) -> list[Buffer]:
        """All buffers, scratch memory included."""
        last = len(self.steps)
        results = [self.values.origin(v) for v in main.body.terminator.operands]
        self.use(self._leaves(results), last)
        readonly = {v for i, v in enumerate(main.arguments) if i not in donated}
        self.use(readonly, last)
        places = _Places(self, readonly, set(main.arguments), set(results))
        outputs = set(results)
        for loop in self.loops:
            for carry in loop.carries:
                places.carry(carry, loop)
        for value, result in self.branches:
            if value in self.start:
                places.share(value, result)
        for i, number in donated.items():
            argument, result = main.arguments[i], results[number]
            if result in self.start and result is not argument and not places.share(argument, result):
                outputs.discard(result)
        for loop in self.loops:
            for carry in loop.carries:
                places.enter(carry, loop)
        for time, op in enumerate(self.steps):
            if op.name not in CONTROL:
                self._write_over(op, time, places)
        return places.buffers(set(main.arguments), outputs, self.writers) + self.copies

    def _write_over(self, op: Op, time: int, places: _Places) -> None:
        """Writes the results of an op over what it reads for the last time."""
        reads = self.reads[time]
        by_index = op.name in UPDATES or len(op.results) > 1
        for i, value in enumerate(op.results):
            if self.start.get(value) == time:
                for leaf in map(self.values.origin, op.operands[i : i + 1]) if by_index else reads:
                    is_last = reads.get(leaf, False) and self.end.get(leaf) == time
                    if is_last and self.values.bytes(leaf) == self.values.bytes(value) and places.share(leaf, value):
                        break


class _Places:
    """Which values lie in one place."""

    def __init__(self, walk: _Walk, readonly: set[Value], arguments: set[Value], results: set[Value]) -> None:
        self._walk = walk
        self._readonly = readonly
        self._arguments, self._results = arguments, results
        self._parents: dict[Value, Value] = {}
        self._lives = {v: [Life(start, walk.end[v], v)] for v, start in walk.start.items()}

    def carry(self, carry: _Carry, loop: _Loop) -> None:
        """Places what a loop carries: what it does not change lies where it did, or what it is made of does."""
        if carry.end is carry.carried:
            before = carry.operand if carry.operand in self._lives else carry.carried
            for value in (carry.tested, carry.carried, carry.result):
                self._unite(before, value)
            return
        self._unite(carry.carried, carry.tested)
        if carry.end not in self._lives or not self.share(carry.carried, carry.end):
            self._extend(carry.carried, Life(loop.first, loop.last, carry.carried))
        self._unite(carry.carried, carry.result)

    def enter(self, carry: _Carry, loop: _Loop) -> None:
        """Places what a loop carries where the value in front of it lies, or, on CPUs, copies that as soon as it is there."""
        if carry.end is carry.carried or (carry.operand in self._lives and self.share(carry.operand, carry.carried)):
            return
        if self._walk.values.on_cpu:
            ready = max(loop.begin, self._walk.start.get(carry.operand, 0))
            self._extend(carry.carried, Life(ready, loop.first, carry.carried))

    def share(self, before: Value, after: Value) -> bool:
        """Places a value where another lies, if that is read no more once it is written."""
        one, other = self._find(before), self._find(after)
        if one is other:
            return True
        first, second = self._lives[one], self._lives[other]
        if any(life.value in self._readonly for life in (*first, *second)):
            return False
        if not all(self._follows(x, y) or self._follows(y, x) for x in first for y in second):
            return False
        self._unite(before, after)
        return True

    def buffers(self, arguments: set[Value], outputs: set[Value], writers: Mapping[Value, Op]) -> list[Buffer]:
        """A buffer for each place, in the order in which they are first written."""
        walk, last = self._walk, max(len(self._walk.steps) - 1, 0)
        found: list[Buffer] = []
        for value, lives in self._lives.items():
            if self._find(value) is not value:
                continue
            values = [life.value for life in lives]
            role = "argument" if not arguments.isdisjoint(values) else "output" if not outputs.isdisjoint(values) else "temporary"
            start, end = min(life.start for life in lives), min(max(life.end for life in lives), last)
            maker = walk.makers[min(lives, key=lambda life: life.start).value]
            written = next((v for v in values if v in writers), None)
            found.append(Buffer(max(map(walk.values.bytes, values)), start, end, maker, tuple(lives), role, written))
        return sorted(found, key=lambda b: b.start)

    def _find(self, value: Value) -> Value:
        parents = self._parents
        while (parent := parents.get(value)) is not None:
            value = parent
        return value

    def _unite(self, one: Value, other: Value) -> None:
        one, other = self._find(one), self._find(other)
        if one is not other:
            self._parents[other] = one
            self._lives[one] += self._lives[other]

    def _extend(self, value: Value, life: Life) -> None:
        self._lives[self._find(value)].append(life)

    def _follows(self, one: Life, other: Life) -> bool:
        """Whether a value is made after, or by, the last reader of another."""
        if one.end != other.start:
            return one.end < other.start
        walk = self._walk
        if (
            one.value in self._arguments and other.value not in self._results
        ):  # only its result is written over a donated argument while it is read
            return False
        return one.end < len(walk.steps) and (walk.steps[one.end].name in CONTROL or walk.reads[one.end].get(one.value, False))


def _pack(buffers: Sequence[Buffer]) -> None:
    """Places temporaries in results that are not written yet, the largest first."""
    rooms: dict[int, list[Buffer]] = {}
    for room in sorted((b for b in buffers if b.role == "output"), key=lambda b: (b.bytes, b.start)):
        rooms.setdefault(room.bytes, []).append(room)
    starts = {size: [room.start for room in alike] for size, alike in rooms.items()}
    taken: dict[int, list[tuple[int, int]]] = {}
    for buffer in sorted((b for b in buffers if b.role == "temporary"), key=lambda b: (-b.bytes, b.start)):
        later = ((size, bisect.bisect_right(starts[size], buffer.end)) for size in rooms if size >= buffer.bytes)
        for room in itertools.chain.from_iterable(rooms[size][i:] for size, i in later):
            spans = taken.setdefault(id(room), [])
            if all(buffer.end < start or buffer.start > end for start, end in spans):
                spans.append((buffer.start, buffer.end))
                buffer.role = "packed"
                break
