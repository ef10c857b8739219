"""Simplifications of every compiler: CSE, DCE, constant folding, loop-invariant code motion, loops without invariant carries."""

from __future__ import annotations

from dataclasses import replace

from shardy_py.cost.liveness.graph import Graph, Kind, Node, Region, reads


def simplify(graph: Graph) -> None:
    """Simplifies a graph; merging and removal run twice where there are loops, which leave more to remove as they carry fewer values."""
    _merge(graph, graph.main, {}, {})
    _fold(graph.main, set(), set())
    has_regions = any(node.regions for node in graph.main.nodes)
    for _ in range(2 if has_regions else 1):
        _merge(graph, graph.main, {}, {})
        _thin(graph.main, set(graph.main.results))
    if has_regions:
        _sink(graph, graph.main, {})
        _thin(graph.main, set(graph.main.results))


def _sink(graph: Graph, region: Region, outside: dict[int, Node]) -> None:
    """Copies splats into the loops and branches that read them."""
    uniform = {n.results[0]: n for n in region.nodes if n.kind is Kind.BROADCAST and not n.operands and n.label not in POSITIONS}
    visible = {**outside, **uniform}
    for node in region.nodes:
        for inner in node.regions:
            names: dict[int, int] = {}
            for v in dict.fromkeys((*inner.results, *(v for n in inner.nodes for v in reads(n)))):
                if v in visible:
                    names[v] = graph.copy(v)
            if names:
                for n in inner.nodes:
                    rename(n, names)
                inner.results = [names.get(v, v) for v in inner.results]
                inner.nodes[:0] = [replace(visible[v], results=[copy]) for v, copy in names.items()]
            _sink(graph, inner, visible)


def rename(node: Node, names: dict[int, int]) -> None:
    """Renames the values that a node and its regions read."""
    node.operands = [names.get(v, v) for v in node.operands]
    for inner in node.regions:
        inner.results = [names.get(v, v) for v in inner.results]
        for n in inner.nodes:
            rename(n, names)


def _fold(region: Region, constant: set[int], uniform: set[int]) -> None:
    """Folds ops on constants: on splats to a splat, on literals to a literal."""
    for node in region.nodes:
        for inner in node.regions:
            _fold(inner, set(constant), set(uniform))
        if node.kind in (Kind.LITERAL, Kind.BROADCAST) and not node.operands:
            if node.label not in POSITIONS:
                constant.update(node.results)
                if node.kind is Kind.BROADCAST:
                    uniform.update(node.results)
        elif node.kind in _FOLDED and node.operands and constant.issuperset(node.operands):
            if node.kind is Kind.BROADCAST or uniform.issuperset(node.operands):
                node.kind = Kind.BROADCAST
                uniform.update(node.results)
            elif uniform.isdisjoint(node.operands):
                node.kind = Kind.LITERAL
            else:
                continue
            node.key = (node.key, tuple(node.operands))
            node.operands = []
            constant.update(node.results)


POSITIONS = frozenset(("iota", "axis_index", "stablehlo.partition_id", "partition_id"))
"""Labels of nodes without operands that are no constants."""

_FOLDED = frozenset((Kind.ELEMENTWISE, Kind.EXPENSIVE, Kind.BROADCAST, Kind.VIEW, Kind.SHAPE))


def _merge(graph: Graph, region: Region, replaced: dict[int, int], available: dict[object, list[int]]) -> None:
    """Merges equal nodes of a region, and forwards loop-invariant carries."""
    nodes: list[Node] = []
    merged = replaced.keys()
    for node in region.nodes:
        if not merged.isdisjoint(node.operands):
            node.operands = [replaced.get(v, v) for v in node.operands]
        if node.kind is Kind.LOOP:
            _unchanged(node, replaced)
        for inner in node.regions:
            _merge(graph, inner, replaced, {})
        if node.key is not None and node.kind is not Kind.SUM:  # each reduction is followed by a sum of its own
            key = _shape(node) if node.regions else (node.key, tuple(node.operands))
            equal = available.get(key)
            if equal is not None:
                replaced.update(zip(node.results, equal))
                continue
            available[key] = node.results
        if node.kind is Kind.LOOP:
            hoisted = _hoisted(graph, node)
            for n in hoisted:
                if n.kind in _CHANNELS:
                    n.key = n.key, n.results[0]
            nodes.extend(hoisted)
        nodes.append(node)
    region.nodes = nodes
    region.results = [replaced.get(v, v) for v in region.results]


def _shape(node: Node) -> object:
    """The key of a node with regions: its nodes, their values numbered in order."""
    numbers: dict[int, int] = {}

    def number(v: int) -> object:
        return numbers.get(v, -1 - v)

    def region(inner: Region) -> object:
        for v in inner.arguments:
            numbers[v] = len(numbers)
        nodes: list[object] = []
        for n in inner.nodes:
            regions = tuple(map(region, n.regions))
            own = n.key is None or n.kind in _CHANNELS
            nodes.append((tuple(n.results) if own else n.key, tuple(map(number, n.operands)), regions))
            for v in n.results:
                numbers[v] = len(numbers)
        return tuple(nodes), tuple(map(number, inner.results))

    return node.kind, tuple(node.operands), tuple(map(region, node.regions))


_CHANNELS = frozenset((Kind.COLLECTIVE, Kind.SUM))
"""Kinds with a channel of their own, so that loops with equal ones are not equal."""


def _unchanged(loop: Node, replaced: dict[int, int]) -> None:
    """Forwards loop-invariant carries to their initial values, inside the loop and after it."""
    condition, body = loop.regions
    keep: list[int] = []
    for i, (before, argument, result) in enumerate(zip(loop.operands, body.arguments, body.results)):
        if argument == result:
            replaced[argument] = replaced[condition.arguments[i]] = replaced[loop.results[i]] = before
        else:
            keep.append(i)
    _select(loop, keep)


def _select(loop: Node, keep: list[int]) -> None:
    condition, body = loop.regions
    if len(keep) == len(loop.operands):
        return
    loop.operands = [loop.operands[i] for i in keep]
    loop.results = [loop.results[i] for i in keep]
    condition.arguments = [condition.arguments[i] for i in keep]
    body.arguments = [body.arguments[i] for i in keep]
    body.results = [body.results[i] for i in keep]


_STAYS = frozenset((Kind.UPDATE, Kind.SCATTER, Kind.COPY, Kind.BARRIER, Kind.LOOP, Kind.BRANCH))
"""Kinds that are never hoisted: those that write, or have regions."""

_LIGHT = frozenset((Kind.BROADCAST, Kind.LITERAL, Kind.VIEW))
"""Kinds too cheap to hoist, except as operands of hoisted nodes."""

_LIGHT_OPS = frozenset(("stablehlo.reverse", "stablehlo.slice", "stablehlo.transpose"))


def _hoisted(graph: Graph, loop: Node) -> list[Node]:
    """Removes loop-invariant nodes from a loop's body and returns them, with copies of the light nodes that they read."""
    body = loop.regions[1]
    inside = set(body.arguments)
    light: dict[int, Node] = {}
    outside: dict[int, int] = {}
    hoisted: list[Node] = []
    remaining: list[Node] = []
    for node in body.nodes:
        if node.kind in _STAYS or node.key is None or any(v in inside and v not in light for v in node.operands):
            inside.update(node.results)
        elif node.kind in _LIGHT or node.name in _LIGHT_OPS:
            inside.update(node.results)
            light[node.results[0]] = node
        else:
            for v in node.operands:
                _copy_out(graph, v, light, outside, hoisted)
            node.operands = [outside.get(v, v) for v in node.operands]
            hoisted.append(node)
            continue
        remaining.append(node)
    body.nodes = remaining
    return hoisted


def _copy_out(graph: Graph, v: int, light: dict[int, Node], outside: dict[int, int], hoisted: list[Node]) -> None:
    """Adds a copy of the light node that makes a value, and of the light nodes that it reads."""
    if v not in light or v in outside:
        return
    for read in light[v].operands:
        _copy_out(graph, read, light, outside, hoisted)
    copy = outside[v] = graph.copy(v)
    hoisted.append(replace(light[v], operands=[outside.get(o, o) for o in light[v].operands], results=[copy]))


def _thin(region: Region, needed: set[int]) -> None:
    """Removes dead nodes; adds the values that the region reads from outside to `needed`."""
    live: list[Node] = []
    for node in reversed(region.nodes):
        if node.key is not None and needed.isdisjoint(node.results):
            continue
        live.append(node)
        if node.kind is Kind.LOOP:
            _thin_loop(node, needed)
        elif node.kind is Kind.BRANCH:
            keep = [i for i, v in enumerate(node.results) if v in needed]
            node.results = [node.results[i] for i in keep]
            for inner in node.regions:
                inner.results = [inner.results[i] for i in keep]
                needed.update(inner.results)
                _thin(inner, needed)
        needed.update(node.operands)
    live.reverse()
    region.nodes = live


def _thin_loop(loop: Node, needed: set[int]) -> None:
    """Removes carries that neither the loop's condition nor a reader after it needs."""
    _one_counter(loop, needed)
    condition, body = loop.regions
    live = {i for i, v in enumerate(loop.results) if v in needed}
    inside: set[int] = set(condition.results)
    _thin(condition, inside)
    makers = {v: n for n in body.nodes for v in n.results}
    live |= {i for i, v in enumerate(condition.arguments) if v in inside}
    number = {v: i for i, v in enumerate(body.arguments)}
    seen: set[int] = set()
    stack = [body.results[i] for i in live]
    for node in body.nodes:
        if node.key is None:
            stack.extend(node.operands)
    while stack:
        v = stack.pop()
        if v in seen:
            continue
        seen.add(v)
        if v in number and number[v] not in live:
            live.add(number[v])
            stack.append(body.results[number[v]])
        elif v in makers:
            stack.extend(reads(makers[v]))
    _select(loop, sorted(live))
    needed.update(inside)
    inside = set(body.results)
    _thin(body, inside)
    needed.update(inside)


def _one_counter(loop: Node, needed: set[int]) -> None:
    """Computes the counters of a loop from one of them, except counters that are read after the loop."""
    condition, body = loop.regions
    makers = {v: n for n in body.nodes for v in n.results}
    counters = [i for i, v in enumerate(body.results) if _counts(makers.get(v), body.arguments[i], makers)]
    base = next((i for i in counters if condition.arguments[i] in _all_read(condition)), counters[0] if counters else -1)
    derived = [i for i in counters if i != base and loop.results[i] not in needed]
    for region in (condition, body):
        for i in derived:
            first, other = region.arguments[base], region.arguments[i]
            region.nodes.insert(0, Node(Kind.ELEMENTWISE, [first], [other], key=("counter", i), label="add"))
    if derived:
        _select(loop, [i for i in range(len(loop.results)) if i not in derived])


def _counts(maker: Node | None, argument: int, makers: dict[int, Node]) -> bool:
    if maker is None or maker.name != "stablehlo.add" or argument not in maker.operands:
        return False
    others = [v for v in maker.operands if v != argument]
    return len(others) == 1 and (others[0] not in makers or makers[others[0]].kind is Kind.LITERAL)


def _all_read(region: Region) -> set[int]:
    return {v for node in region.nodes for v in reads(node)}
