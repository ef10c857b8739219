"""Arrays that loops fill step by step: the stacked results of a scan, with its residuals."""

from __future__ import annotations

from collections.abc import Mapping

from shardy_py.cost.liveness.graph import Graph, Kind, Node, Region

_MOVES = frozenset((Kind.VIEW, Kind.BROADCAST, Kind.COPY))


def name_stacks(graph: Graph) -> None:
    """Fills in `Graph.writers`, before fusion removes the nodes that make the elements."""
    _visit(graph.main, graph.writers)


def _visit(region: Region, writers: dict[int, Node]) -> None:
    for node in region.nodes:
        for inner in node.regions:
            _visit(inner, writers)
        if node.kind is not Kind.LOOP:
            continue
        body = node.regions[1]
        makers = {v: n for n in body.nodes for v in n.results}
        for argument, result in zip(body.arguments, body.results):
            update = makers.get(result)
            if update is not None and update.kind is Kind.UPDATE and update.operands[0] == argument:
                writer = _origin(update.operands[1], body, makers, writers)
                if writer is not None:
                    writers[argument] = writer


def _origin(value: int, body: Region, makers: Mapping[int, Node], writers: Mapping[int, Node]) -> Node | None:
    """The node that makes the elements of a value.

    Of a value from the step before, it is the node that makes it there; of an array that an inner loop fills, the node in that loop.
    """
    carries = dict(zip(body.arguments, body.results))
    for _ in range(2):
        node = makers.get(value)
        while node is not None and node.kind in _MOVES and len(node.operands) == 1:
            value = node.operands[0]
            node = makers.get(value)
        if node is not None and node.kind is Kind.LOOP:
            return writers.get(node.regions[1].arguments[node.results.index(value)], node)
        if node is not None or value not in carries:
            return node
        value = carries[value]
    return None
