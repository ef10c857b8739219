"""Combining of all-reduces, whose operands then wait for each other."""

from __future__ import annotations

from collections.abc import Hashable

from shardy_py.cost.liveness.graph import Graph, Kind, Node, Region, reads

MAX_COMBINED = 256
"""Largest number of all-reduces in one."""


def combine(graph: Graph) -> None:
    """Makes one node of all-reduces of a region that are alike and do not depend on each other, as XLA's `AllReduceCombiner`.

    Args:
        graph: Is changed.
    """
    _combine(graph.main)


def _combine(region: Region) -> None:
    for node in region.nodes:
        for inner in node.regions:
            _combine(inner)
    if sum(node.kind is Kind.SUM for node in region.nodes) < 2:
        return
    behind: dict[int, int] = {}
    open_: dict[Hashable, list[tuple[int, list[Node]]]] = {}
    groups = 0
    for node in region.nodes:
        mask = 0
        for v in reads(node):
            mask |= behind.get(v, 0)
        if node.kind is Kind.SUM and node.key is not None:
            alike = open_.setdefault(node.group, [])
            for bit, members in alike:
                if not mask & bit and len(members) < MAX_COMBINED:
                    members.append(node)
                    break
            else:
                bit = 1 << groups
                groups += 1
                alike.append((bit, [node]))
            mask |= bit
        if mask:
            for v in node.results:
                behind[v] = mask
    joined = [members for alike in open_.values() for _, members in alike if len(members) > 1]
    if not joined:
        return
    original = region.nodes
    region.nodes = _joined(original, joined)
    if not _is_acyclic(region):
        region.nodes = original
        for members in joined:
            previous = region.nodes
            region.nodes = _joined(previous, [members])
            if not _is_acyclic(region):
                region.nodes = previous
    region.nodes = _sorted(region.nodes)


def _joined(nodes: list[Node], groups: list[list[Node]]) -> list[Node]:
    last = {id(members[-1]): members for members in groups}
    inside = {id(n) for members in groups for n in members}
    out: list[Node] = []
    for node in nodes:
        members = last.get(id(node))
        if members is not None:
            out.append(
                Node(
                    Kind.SUM,
                    [v for n in members for v in n.operands],
                    [v for n in members for v in n.results],
                    key=("combined", tuple(n.key for n in members)),
                    label=node.label,
                    source=node.source,
                )
            )
        elif id(node) not in inside:
            out.append(node)
    return out


def _sorted(nodes: list[Node]) -> list[Node]:
    """The nodes in topological order, as near to their present order as possible."""
    maker = {v: n for n in nodes for v in n.results}
    done: set[int] = set()
    out: list[Node] = []
    for root in nodes:
        stack = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if ready:
                out.append(node)
                continue
            if id(node) in done:
                continue
            done.add(id(node))
            stack.append((node, True))
            for v in reversed(reads(node)):
                before = maker.get(v)
                if before is not None and id(before) not in done:
                    stack.append((before, False))
    return out


def _is_acyclic(region: Region) -> bool:
    maker = {v: n for n in region.nodes for v in n.results}
    state: dict[int, int] = {}
    for root in region.nodes:
        stack = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if ready:
                state[id(node)] = 2
                continue
            if state.get(id(node)):
                continue
            state[id(node)] = 1
            stack.append((node, True))
            for v in reads(node):
                before = maker.get(v)
                if before is None:
                    continue
                if state.get(id(before)) == 1:
                    return False
                if not state.get(id(before)):
                    stack.append((before, False))
    return True
