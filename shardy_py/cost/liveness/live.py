"""Lifetimes of buffers, and the bytes alive at each step."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shardy_py.cost.liveness.graph import Graph, Kind, Node, Region, reads
from shardy_py.cost.liveness.order import positions
from shardy_py.cost.liveness.placement import host_values, passed_on


class Life(NamedTuple):
    """The first and the last step at which a value is alive, and the node that makes it."""

    start: int
    end: int
    value: int
    maker: Node | None


@dataclass(slots=True, eq=False)
class Buffer:
    """A piece of memory, which one value after another may use.

    Attributes:
        role: `argument`, `output`, `literal`, `temporary`, `host` of a temporary in the host's memory, or `transfer` of what is on the way
            there or back.
        free: Of a donated argument, the last step that reads it and the first that writes to it, if there are others between.
        written: The argument of a loop's body, of an array that the loop fills step by step, such as the residuals of a scan; else None.
    """

    bytes: int
    start: int
    end: int
    value: int
    maker: Node | None
    role: str = "temporary"
    free: tuple[int, int] | None = None
    lives: list[Life] = field(default_factory=list[Life])
    rank: int = 0
    outer_rank: int = 0
    written: int | None = None


@dataclass(slots=True, eq=False)
class Lives:
    """All buffers of a program, and the sizes of its tables of addresses: of results of one node, loops, and branches."""

    buffers: list[Buffer]
    steps: list[Node]
    tables: list[int]


class _Walk:
    def __init__(self, graph: Graph) -> None:
        n = len(graph.bytes)
        self.graph = graph
        self.parent = list(range(n))
        self.start = [-1] * n
        self.end = [-1] * n
        self.maker: list[Node | None] = [None] * n
        self.depth = [0] * n
        self.steps: list[Node] = []
        self.loops: list[list[int]] = []
        self.tables: list[int] = []
        self.free: dict[int, tuple[int, int]] = {}
        self.tuples: set[tuple[int, ...]] = set()

    def find(self, v: int) -> int:
        parent = self.parent
        while parent[v] != v:
            parent[v] = parent[parent[v]]
            v = parent[v]
        return v

    def union(self, a: int, b: int) -> None:
        a, b = self.find(a), self.find(b)
        if a != b:
            self.parent[max(a, b)] = min(a, b)

    def define(self, v: int, time: int, maker: Node | None) -> None:
        self.start[v] = time
        self.end[v] = max(self.end[v], time)
        self.maker[v] = maker
        self.depth[v] = len(self.loops)

    def use(self, v: int, time: int) -> None:
        self.use_all((v,), time)

    def use_all(self, values: Iterable[int], time: int) -> None:
        """A step reads values; times only grow."""
        end, depth, loops = self.end, self.depth, self.loops
        inner = len(loops)
        for v in values:
            end[v] = time
            if depth[v] < inner:
                loops[depth[v]].append(v)

    def step(self, node: Node) -> int:
        self.steps.append(node)
        return len(self.steps) - 1

    def region(self, region: Region) -> None:
        for node in region.nodes:
            if node.kind is Kind.LOOP:
                self.loop(node)
            elif node.kind is Kind.BRANCH:
                self.branch(node)
            else:
                time = self.step(node)
                self.use_all(node.operands, time)
                for v in node.results:
                    self.define(v, time, node)
                if len(node.results) > 1 and node.kind is not Kind.BARRIER:
                    self.tables.append(len(node.results))
                if node.kind is Kind.BARRIER:
                    for a, b in zip(node.operands, node.results):
                        self.union(a, b)

    def loop(self, node: Node) -> None:
        condition, body = node.regions
        time = self.step(node)
        for v in node.operands:
            self.use(v, time)
        self.loops.append([])
        for v in (*condition.arguments, *body.arguments):
            self.define(v, time, node)
        self.region(condition)
        for v in condition.results:
            self.use(v, len(self.steps) - 1)
        self.region(body)
        time = self.step(node)
        for v in body.results:
            self.use(v, time)
        outer = self.loops.pop()
        for v in outer:
            self.use(v, time)
        for v in node.results:
            self.define(v, time, node)
        self.tables.append(len(node.results) + len(set(outer)))
        for group in zip(node.operands, condition.arguments, body.arguments, body.results, node.results):
            for v in group[1:]:
                self.union(group[0], v)

    def branch(self, node: Node) -> None:
        time = self.step(node)
        for v in node.operands:
            self.use(v, time)
        for inner in node.regions:
            for v in inner.arguments:
                self.define(v, time, node)
            self.region(inner)
            for v in inner.results:
                self.use(v, len(self.steps) - 1)
        time = self.step(node)
        self.tables.append(len(node.results))
        for inner in node.regions:
            entries = _from_outside(inner)
            if entries and entries not in self.tuples:
                self.tuples.add(entries)
                self.tables.append(len(entries))
        for v in node.results:
            self.define(v, time, node)
        for inner in node.regions:
            for v, result in zip(inner.results, node.results):
                self.union(v, result)

    def share(self) -> None:
        """Results take the memory of operands that are read for the last time."""
        readonly = {self.find(v) for i, v in enumerate(self.graph.main.arguments) if i not in self.graph.donated}
        readonly |= {self.find(v) for v, maker in enumerate(self.maker) if maker is not None and maker.kind is Kind.LITERAL}
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for v in range(len(self.parent)):
            if self.start[v] >= 0:
                root = self.find(v)
                first[root] = min(first.get(root, self.start[v]), self.start[v])
                last[root] = max(last.get(root, -1), self.end[v])
        for v in self.graph.main.results:
            last[self.find(v)] = len(self.steps)
        bytes_ = self.graph.bytes
        for time, node in enumerate(self.steps):
            if not node.shares or node.kind in (Kind.LOOP, Kind.BRANCH):
                continue
            several = len(node.results) > 1  # each takes over the operand at its index
            for place, value in enumerate(node.results):
                result = self.find(value)
                free = self.free.get(result)
                if (first[result] if free is None else free[1]) != time:
                    continue
                for v in node.shares[place : place + 1] if several else node.shares:
                    if self.end[v] > time:  # so is that of its root
                        continue
                    root = self.find(v)
                    if root == result or root in readonly or last[root] != time or bytes_[v] != bytes_[value]:
                        continue
                    if free is not None and first[root] <= free[0]:
                        continue
                    start, end = min(first[root], first[result]), max(last[root], last[result])
                    if free is not None:
                        free = free[0], first[root]
                    self.union(root, result)
                    merged = self.find(root)
                    first[merged], last[merged] = start, end
                    if free is not None:
                        self.free[merged] = free
                    break


def _from_outside(region: Region) -> tuple[int, ...]:
    """Values from outside that a branch reads: its tuple, which branches with the same reads share."""
    own = {v for n in region.nodes for v in n.results}
    return tuple(dict.fromkeys(v for v in (*(v for n in region.nodes for v in reads(n)), *region.results) if v not in own))


def lives(graph: Graph) -> Lives:
    """Walks an ordered graph."""
    walk = _Walk(graph)
    for v in graph.main.arguments:
        walk.define(v, 0, None)
    walk.region(graph.main)
    last = max(len(walk.steps) - 1, 0)
    read = {v: walk.end[v] for v in graph.main.arguments}
    for v in (*graph.main.arguments, *graph.main.results):
        walk.end[v] = last
    for argument, result in graph.donated.items():
        before, after = graph.main.arguments[argument], graph.main.results[result]
        if walk.start[after] >= 0:
            alone = walk.find(after) == after
            walk.union(before, after)
            if alone and walk.start[after] > read[before]:
                walk.free[walk.find(before)] = read[before], walk.start[after]
    walk.share()
    return Lives(_buffers(walk), walk.steps, walk.tables)


def _buffers(walk: _Walk) -> list[Buffer]:
    by_root: dict[int, Buffer] = {}
    inner = positions(walk.graph, inner_first=True)
    outer = positions(walk.graph, inner_first=False) if any(node.regions for node in walk.graph.main.nodes) else inner
    last = len(walk.parent)
    arguments = set(walk.graph.main.arguments)
    outputs = set(walk.graph.main.results)
    for v, (start, end) in enumerate(zip(walk.start, walk.end)):
        if start < 0:
            continue
        root = walk.find(v)
        buffer = by_root.get(root)
        size = walk.graph.bytes[v]
        if buffer is None:
            buffer = by_root[root] = Buffer(size, start, end, v, walk.maker[v], free=walk.free.get(root), rank=last, outer_rank=last)
        else:
            buffer.bytes = max(buffer.bytes, size)
            buffer.start = min(buffer.start, start)
            buffer.end = max(buffer.end, end)
        buffer.lives.append(Life(start, end, v, walk.maker[v]))
        buffer.rank = min(buffer.rank, inner.get(v, last))
        buffer.outer_rank = min(buffer.outer_rank, outer.get(v, last))
        if buffer.written is None and v in walk.graph.writers:
            buffer.written = v
        maker = walk.maker[v]
        if v in arguments:
            buffer.role = "argument"
        elif v in outputs and buffer.role != "argument":
            buffer.role, buffer.value, buffer.maker = "output", v, maker
        elif maker is not None and maker.kind is Kind.LITERAL and buffer.role == "temporary":
            buffer.role = "literal"
    host = host_values(walk.steps, (walk.graph.main.arguments[i] for i in walk.graph.host_arguments))
    passed = passed_on(walk.steps, host)
    for root in {walk.find(v) for v in host} & by_root.keys():
        if by_root[root].role == "temporary":
            by_root[root].role = "transfer" if passed.issuperset(life.value for life in by_root[root].lives) else "host"
    return sorted(by_root.values(), key=lambda b: (b.start, b.value))


def alive(buffers: Sequence[Buffer], steps: int) -> list[int]:
    """Bytes of buffers that are alive at each step."""
    change = [0] * (steps + 1)
    for b in buffers:
        change[b.start] += b.bytes
        change[min(b.end, steps - 1) + 1] -= b.bytes
    return list(itertools.accumulate(change))[:steps]
