"""The order in which a compiler runs the nodes of a graph."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from shardy_py.cost.liveness.graph import Graph, Kind, Node, Region, reads


def program_order(region: Region) -> list[Node]:
    """The order of the program."""
    return region.nodes


def from_results(graph: Graph) -> None:
    """Orders the nodes of all regions by a traversal from the results, operands first, as XLA's partitioner rebuilds them."""
    _from_results(graph.main)


def _from_results(region: Region) -> None:
    for node in region.nodes:
        for inner in node.regions:
            _from_results(inner)
    maker: dict[int, Node | None] = dict.fromkeys(region.arguments)
    maker.update((v, n) for n in region.nodes for v in n.results)
    visited: set[int] = set()
    nodes: list[Node] = []
    arguments: list[int] = []
    effects = [v for n in region.nodes if n.key is None for v in n.results[:1]]
    stack: list[int | Node] = [*reversed(effects), *reversed(region.results)]
    while stack:
        item = stack.pop()
        if isinstance(item, Node):
            nodes.append(item)
            continue
        if item in visited or item not in maker:
            continue
        node = maker[item]
        if node is None:
            visited.add(item)
            arguments.append(item)
            continue
        visited.update(node.results)
        stack.append(node)
        stack.extend(reversed(reads(node)))
    seen = set(map(id, nodes))
    region.nodes = [n for n in region.nodes if id(n) not in seen and not n.results] + nodes
    region.read_order = arguments


def positions(graph: Graph, *, inner_first: bool) -> dict[int, int]:
    """Each value's position in a traversal from the results, operands first; `inner_first`, values in regions before outer ones."""
    numbers: dict[int, int] = {}
    _number(graph.main, inner_first, numbers)
    return numbers


def _number(region: Region, inner_first: bool, numbers: dict[int, int]) -> None:
    order: list[int] = []
    regions: list[Region] = []
    maker = {v: n for n in region.nodes for v in n.results}
    arguments = set(region.arguments)
    visited: set[int] = set()
    stack: list[int | Node] = [*reversed(region.results)]
    for node in region.nodes:
        if node.key is None and node.kind is not Kind.COPY:
            stack.extend(node.results[:1])
    while stack:
        item = stack.pop()
        if isinstance(item, Node):
            order += item.results
            regions += item.regions
        elif item not in visited:
            visited.add(item)
            node = maker.get(item)
            if node is not None:
                visited.update(node.results)
                stack.append(node)
                stack += [v for v in reversed(reads(node)) if v not in visited]
            elif item in arguments:
                order.append(item)
    if not inner_first:
        for v in order:
            numbers.setdefault(v, len(numbers))
    for inner in regions if inner_first else reversed(regions):
        _number(inner, inner_first, numbers)
    for v in order:
        numbers.setdefault(v, len(numbers))


def breadth_first(region: Region) -> list[Node]:
    """First ready, first run, as XLA orders programs for CPUs (`BFScheduler`), so that many nodes run in parallel.

    XLA's loops and branches read a tuple, and readers of one of several results read that result's element: each is one more step in the
    queue, as is a view.
    """
    waiting: dict[int, int] = {}
    users: dict[int, list[Node]] = {}
    inside = {v for n in region.nodes for v in n.results}
    inside.update(region.arguments)
    ready: deque[Node | _Tuple | _Value] = deque(map(_Value, dict.fromkeys((*region.read_order, *region.arguments))))

    def enqueue(node: Node) -> None:
        ready.append(_Tuple(node) if node.kind in _TUPLED else node)

    for node in region.nodes:
        needed = dict.fromkeys(v for v in reads(node) if v in inside)
        waiting[id(node)] = len(needed)
        for v in needed:
            users.setdefault(v, []).append(node)
        if not needed:
            enqueue(node)
    done: list[Node] = []
    while ready:
        item = ready.popleft()
        if isinstance(item, _Tuple):
            ready.append(item.node)
            continue
        if isinstance(item, Node):
            done.append(item)
            if item.kind in _TUPLED or (len(item.results) > 1 and item.kind is not Kind.BARRIER):
                ready.extend(map(_Value, item.results))
                continue
            values = [_Value(v) for v in item.results]
        else:
            values = [item]
        for value in values:
            further = False
            for user in users.get(value.number, ()):
                views = user.view_depth.get(value.number, 0)
                further |= views > value.views
                if views == value.views:
                    waiting[id(user)] -= 1
                    if not waiting[id(user)]:
                        enqueue(user)
            if further:
                ready.append(_Value(value.number, value.views + 1))
    return done


class _Value(NamedTuple):
    """A value in the queue, seen through `views` views."""

    number: int
    views: int = 0


class _Tuple(NamedTuple):
    """The tuple that a loop or branch reads."""

    node: Node


_TUPLED = frozenset((Kind.LOOP, Kind.BRANCH))


ORDERS: Mapping[str, Callable[[Region], list[Node]]] = {"breadth-first": breadth_first, "program": program_order}
"""Name -> order."""


def order_nodes(graph: Graph, order: str) -> None:
    """Orders the nodes of all regions."""
    _order(graph.main, ORDERS[order])


def _order(region: Region, order: Callable[[Region], list[Node]]) -> None:
    for node in region.nodes:
        for inner in node.regions:
            _order(inner, order)
    region.nodes = order(region)
