"""The graph of a profiled model: one node per layer or op, with its times and sizes.

A node's position in the graph is its bit in the masks used here: the ancestors of a node are one integer, so that a
union of two sets of nodes costs one operation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from shardy_py.errors import ParseError, ShardyError

SEPARATOR = " -- "


class GraphError(ShardyError):
    """A profile graph that breaks a rule: a cycle, an unknown node, a malformed line, a missing stage id."""


@dataclass(frozen=True)
class ProfileNode:
    r"""One layer or op of a profile, as a line of PipeDream's graph.txt.

    Args:
        id: Name, unique in its graph.
        description: Its layer or op, such as `Linear(in_features=1024, out_features=1000)`. Only ever text: nothing executes it.
        forward_ms: Time of one forward run, in milliseconds.
        backward_ms: Time of one backward run, in milliseconds.
        activations: Bytes of each output. PipeDream sums them when it reads, and so loses which is which.
        parameter_bytes: Bytes of its parameters.
        stage: The pipeline stage it belongs to, if it has one.
        spelled: Texts of the four numbers where they were read, so that writing gives the same text.

    Raises:
        GraphError: If a number is negative or not finite, or a text would break the format.

    Example:
        >>> ProfileNode("node1", "ReLU(inplace)", 0.5, 0.25, (4096.0,)).time_ms
        0.75
    """

    id: str
    description: str
    forward_ms: float = 0.0
    backward_ms: float = 0.0
    activations: tuple[float, ...] = (0.0,)
    parameter_bytes: float = 0.0
    stage: int | None = None
    spelled: tuple[str, str, str, str] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for what, value in (("id", self.id), ("description", self.description)):
            if re.search(r"[\n\r]", value):
                raise GraphError(f"the {what} {value!r} holds a line break", where=f"node {self.id!r}", fix="leave line breaks out")
        if not self.id or SEPARATOR in self.id or self.id.startswith("\t"):
            raise GraphError(f"{self.id!r} cannot be the id of a node", why='an id is not empty, starts with no tab and holds no " -- "')
        for what, number in (
            ("forward_ms", self.forward_ms),
            ("backward_ms", self.backward_ms),
            ("parameter_bytes", self.parameter_bytes),
            *(("activations", size) for size in self.activations),
        ):
            if not (math.isfinite(number) and number >= 0):
                raise GraphError(f"{what} is {number}", where=f"node {self.id!r}", why="times and sizes are finite and not negative")
        if not self.activations:
            raise GraphError("a node has no activations", where=f"node {self.id!r}", fix="give (0.0,) for one output without bytes")
        if self.stage is not None and self.stage < 0:
            raise GraphError(f"stage {self.stage} is negative", where=f"node {self.id!r}")

    @property
    def time_ms(self) -> float:
        """Forward and backward time together, in milliseconds."""
        return self.forward_ms + self.backward_ms

    @property
    def activation_bytes(self) -> float:
        """Bytes of all outputs together."""
        return sum(self.activations)

    @property
    def is_input(self) -> bool:
        """Whether the node stands for an input of the model, which every optimizer here places in the first stage."""
        return self.description.startswith("Input")


@dataclass(frozen=True, repr=False)
class ProfileGraph:
    """Nodes in file order and edges in file order; the edges that end in a node are its operands, in order.

    Args:
        nodes: The nodes.
        edges: (source id, destination id), one for each use of a result.
        ends_line: Whether the text ends in a line break, which some files do.

    Raises:
        GraphError: If two nodes have one id, an edge names an unknown node, or the edges form a cycle.

    Example:
        >>> g = ProfileGraph((ProfileNode("a", "Input"), ProfileNode("b", "ReLU")), (("a", "b"),))
        >>> g.inputs_of("b"), g.sinks
        (('a',), ('b',))
    """

    nodes: tuple[ProfileNode, ...]
    edges: tuple[tuple[str, str], ...] = ()
    ends_line: bool = field(default=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.index) < len(self.nodes):
            seen: set[str] = set()
            twice = next(node.id for node in self.nodes if node.id in seen or seen.add(node.id))
            raise GraphError(f"two nodes have the id {twice!r}")
        for source, destination in self.edges:
            for name in (source, destination):
                if name not in self.index:
                    raise GraphError(f"unknown node {name!r}", where=f"edge {source} -- {destination}", fix="add a line for the node")
        if len(self.order) < len(self.nodes):
            raise GraphError("the edges form a cycle", where=" -> ".join(self._cycle()), why="a layer cannot wait for its own result")

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        return f"<ProfileGraph: {len(self.nodes)} nodes, {len(self.edges)} edges>"

    def __getitem__(self, id: str) -> ProfileNode:
        return self.nodes[self.position(id)]

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Position of each node in `nodes`."""
        return {node.id: i for i, node in enumerate(self.nodes)}

    def position(self, id: str) -> int:
        """Position of the node with this id.

        Raises:
            GraphError: If there is none.
        """
        if id not in self.index:
            raise GraphError(f"unknown node {id!r}", where=f"a graph of {len(self)} nodes")
        return self.index[id]

    @cached_property
    def operands(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the operands of each node, in operand order; a node used twice stands twice."""
        return _grouped(((self.index[d], self.index[s]) for s, d in self.edges), len(self))

    @cached_property
    def uses(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the nodes that use each node, in the order of the edges, each once."""
        groups = _grouped(((self.index[s], self.index[d]) for s, d in self.edges), len(self))
        return tuple(tuple(dict.fromkeys(users)) for users in groups)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Positions in a topological order, the one that comes first in the file whenever there is a choice of a ready node.

        A node follows its last operand as closely as possible, so that branches are walked one after the other.
        """
        missing = [len(set(operands)) for operands in self.operands]
        ready = [i for i in range(len(self) - 1, -1, -1) if not missing[i]]
        order = []
        while ready:
            node = ready.pop()
            order.append(node)
            for user in reversed(self.uses[node]):
                missing[user] -= 1
                if not missing[user]:
                    ready.append(user)
        return tuple(order)

    @cached_property
    def ancestors(self) -> tuple[int, ...]:
        """For each node the mask of the nodes it depends on, itself left out."""
        masks = [0] * len(self)
        for node in self.order:
            for operand in self.operands[node]:
                masks[node] |= masks[operand] | 1 << operand
        return tuple(masks)

    @cached_property
    def descendants(self) -> tuple[int, ...]:
        """For each node the mask of the nodes that depend on it, itself left out."""
        masks = [0] * len(self)
        for node in reversed(self.order):
            for user in self.uses[node]:
                masks[node] |= masks[user] | 1 << user
        return tuple(masks)

    def ids(self, mask: int) -> tuple[str, ...]:
        """The ids of the nodes in a mask, in file order."""
        return tuple(self.nodes[i].id for i in positions(mask))

    def mask(self, ids: Iterable[str]) -> int:
        """The mask of nodes given by id."""
        return sum(1 << i for i in {self.position(id) for id in ids})

    def inputs_of(self, id: str) -> tuple[str, ...]:
        """Ids of the operands of a node, in order."""
        return tuple(self.nodes[i].id for i in self.operands[self.position(id)])

    def predecessors(self, id: str) -> tuple[str, ...]:
        """Ids of all nodes that a node depends on, in file order."""
        return self.ids(self.ancestors[self.position(id)])

    def successors(self, id: str) -> tuple[str, ...]:
        """Ids of all nodes that depend on a node, in file order."""
        return self.ids(self.descendants[self.position(id)])

    @property
    def sources(self) -> tuple[str, ...]:
        """Ids of the nodes without operands."""
        return tuple(node.id for node, operands in zip(self.nodes, self.operands) if not operands)

    @property
    def sinks(self) -> tuple[str, ...]:
        """Ids of the nodes nobody uses."""
        return tuple(node.id for node, uses in zip(self.nodes, self.uses) if not uses)

    @property
    def num_stages(self) -> int:
        """Number of stages; 0 if no node has a stage id.

        Raises:
            GraphError: If some nodes have a stage id and some have none, or a number between 0 and the highest is missing.
        """
        without = [node.id for node in self.nodes if node.stage is None]
        if len(without) == len(self):
            return 0
        if without:
            raise GraphError(
                f"{len(without)} of {len(self)} nodes have no stage id",
                where=f"node {without[0]!r}",
                fix='end every node line in " -- stage_id=..." or none',
            )
        used = {node.stage for node in self.nodes if node.stage is not None}
        missing = next((stage for stage in range(len(used)) if stage not in used), None)
        if missing is not None:
            raise GraphError(f"no node is in stage {missing}, but some are in stage {max(used)}", fix="number the stages from 0")
        return len(used)

    @property
    def replication(self) -> tuple[int, ...]:
        """The number of machines of each stage: one, as long as no partition says otherwise."""
        return (1,) * self.num_stages

    def marked(self, function: Callable[..., Any], parameters: int | Sequence[int] = 0) -> Callable[..., Any]:
        """The function that was profiled, with these stages marked: `shardy_py.pipedream.marked`."""
        from shardy_py.pipedream.partitions.division import marked  # needs JAX, which a graph does not

        return marked(function, self, parameters=parameters)

    def with_nodes(self, change: Callable[[ProfileNode], ProfileNode]) -> ProfileGraph:
        """The graph with every node changed by a function that keeps the ids."""
        return replace(self, nodes=tuple(change(node) for node in self.nodes))

    def with_stages(self, stage_of: Mapping[str, int]) -> ProfileGraph:
        """The graph with stage ids taken from a mapping of every id.

        Raises:
            GraphError: If a node is not in the mapping.
        """
        absent = [node.id for node in self.nodes if node.id not in stage_of]
        if absent:
            raise GraphError(f"no stage is given for {len(absent)} of {len(self)} nodes", where=f"node {absent[0]!r}")
        return self.with_nodes(lambda node: replace(node, stage=stage_of[node.id]))

    def subgraph(self, ids: Iterable[str]) -> ProfileGraph:
        """The nodes with these ids, in file order, and the edges between them."""
        selected = {self.nodes[self.position(id)].id for id in ids}
        nodes = tuple(node for node in self.nodes if node.id in selected)
        return ProfileGraph(nodes, tuple((s, d) for s, d in self.edges if s in selected and d in selected))

    def stage_graphs(self) -> tuple[ProfileGraph, ...]:
        """One graph per stage, in stage order; edges between stages are in none of them.

        Raises:
            GraphError: If a stage id is missing.
        """
        if not self.num_stages:
            raise GraphError("no node has a stage id", fix="partition the graph first, or call `with_stages`")
        return tuple(self.subgraph(node.id for node in self.nodes if node.stage == stage) for stage in range(self.num_stages))

    def _cycle(self) -> list[str]:
        """Ids around one cycle, the first one repeated at the end; nodes outside of `order` hold at least one."""
        ordered = set(self.order)
        node = next(i for i in range(len(self)) if i not in ordered)
        path: dict[int, None] = {}
        while node not in path:
            path[node] = None
            node = next(i for i in self.operands[node] if i not in ordered)
        nodes = list(path)
        around = [*nodes[nodes.index(node) :], node]
        return [self.nodes[i].id for i in reversed(around)]


def positions(mask: int) -> list[int]:
    """Positions of the bits that are set, lowest first."""
    nodes = []
    while mask:
        lowest = mask & -mask
        nodes.append(lowest.bit_length() - 1)
        mask ^= lowest
    return nodes


def _grouped(pairs: Iterable[tuple[int, int]], size: int) -> tuple[tuple[int, ...], ...]:
    groups: list[list[int]] = [[] for _ in range(size)]
    for key, value in pairs:
        groups[key].append(value)
    return tuple(map(tuple, groups))


_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_SIZES = rf"{_NUMBER}|\[{_NUMBER}(?:; {_NUMBER})*\]"
# The figures stand last, so that a description may hold anything.
_NODE = re.compile(
    rf"(?P<id>.+?){SEPARATOR}(?P<description>.*){SEPARATOR}"
    rf"forward_compute_time=(?P<f>{_NUMBER}), backward_compute_time=(?P<b>{_NUMBER}), "
    rf"activation_size=(?P<a>{_SIZES}), parameter_size=(?P<p>{_NUMBER})(?:{SEPARATOR}stage_id=(?P<stage>\d+))?"
)


class GraphParseError(ParseError, GraphError):
    """Text that is not a profile graph; the message shows the line and its number."""


def read_graph(text: str) -> ProfileGraph:
    r"""Reads a profile graph from PipeDream's text form.

    PipeDream's own reader sums activations that are lists and breaks on descriptions that hold `" -- "`; this one keeps both.
    Nothing in a description is executed.

    Args:
        text: The content of a graph.txt.

    Returns:
        The graph, nodes and edges in the order of the lines. `write_graph` gives the same text again.

    Raises:
        GraphParseError: If a line is malformed, an edge names a node that has no line, or two nodes have one id, with the line.
        GraphError: If the edges form a cycle.

    Example:
        >>> text = '''a -- Input -- forward_compute_time=0.000, backward_compute_time=0.000, activation_size=4.0, parameter_size=0.000
        ... b -- ReLU -- forward_compute_time=1.000, backward_compute_time=2.000, activation_size=4.0, parameter_size=0.000
        ... \ta -- b'''
        >>> read_graph(text)["b"].backward_ms
        2.0
    """
    if not isinstance(text, str):
        raise TypeError(f"a graph is read from str, not from {type(text).__name__}; pass the content of the file, `open(path).read()`")
    nodes: dict[str, ProfileNode] = {}
    edges: list[tuple[str, str]] = []
    places: list[int] = []
    ends_line = text.endswith("\n")
    start = 0
    for line in (text[:-1] if ends_line else text).split("\n") if text else ():
        if line.startswith("\t"):
            source, separator, destination = line[1:].partition(SEPARATOR)
            if not separator or not source or not destination:
                raise GraphParseError("this is not an edge", text, start, fix="write a tab, then `source -- destination`")
            edges.append((source, destination))
            places.append(start)
        else:
            node = _node(line, text, start)
            if node.id in nodes:
                raise GraphParseError(f"two nodes have the id {node.id!r}", text, start)
            nodes[node.id] = node
        start += len(line) + 1
    for edge, place in zip(edges, places):
        for name in edge:
            if name not in nodes:
                raise GraphParseError(f"unknown node {name!r}", text, place, fix="add a line for the node, or drop the edge")
    return ProfileGraph(tuple(nodes.values()), tuple(edges), ends_line)


def write_graph(graph: ProfileGraph) -> str:
    """Writes a profile graph in PipeDream's text form; a graph that was read comes out as it was.

    Args:
        graph: The graph.

    Returns:
        The text. Numbers that were not read from a file have three digits behind the point, as PipeDream writes them, or
        more where three would lose something.

    Example:
        >>> print(write_graph(ProfileGraph((ProfileNode("a", "ReLU", 1.5, 2.0, (4.0, 8.0), stage=0),))))
        a -- ReLU -- forward_compute_time=1.500, backward_compute_time=2.000, activation_size=[4.0; 8.0], parameter_size=0.000 -- stage_id=0
    """
    lines = [_written(node) for node in graph.nodes]
    lines += [f"\t{source}{SEPARATOR}{destination}" for source, destination in graph.edges]
    return "\n".join(lines) + "\n" * graph.ends_line


def _node(line: str, text: str, start: int) -> ProfileNode:
    match = _NODE.fullmatch(line)
    if match is None:
        raise GraphParseError("this is not a node", text, start, fix=f"write `id -- description -- {'=..., '.join(_FIELDS)}=...`")
    spelled = (match["f"], match["b"], match["a"], match["p"])
    forward, backward, activations, parameters = map(_value, spelled)
    stage = None if match["stage"] is None else int(match["stage"])
    try:
        return ProfileNode(match["id"], match["description"], forward[0], backward[0], activations, parameters[0], stage, spelled)
    except GraphError as error:
        raise GraphParseError(error.what, text, start, fix=error.fix or error.why) from None


def _written(node: ProfileNode) -> str:
    values = ((node.forward_ms,), (node.backward_ms,), node.activations, (node.parameter_bytes,))
    spelled = node.spelled or ("", "", "", "")
    numbers = [old if old and _value(old) == value else _spell(value, name) for old, value, name in zip(spelled, values, _FIELDS)]
    parts = [node.id, node.description, ", ".join(f"{name}={number}" for name, number in zip(_FIELDS, numbers))]
    if node.stage is not None:
        parts.append(f"stage_id={node.stage}")
    return SEPARATOR.join(parts)


def _value(spelled: str) -> tuple[float, ...]:
    return tuple(float(part) for part in spelled.strip("[]").split(";"))


def _spell(value: tuple[float, ...], name: str) -> str:
    if name == "activation_size":
        return repr(float(value[0])) if len(value) == 1 else f"[{'; '.join(repr(float(size)) for size in value)}]"
    fixed = f"{value[0]:.3f}"
    return fixed if float(fixed) == value[0] else repr(float(value[0]))
