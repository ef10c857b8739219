"""The graph that liveness runs on: values with their bytes, and the nodes that make them, in regions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any

from shardy_py.ir import Value


class Kind(Enum):
    """The memory behaviour of an op."""

    ELEMENTWISE = "elementwise"
    """Each element of the result depends on the same element of the operands."""
    EXPENSIVE = "expensive"
    """As elementwise, but too expensive to compute twice."""
    BROADCAST = "broadcast"
    """Repeats its operand, or is an iota or a constant of one number: cheap in every reader."""
    VIEW = "view"
    """The same bytes in another shape; nothing where its operand lies in memory."""
    SHAPE = "shape"
    """Takes elements from elsewhere: slice, transpose, pad, concatenate, gather."""
    REDUCE = "reduce"
    """Reduces elements; elementwise producers can be fused into it."""
    LIBRARY = "library"
    """A large reduction, which a library runs: only products and exponentials can be fused into it."""
    UPDATE = "update"
    """Writes a part of its first operand, which it takes over where it can."""
    SCATTER = "scatter"
    """As update, at computed indices: nothing can be fused into it."""
    WHOLE = "whole"
    """Reads and writes arrays in memory: products, convolutions, sorts, library calls."""
    COLLECTIVE = "collective"
    """Exchanges data between devices."""
    COPY = "copy"
    """A copy of its operand."""
    SUM = "sum"
    """An all-reduce; several can be combined."""
    LITERAL = "literal"
    """A constant array, kept beside the program."""
    BARRIER = "barrier"
    """Its results are its operands, all of which it waits for."""
    LOOP = "loop"
    """A while: its second region is the body, whose results are its next arguments."""
    BRANCH = "branch"
    """One of its regions runs."""

    __hash__ = object.__hash__  # kinds are looked up hundreds of thousands of times; the hash of Enum is Python code


_NO_VIEWS: Mapping[int, int] = MappingProxyType({})


@dataclass(slots=True, eq=False)
class Node:
    """One op.

    Attributes:
        regions: Bodies of a loop (condition, body) or branch.
        key: Identity of its computation, apart from its operands; nodes of equal key and operands have equal results. None of nodes with
            effects.
        varying_dims: The dimensions along which the elements of a broadcast differ, where they are known.
        view_depth: Operand -> the number of views that it is read through, of views that stay nodes; they matter to the order.
        shares: Operands whose memory its result may take over, if it is the last to read them; several results each take over the operand
            at their index.
    """

    kind: Kind
    operands: list[int]
    results: list[int]
    regions: tuple[Region, ...] = ()
    key: Any = None
    label: str = ""
    name: str = ""
    source: Any = None
    shares: tuple[int, ...] = ()
    group: Any = None
    varying_dims: tuple[int, ...] | None = None
    view_depth: Mapping[int, int] = field(default_factory=lambda: _NO_VIEWS)
    expensive: bool = False
    is_relayout: bool = False
    writes_over: int | None = None


@dataclass(slots=True, eq=False)
class Region:
    """Nodes in order; `read_order` are the arguments that are read, in the order of a traversal from the results."""

    arguments: list[int] = field(default_factory=list[int])
    nodes: list[Node] = field(default_factory=list[Node])
    results: list[int] = field(default_factory=list[int])
    read_order: list[int] = field(default_factory=list[int])


@dataclass(slots=True, eq=False)
class Graph:
    """The program of one device.

    Attributes:
        writers: Argument of a loop's body -> the node that makes the elements that the body writes to it in each step (`stacks`).
        donated: Argument number -> number of the result that takes its memory.
        dropped: Numbers of the arguments that the compiled program does not have.
        host_arguments: Numbers of the arguments in the host's memory.
        host_results: Numbers of the results in the host's memory.
        origins: Value -> the value of the program that it is, or is a copy of; none of those that a compiler adds.
    """

    bytes: list[int] = field(default_factory=list[int])
    array_types: dict[int, Any] = field(default_factory=dict[int, Any])
    main: Region = field(default_factory=Region)
    writers: dict[int, Node] = field(default_factory=dict[int, Node])
    donated: dict[int, int] = field(default_factory=dict[int, int])
    dropped: frozenset[int] = frozenset()
    host_arguments: frozenset[int] = frozenset()
    host_results: frozenset[int] = frozenset()
    origins: dict[int, Value] = field(default_factory=dict[int, Value])

    def value(self, size: int) -> int:
        """A new value of so many bytes."""
        self.bytes.append(size)
        return len(self.bytes) - 1

    def copy(self, v: int) -> int:
        """A new value that is a copy of another."""
        copy = self.value(self.bytes[v])
        self.array_types[copy] = self.array_types.get(v)
        if v in self.origins:
            self.origins[copy] = self.origins[v]
        return copy


def reads(node: Node) -> list[int]:
    """All values that a node reads, including those that its regions capture."""
    if not node.regions:
        return node.operands
    values = list(node.operands)
    for inner in node.regions:
        values.extend(inner.results)
        for n in inner.nodes:
            values.extend(reads(n))
    return values
