"""Copies that loops and results need: a carried value has one buffer from before its loop until after it."""

from __future__ import annotations

from collections.abc import Mapping, Set

from shardy_py.cost.liveness.graph import Graph, Kind, Node, Region, reads


def insert_copies(graph: Graph) -> None:
    """Adds the copies that let carried values, branch results and results of the program lie in memory of their own."""
    fixed = set(graph.main.arguments)
    donated = {graph.main.arguments[i]: r for i, r in graph.donated.items() if i < len(graph.main.arguments)}
    _region(graph, graph.main, fixed, donated.keys())
    pairs = [(v, graph.main.results[r]) for v, r in donated.items()]
    _copy_overwritten(graph, graph.main, [(a, b) for a, b in pairs if a != b and b not in fixed])
    distinct: set[int] = set()
    results: list[int] = []
    for r, v in enumerate(graph.main.results):
        if v in distinct or (v in fixed and donated.get(v) != r):
            v = _append_copy(graph, v, graph.main.nodes)
        distinct.add(v)
        results.append(v)
    graph.main.results = results


def _append_copy(graph: Graph, v: int, nodes: list[Node]) -> int:
    copy = graph.copy(v)
    nodes.append(Node(Kind.COPY, [v], [copy], label="copy"))
    return copy


def _region(graph: Graph, region: Region, fixed: set[int], donated: Set[int]) -> None:
    """Inserts copies around loops and branches of a region; values in `fixed` are read-only, but updates may write `donated` ones."""
    if not any(n.kind in _WRITING for n in region.nodes):
        return
    uses: dict[int, int] = {}
    _count(region, uses)
    literal = {v for n in region.nodes if n.kind is Kind.LITERAL for v in n.results}
    written = _unsafe_updates(region, uses, (fixed - donated) | literal)
    nodes: list[Node] = []
    carried: set[int] = set()
    for node in region.nodes:
        if node.kind is Kind.LOOP:
            for i, v in enumerate(node.operands):
                readers = uses[v]
                if v in fixed or v in literal or v in carried or readers > node.operands.count(v):
                    node.operands[i] = _append_copy(graph, v, nodes)
                else:
                    carried.add(v)
            _region(graph, node.regions[1], fixed, donated)
            _copy_carries(graph, node.regions[1])
        elif node.kind is Kind.BRANCH:
            for inner in node.regions:
                _region(graph, inner, fixed, donated)
                _copy_shared_results(graph, inner)
        elif id(node) in written:
            v = node.operands[0]
            node.operands[0] = copy = _append_copy(graph, v, nodes)
            node.shares = tuple(copy if s == v else s for s in node.shares)
        nodes.append(node)
    region.nodes = nodes


_WRITING = frozenset((Kind.LOOP, Kind.BRANCH, Kind.UPDATE, Kind.SCATTER))
"""Kinds that write over their operands."""


def _unsafe_updates(region: Region, uses: dict[int, int], fixed: set[int]) -> set[int]:
    """The ids of updates that need a copy of their target, since other readers of it may run later."""
    unsafe: set[int] = set()
    shared: dict[int, list[Node]] = {}
    for node in region.nodes:
        if node.kind not in (Kind.UPDATE, Kind.SCATTER) or node.operands[0] not in node.shares:
            continue
        v = node.operands[0]
        if v in fixed:
            unsafe.add(id(node))
        elif v not in region.arguments and uses[v] > node.operands.count(v):
            if v in region.results or node.operands.count(v) > 1:
                unsafe.add(id(node))
            else:
                shared.setdefault(v, []).append(node)
    readers: dict[int, list[Node]] = {v: [] for v in shared}
    if shared:
        for node in region.nodes:
            for v in set(reads(node)):
                if v in readers:
                    readers[v].append(node)
    readers_of_update = {id(n): [u for u in readers[v] if u is not n] for v, nodes in shared.items() for n in nodes}
    return unsafe | (readers_of_update.keys() - _preceded(region, readers_of_update))


def _count(region: Region, uses: dict[int, int]) -> None:
    for v in region.results:
        uses[v] = uses.get(v, 0) + 1
    for node in region.nodes:
        for v in node.operands:
            uses[v] = uses.get(v, 0) + 1
        for inner in node.regions:
            _count(inner, uses)


def _copy_shared_results(graph: Graph, body: Region) -> None:
    """Copies results that are made outside of a body, or returned before in another place: each needs a buffer of its own."""
    own = {v for n in body.nodes for v in n.results}
    results: set[int] = set()
    for i, v in enumerate(body.results):
        if v not in own or v in results:
            body.results[i] = _append_copy(graph, v, body.nodes)
        results.add(body.results[i])


def _copy_carries(graph: Graph, body: Region) -> None:
    """Copies carried values that are read after, or beside, the node that writes the next one."""
    _copy_shared_results(graph, body)
    _copy_overwritten(graph, body, list(zip(body.arguments, body.results)))


def _copy_overwritten(graph: Graph, region: Region, pairs: list[tuple[int, int]]) -> None:
    """Copies arguments that are read after a result is written over them, or may be."""
    own = {v: n for n in region.nodes for v in n.results}
    readers: dict[int, list[Node]] = {a: [] for a, _ in pairs}
    for node in region.nodes:
        for v in readers.keys() & reads(node):
            readers[v].append(node)
    others = {a: [u for u in readers[a] if u is not own[r]] for a, r in pairs}
    readers_of_maker: dict[int, list[Node]] = {}
    for argument, result in pairs:
        readers_of_maker.setdefault(id(own[result]), []).extend(others[argument])
    ordered = _preceded(region, readers_of_maker)
    first: list[Node] = []
    for argument, result in pairs:
        maker = own[result]
        in_place = argument in maker.shares or len(others[argument]) == len(readers[argument])
        if not readers[argument] or (in_place and id(maker) in ordered):
            continue
        copy = _append_copy(graph, argument, first)
        for u in readers[argument]:
            _replace(u, argument, copy)
    region.nodes[:0] = first


def _preceded(region: Region, predecessors: Mapping[int, list[Node]]) -> set[int]:
    """The keys of `predecessors` (ids of nodes) before which all of their nodes have to run."""
    number = {u: i for i, u in enumerate(dict.fromkeys(id(u) for nodes in predecessors.values() for u in nodes))}
    if not number:
        return {id(node) for node in region.nodes if id(node) in predecessors}
    behind: dict[int, int] = {}
    preceded: set[int] = set()
    for node in region.nodes:
        before = 0
        for v in reads(node):
            before |= behind.get(v, 0)
        if id(node) in predecessors and all(before >> number[id(u)] & 1 for u in predecessors[id(node)]):
            preceded.add(id(node))
        if id(node) in number:
            before |= 1 << number[id(node)]
        if before:
            for v in node.results:
                behind[v] = before
    return preceded


def _replace(node: Node, old: int, new: int) -> None:
    node.operands = [new if v == old else v for v in node.operands]
    node.shares = tuple(new if v == old else v for v in node.shares)
    for inner in node.regions:
        inner.results = [new if v == old else v for v in inner.results]
        for n in inner.nodes:
            _replace(n, old, new)
