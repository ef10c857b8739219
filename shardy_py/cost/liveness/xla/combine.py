"""Combining of all-reduces, whose operands then wait for each other."""

from __future__ import annotations

from collections.abc import Hashable

from shardy_py.cost.liveness.graph import Graph, Kind, Node, Region, reads

MAX_COMBINED = 256
"""Largest number of all-reduces in one."""


def combine(graph: Graph) -> None:
    """Makes one node of all-reduces of a region that are alike and do not depend on each other, as XLA's `AllReduceCombiner`."""
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
    ordered = _sorted(_joined(region.nodes, joined))
    if ordered is None:
        nodes = region.nodes
        for members in joined:
            candidate = _joined(nodes, [members])
            nodes = nodes if _sorted(candidate) is None else candidate
        ordered = _sorted(nodes)
    if ordered is not None:
        region.nodes = ordered


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


def _sorted(nodes: list[Node]) -> list[Node] | None:
    """The nodes in the topological order nearest to the current one; None if there is a cycle."""
    maker = {v: n for n in nodes for v in n.results}
    is_out: dict[int, bool] = {}
    out: list[Node] = []
    for root in nodes:
        if id(root) in is_out:
            continue
        stack = [(root, False)]
        while stack:
            node, ready = stack.pop()
            key = id(node)
            if ready:
                is_out[key] = True
                out.append(node)
                continue
            if key in is_out:
                continue
            is_out[key] = False
            stack.append((node, True))
            for v in reversed(reads(node)):
                before = maker.get(v)
                if before is None:
                    continue
                before_is_out = is_out.get(id(before))
                if before_is_out is None:
                    stack.append((before, False))
                elif not before_is_out:
                    return None
    return out
