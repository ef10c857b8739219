"""Fusion of nodes into their readers, so that their results never reach memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shardy_py.cost.liveness.graph import Graph, Kind, Node, Region
from shardy_py.cost.liveness.xla.evaluations import MAX_COPIES, Evaluations, is_block

ABSORBED = frozenset((Kind.ELEMENTWISE, Kind.EXPENSIVE, Kind.BROADCAST, Kind.VIEW, Kind.SHAPE, Kind.REDUCE))
"""Kinds that can be computed where they are read."""

ABSORBING = frozenset((*ABSORBED, Kind.LIBRARY, Kind.UPDATE))
"""Kinds that can compute their operands."""

LIBRARY_FUSIONS: Mapping[str, frozenset[str]] = {
    "": frozenset(("stablehlo.multiply", "stablehlo.exponential")),
    "stablehlo.multiply": frozenset(("stablehlo.broadcast_in_dim", "sdy.constant")),
    "stablehlo.exponential": frozenset(("stablehlo.subtract",)),
    "stablehlo.subtract": frozenset(("stablehlo.broadcast_in_dim",)),
}
"""Reader -> the ops that a library's reduction fuses into it, "" being the reduction itself (YNNPACK's in XLA for CPUs).

Of nested products only the outermost: factors that are products themselves lie in memory.
"""

SLICES = frozenset(("stablehlo.slice", "stablehlo.dynamic_slice"))
"""Slices of slices are one, so that several of one are several of its operand."""

POINTWISE = frozenset((Kind.ELEMENTWISE, Kind.EXPENSIVE))


def fuse(graph: Graph) -> None:
    """Removes nodes whose results need no memory; their readers read their operands instead.

    As XLA's instruction fusion: a value is computed where it is read if all of its readers can, if it is not expensive to duplicate, and if
    it is not a result.
    """
    numbers: dict[object, int] = {}
    types = list(map(graph.array_types.get, range(len(graph.bytes))))
    type_ids = [numbers.setdefault(key, len(numbers)) for key in zip(graph.bytes, types)]
    shapes = [v if array_type is None else array_type[0] for v, array_type in enumerate(types)]
    _fuse(graph.main, type_ids, shapes)


def _fuse(region: Region, type_ids: Sequence[int], shapes: Sequence[Any]) -> None:
    """See `fuse`."""
    for node in region.nodes:
        for inner in node.regions:
            _fuse(inner, type_ids, shapes)
    absorbed, repeated = _absorbed(region, shapes)
    maker = {v: n for n in region.nodes for v in n.results}
    sources: dict[int, dict[int, bool]] = {}
    viewed: dict[int, int] = {}
    depth: dict[int, int] = {}
    kept: list[Node] = []
    for node in region.nodes:
        if not viewed.keys().isdisjoint(node.operands):
            node.view_depth = _deepest((viewed[v], depth[v]) for v in node.operands if v in viewed)
        inside = {v for v in node.operands if v in absorbed or (v in repeated and id(node) in repeated[v])}
        _rename(node, viewed)
        in_place = node.kind is Kind.UPDATE and node.operands[0] not in inside and _reads_what_it_writes(node, inside, maker, absorbed)
        reads: dict[int, bool] = {}
        pointwise = node.kind in POINTWISE
        for position, v in enumerate(node.operands):
            aligned = pointwise or (node.kind is Kind.UPDATE and position == 0)
            if v in inside:
                reads = _read_too(reads, sources[v], aligned)
            else:
                reads[v] = aligned and reads.get(v, True)
        if in_place:
            reads[node.operands[0]] = True
        if node.results and node.results[0] in absorbed:
            sources[node.results[0]] = reads
            continue
        if node.kind is Kind.VIEW and node.operands[0] not in inside:
            viewed[node.results[0]] = node.operands[0]
            depth[node.results[0]] = 1 + node.view_depth.get(node.operands[0], 0)
            continue
        if node.kind in ABSORBING:
            if node.results[0] in repeated:
                sources[node.results[0]] = reads
            if inside:
                node.operands = list(reads)
            if len(node.results) == 1:
                like = type_ids[node.results[0]]
                node.shares = tuple([v for v, straight in reads.items() if straight and type_ids[v] == like])
        kept.append(node)
    region.nodes = kept
    region.results = [viewed.get(v, v) for v in region.results]
    _mark_shares(type_ids, [n for n in kept if n.kind not in ABSORBING])


def _deepest(views: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Value -> the largest number of views through which it is read."""
    deepest: dict[int, int] = {}
    for v, number in views:
        deepest[v] = max(number, deepest.get(v, 0))
    return deepest


def _read_too(reads: dict[int, bool], more: Mapping[int, bool], aligned: bool) -> dict[int, bool]:
    """Sources of a node with those of one more operand, and whether each is only read at the position that is computed.

    A residual stream has many sources: tables are copied as a whole, and only the entries of the shorter one are visited.
    """
    if not aligned:
        more = dict.fromkeys(more, False)
    if len(more) <= len(reads):
        for v, straight in more.items():
            reads[v] = straight and reads.get(v, True)
        return reads
    both = {**reads, **more}
    for v, straight in reads.items():
        both[v] = straight and more.get(v, True)
    return both


def _reads_what_it_writes(node: Node, inside: set[int], maker: Mapping[int, Node], absorbed: set[int]) -> bool:
    """Whether an update reads only the part of its target that it writes, so that it can run in place."""
    target, starts = node.operands[0], node.operands[2:]
    seen: set[int] = set()
    stack = [v for v in node.operands[1:] if v != target]
    if len(stack) < len(node.operands) - 1:
        return False
    while stack:
        v = stack.pop()
        if v in seen or not (v in inside or v in absorbed):
            continue
        seen.add(v)
        source = maker[v]
        sliced, begins = source.operands[:1], source.operands[1:]  # constants are no operands of nodes
        if source.name == "stablehlo.dynamic_slice" and sliced == [target] and begins == starts[: len(begins)]:
            continue
        if target in source.operands:
            return False
        stack += source.operands
    return True


def _rename(node: Node, names: dict[int, int]) -> None:
    if not names:
        return
    if not names.keys().isdisjoint(node.operands):
        node.operands = [names.get(v, v) for v in node.operands]
    if not names.keys().isdisjoint(node.shares):
        node.shares = tuple([names.get(v, v) for v in node.shares])
    for inner in node.regions:
        inner.results = [names.get(v, v) for v in inner.results]
        for n in inner.nodes:
            _rename(n, names)


def _mark_shares(type_ids: Sequence[int], nodes: Iterable[Node]) -> None:
    for node in nodes:
        if node.kind in POINTWISE or node.kind is Kind.COPY:
            node.shares = tuple(v for v in node.operands if type_ids[v] == type_ids[node.results[0]])
        elif node.kind in (Kind.UPDATE, Kind.SCATTER):
            node.shares = tuple(node.operands[:1])
        elif node.writes_over is not None:
            node.shares = (node.operands[node.writes_over],)
        elif node.name == "stablehlo.sort":
            node.shares = tuple(node.operands)


def _absorbed(region: Region, shapes: Sequence[Any]) -> tuple[set[int], dict[int, set[int]]]:
    """The results that all readers compute themselves; and for results that stay in memory, the ids of readers that recompute them."""
    readers = _readers(region)
    maker = {v: node for node in region.nodes for v in node.results}
    outside = set(region.results)
    for node in region.nodes:
        for inner in node.regions:
            _read_inside(inner, outside)
    varying = _repeating(region)
    times: dict[int, int] = {}
    in_library: dict[int, str] = {}
    absorbed: set[int] = set()
    repeated: dict[int, set[int]] = {}
    evaluations = Evaluations(shapes)
    use: dict[int, int] = {}
    for node in reversed(region.nodes):
        update = node.kind is Kind.UPDATE
        if not (node.kind in ABSORBED or update) or len(node.results) != 1:
            continue
        v = node.results[0]
        users = readers.get(v, ())
        able = [u for u in users if u.kind in ABSORBING and _computes(u, node, in_library)]
        if update:  # each operand writes a part of its own, so that converting the result reads no more
            able = [u for u in able if u.name == "stablehlo.convert"]
        times[v] = len(users) + sum([times.get(u.results[0], 1) - 1 for u in users if u.name in SLICES])
        if not able:
            continue
        placement = evaluations.placement(node, users)
        if node.kind is not Kind.BROADCAST:  # which may be written out any number of times
            at_most = MAX_COPIES
            if is_block(node):
                at_most = 0 if times[v] > 1 or evaluations.are_several(able) else 1
            able = [u for u in able if not evaluations.too_many(node, placement, u, at_most)]
        use[v] = _use([max(_USE.get(u.kind, _PERMUTED), use.get(u.results[0], _ONCE) if u.results[0] in absorbed else _ONCE) for u in able])
        if not able or (_is_expensive(node) and (use[v] == _REPEATED or evaluations.are_several(able))):
            continue
        if v in outside or len(able) < len(users):
            if not _is_expensive(node) and (update or _is_unary(shapes, node, maker, varying)):
                repeated[v] = {id(u) for u in able}
                evaluations.absorb(node, placement, able, stays=True, all_read=len(able) == len(users))
            continue
        absorbed.add(v)
        evaluations.absorb(node, placement, able, stays=False, all_read=True)
        for u in users:
            name = _reader_in_library(u, in_library)
            if name is not None:
                in_library[v] = name if node.kind is Kind.VIEW else node.name
    return absorbed, repeated


_ONCE, _PERMUTED, _REPEATED = range(3)
"""Uses of elements: once and in order, once in another order, or several times (`HloInstruction::OperandElementUse`)."""

_USE = {Kind.ELEMENTWISE: _ONCE, Kind.EXPENSIVE: _ONCE, Kind.BROADCAST: _REPEATED}


def _use(uses: Sequence[int]) -> int:
    """The use of elements with several uses."""
    most = max(uses, default=_ONCE)
    return _REPEATED if len(uses) > 1 and most > _ONCE else most


def _computes(user: Node, node: Node, in_library: Mapping[int, str]) -> bool:
    """Whether a reader can compute a node: not one that writes over it, nor a part of a library's reduction that has no place for it."""
    if user.kind is Kind.UPDATE and user.operands[0] == node.results[0]:
        return False
    name = _reader_in_library(user, in_library)
    return name is None or node.kind is Kind.VIEW or node.name in LIBRARY_FUSIONS.get(name, ())


def _is_expensive(node: Node) -> bool:
    return node.kind in (Kind.EXPENSIVE, Kind.REDUCE) or node.expensive or node.name == "stablehlo.gather"


def _repeating(region: Region) -> dict[int, tuple[int, ...]]:
    """Value -> the only dimensions along which it varies: elementwise ops on such values run before the broadcast."""
    varying: dict[int, tuple[int, ...]] = {}
    for node in region.nodes:
        if node.varying_dims is not None:
            varying[node.results[0]] = node.varying_dims
        elif node.kind in POINTWISE and all(v in varying for v in node.operands):
            dims = {varying[v] for v in node.operands} - {()}
            if len(dims) <= 1:
                varying[node.results[0]] = next(iter(dims), ())
    return varying


def _is_unary(shapes: Sequence[Any], node: Node, maker: Mapping[int, Node], varying: Mapping[int, tuple[int, ...]]) -> bool:
    """Whether at most one operand is as large as the result, so that computing it twice reads no more (`EffectivelyAtMostUnary`)."""
    rank = _rank(shapes, node.results[0])
    if any(v in maker and maker[v].is_relayout for v in node.operands):  # a broadcast operand is relaid too, which takes copies
        return sum(_rank(shapes, v) >= rank for v in set(node.operands)) <= 1
    large = [v for v in set(node.operands) if v not in varying and _rank(shapes, v) >= rank]
    return sum(v not in maker or maker[v].kind is not Kind.BROADCAST for v in large) <= 1


def _rank(shapes: Sequence[Any], v: int) -> int:
    return 0 if isinstance(shapes[v], int) else len(shapes[v])


def _reader_in_library(user: Node, in_library: Mapping[int, str]) -> str | None:
    """The name under which `LIBRARY_FUSIONS` has a reader that is part of a library's reduction; None of another."""
    return "" if user.kind is Kind.LIBRARY else in_library.get(user.results[0])


def _readers(region: Region) -> dict[int, list[Node]]:
    """Value -> the nodes of a region that read it as an operand, each once."""
    readers: dict[int, list[Node]] = {}
    for node in region.nodes:
        operands = node.operands
        for v in operands if len(operands) < 2 else set(operands):
            readers.setdefault(v, []).append(node)
    return readers


def _read_inside(region: Region, values: set[int]) -> None:
    values.update(region.results)
    for node in region.nodes:
        values.update(node.operands)
        for inner in node.regions:
            _read_inside(inner, values)
