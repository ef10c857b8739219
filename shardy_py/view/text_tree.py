"""A tree within a limit of lines: equal layers are merged, small subtrees stand on one line, the rest is counted."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from shardy_py.ir.types import local_bytes
from shardy_py.plan.checks.context import is_replicated
from shardy_py.plan.collectives import format_bytes
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.values import PlannedValue

INLINE = 4
"""A subtree of at most so many lines gets no line of its own: its lines carry its label."""

_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A line, or several below one.

    Attributes:
        text: The rest of its line; of an inner node, the text in place of its children where they are left out.
        bytes: Bytes per device, once; of an inner node the sum over its children.
        count: The number of values it stands for, once.
        times: The number of equal rows it stands for.
    """

    label: str
    text: str = ""
    bytes: int = 0
    count: int = 1
    times: int = 1
    replicated: bool = False
    children: tuple[TreeNode, ...] = ()


Seen = dict[tuple[TreeNode, ...], str]
"""Children of subtrees that were listed -> the label of the first with them."""


def inner_node(label: str, children: Sequence[TreeNode]) -> TreeNode:
    """A node with children."""
    return TreeNode(label, "", bytes_of(children), sum(child.count * child.times for child in children), children=tuple(children))


def bytes_of(nodes: Iterable[TreeNode]) -> int:
    """Bytes on one device."""
    return sum(node.bytes * node.times for node in nodes)


def leaf(plan: PlanRecord, value: PlannedValue) -> TreeNode:
    """A line for a value, without its label."""
    size = local_bytes(value.type, value.sharding, plan.program.meshes)
    return TreeNode("", value.text, size, replicated=bool(value.shape) and is_replicated(value.sharding))


def tree_of(
    leaves: Iterable[tuple[Sequence[str], TreeNode]], depth: int | None = None, numbered: Callable[[str], bool] = lambda label: True
) -> tuple[TreeNode, ...]:
    """The tree of labels from the root to each leaf, in order of first occurrence; equal numbered siblings are merged."""
    parts: dict[str | int, list[tuple[Sequence[str], TreeNode]]] = {}
    for labels, node in leaves:
        if len(labels) > 1:
            parts.setdefault(labels[0], []).append((labels[1:], node))
        else:
            parts[len(parts)] = [((), replace(node, label=labels[0]))]
    nodes = [inner_node(key, tree_of(part, None, numbered)) if isinstance(key, str) else part[0][1] for key, part in parts.items()]
    return tuple(node if depth is None else _cut(node, depth) for node in merged(nodes, numbered))


def merged(nodes: Sequence[TreeNode], numbered: Callable[[str], bool] = lambda label: True) -> list[TreeNode]:
    """Merges siblings that differ only in one consecutive number: `[0]`, `[1]`, `[2]` as `[0..2]`."""
    series: dict[tuple[object, ...], dict[int, int]] = {}
    for position, node in enumerate(nodes):
        match = _NUMBERED.fullmatch(node.label)
        if match is not None and node.times == 1 and numbered(node.label):
            key = (match[1], match[3], node.text, node.bytes, node.count, node.children)
            series.setdefault(key, {})[int(match[2])] = position
    placed: list[tuple[int, TreeNode]] = []
    merged_positions: set[int] = set()
    for key, numbers in series.items():
        for _, run in itertools.groupby(enumerate(sorted(numbers)), lambda entry: entry[1] - entry[0]):
            run = [n for _, n in run]
            positions = [numbers[n] for n in run]
            merged_positions.update(positions)
            first = nodes[min(positions)]
            label = f"{key[0]}{run[0]}..{run[-1]}{key[1]}" if len(run) > 1 else first.label
            placed.append((min(positions), replace(first, label=label, times=len(run))))
    placed += [(position, node) for position, node in enumerate(nodes) if position not in merged_positions]
    return [node for _, node in sorted(placed, key=lambda entry: entry[0])]


def _cut(node: TreeNode, depth: int) -> TreeNode:
    """The node down to so many levels, itself included; deeper ones are left out."""
    if not node.children:
        return node
    if depth <= 1:
        return replace(node, label=f"{node.label} ...", text=counted(node.count), children=())
    return replace(node, children=tuple(_cut(child, depth - 1) for child in node.children))


def counted(count: int, what: str = "array") -> str:
    """A number of things in words."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def joined(nodes: Sequence[TreeNode]) -> list[TreeNode]:
    """Merges nodes with their only child or with few lines below them."""
    out: list[TreeNode] = []
    for node in nodes:
        if not node.children:
            out.append(node)
            continue
        children = joined(node.children)
        if len(children) == 1 or sum(map(lines_of, children)) <= INLINE:
            out += [replace(child, label=f"{node.label}{child.label}", times=node.times * child.times) for child in children]
        else:
            out.append(replace(node, children=tuple(children)))
    return out


def lines_of(node: TreeNode) -> int:
    """The number of lines of a node."""
    return 1 + sum(map(lines_of, node.children))


def repeated(nodes: Sequence[TreeNode], seen: Seen, around: str = "") -> list[TreeNode]:
    """Replaces the children of subtrees that equal an earlier one by its label."""
    out = []
    for node in nodes:
        path = around + node.label
        first = seen.setdefault(node.children, path) if node.children else path
        if first != path:
            out.append(replace(node, text=f"{counted(node.count)}, as {first}", children=()))
        else:
            out.append(replace(node, children=tuple(repeated(node.children, seen, path))))
    return out


def fitted(nodes: Sequence[TreeNode], limit: int | None, each: bool = False) -> list[TreeNode]:
    """At most so many lines, or few more: those of the most bytes, replicated ones first among equals; the others are counted."""
    if limit is None or sum(map(lines_of, nodes)) <= limit:
        return list(nodes)
    listed: set[tuple[int, ...]] = {()}
    room = limit - 1
    for _, path in sorted(_ranked(nodes, each), key=lambda entry: entry[0]):
        new = [path[:k] for k in range(1, len(path) + 1) if path[:k] not in listed]
        room -= 2 * len(new) - 1  # an inner node takes a line for the leaves it leaves out
        if room < 0 and len(listed) > 1:
            break
        listed.update(new)
    return _listed(nodes, (), listed)


def _ranked(
    nodes: Sequence[TreeNode], each: bool, above: tuple[int, ...] = (), times: int = 1
) -> Iterator[tuple[tuple[int, bool], tuple[int, ...]]]:
    """The sorting key of each leaf, and its place: the numbers of the nodes from the root."""
    for i, node in enumerate(nodes):
        if node.children:
            yield from _ranked(node.children, each, (*above, i), times * node.times)
        else:
            yield (-node.bytes * (1 if each else times * node.times), not node.replicated), (*above, i)


def _listed(nodes: Sequence[TreeNode], above: tuple[int, ...], listed: set[tuple[int, ...]]) -> list[TreeNode]:
    """The listed siblings and a line for the others."""
    paths = [((*above, i), node) for i, node in enumerate(nodes)]
    out = [replace(node, children=tuple(_listed(node.children, path, listed))) for path, node in paths if path in listed]
    omitted = [node for path, node in paths if path not in listed]
    if omitted:
        count = sum(node.count * node.times for node in omitted)
        most = format_bytes(max(map(_largest, omitted)))
        label = f"... and {count:,} more arrays, of {most} or less each" if count > 1 else f"... and 1 more array of {most}"
        out.append(TreeNode(label, count=0))
    return out


def _largest(node: TreeNode) -> int:
    """Bytes of the largest leaf."""
    return max(map(_largest, node.children)) if node.children else node.bytes


def written(
    nodes: Sequence[TreeNode], describe: Callable[[TreeNode], str] = lambda node: counted(node.count), widest: int = 64
) -> list[str]:
    """The lines, in columns: label, text, bytes per device, how many there are."""
    rows: list[tuple[str, str, str, str]] = []
    stack = [(node, 1) for node in reversed(nodes)]
    while stack:
        node, level = stack.pop()
        trips = f"x{node.times}" if node.times > 1 else ""
        text = describe(node) if node.children else node.text
        size = format_bytes(node.bytes) if node.count and (text or not node.children) else ""
        rows.append(("  " * level + node.label, text, size, trips))
        stack.extend((child, level + 1) for child in reversed(node.children))
    widths = [min(max((len(row[k]) for row in rows if row[1]), default=0), widest) for k in (0, 1)]
    size = max((len(row[2]) for row in rows), default=0)
    out = []
    for label, text, of_node, trips in rows:
        # A label that is too wide takes room from the next column before it moves the others.
        second = max(widths[1] - max(len(label) - widths[0], 0), 0)
        line = f"{label:<{widths[0]}}  {text:<{second}}  {of_node:>{size}}  {trips}" if text or of_node else label
        out.append(line.rstrip())
    return out
