"""What liveness looks at: values with their bytes, and nodes that make them of others, in regions."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Kind(Enum):
    """How an op treats memory."""

    ELEMENTWISE = "elementwise"
    """Each position of the result comes of the same position of the operands."""
    EXPENSIVE = "expensive"
    """As elementwise, but dear enough not to be computed twice."""
    BROADCAST = "broadcast"
    """Repeats its operand, or is an iota or a constant of one number: cheap wherever it is wanted."""
    VIEW = "view"
    """The same bytes in another shape; nothing where its operand lies in memory."""
    SHAPE = "shape"
    """Takes elements from elsewhere: slice, transpose, pad, concatenate, gather."""
    REDUCE = "reduce"
    """Adds up positions; can take in what is computed position by position before."""
    LIBRARY = "library"
    """A large reduction, which a library carries out: it takes in products and exponentials only."""
    UPDATE = "update"
    """Writes a part of its first operand, which it takes over where it can."""
    SCATTER = "scatter"
    """As update, at places that are computed: takes nothing in."""
    WHOLE = "whole"
    """Reads and writes arrays in memory: products, convolutions, sorts, library calls."""
    COLLECTIVE = "collective"
    """Exchanges data between devices."""
    COPY = "copy"
    """A copy of its operand."""
    SUM = "sum"
    """An all-reduce; several are carried out at once."""
    LITERAL = "literal"
    """A constant array, kept beside the program."""
    BARRIER = "barrier"
    """Its results are its operands, all of which it waits for."""
    LOOP = "loop"
    """A while: its second region is the body, whose results are its next arguments."""
    BRANCH = "branch"
    """One of its regions runs."""

    __hash__ = object.__hash__  # kinds are looked up hundreds of thousands of times; that of Enum is Python code


@dataclass(slots=True, eq=False)
class Node:
    """One op.

    Attributes:
        kind: How it treats memory.
        operands: Values it reads.
        results: Values it makes.
        regions: Bodies of a loop (condition, body) or branch.
        key: What it computes, apart from its operands; nodes of equal key and operands give equal results. None for what has effects.
        label: What people call it.
        name: The op's name; of one that a compiler adds as the program would name it, if at all.
        source: What it was read from; None of what a compiler adds.
        group: Of an all-reduce, what it has in common with those it can be combined with.
        along: Of what repeats elements the dimensions along which they differ, where that is known.
        late: Of operands that are read through views that stay nodes, how many views; they matter to the order.
        dear: Whether it is dear enough not to be computed twice, where its kind does not say so.
        over: The place of the operand that its first result is written over, of ops whose kind does not say so.
        turned: Whether it only brings the elements of what a library gives into order.
        shares: Operands whose memory its result may take over, if it is the last to read them; of several results each that at its place.
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
    along: tuple[int, ...] | None = None
    late: dict[int, int] = field(default_factory=dict)
    dear: bool = False
    turned: bool = False
    over: int | None = None


@dataclass(slots=True, eq=False)
class Region:
    """Nodes in order.

    Attributes:
        arguments: Values that come from outside.
        nodes: In program order.
        results: Values that go back.
        met: The arguments that are read, in the order in which they are met from the results on.
    """

    arguments: list[int] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    met: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Graph:
    """A program as liveness sees it, on one device.

    Attributes:
        bytes: Bytes of each value; a value is its number.
        main: Its arguments are those of the program, its results likewise.
        names: Value -> path, for values that people know by one.
        writers: Argument of a loop's body -> the node that makes the elements that the body writes to it in each step (`stacks`).
        donated: Argument number -> number of the result that takes its memory.
        forms: Value -> what has to be equal for one array to be written over another: shape and element type, as a rule.
    """

    bytes: list[int] = field(default_factory=list)
    forms: dict[int, Any] = field(default_factory=dict)
    main: Region = field(default_factory=Region)
    names: dict[int, str] = field(default_factory=dict)
    writers: dict[int, Node] = field(default_factory=dict)
    donated: dict[int, int] = field(default_factory=dict)

    def value(self, size: int) -> int:
        """A new value of so many bytes."""
        self.bytes.append(size)
        return len(self.bytes) - 1


def reads(node: Node) -> list[int]:
    """All values that a node reads, those that its regions read from outside included."""
    if not node.regions:
        return node.operands
    found = list(node.operands)
    for inner in node.regions:
        found.extend(inner.results)
        for n in inner.nodes:
            found.extend(reads(n))
    return found
