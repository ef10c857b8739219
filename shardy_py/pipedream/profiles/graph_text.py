"""PipeDream's graph.txt: read and written without loss.

A node is a line `id -- description -- forward_compute_time=..., backward_compute_time=..., activation_size=...,
parameter_size=...`, with ` -- stage_id=...` behind it once it has a stage; an edge is a line that starts with a tab. Times
are in milliseconds, sizes in bytes; an activation may be a list, `[6291456.0; 131072.0]`.
"""

from __future__ import annotations

import re

from shardy_py.errors import ParseError
from shardy_py.pipedream.profiles.graph import SEPARATOR, GraphError, ProfileGraph, ProfileNode

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
