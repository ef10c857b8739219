"""Code duplication by fusion: the number of times that a node is written out in its readers, and the limit on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from shardy_py.cost.liveness.graph import Kind, Node

MAX_COPIES = 15
"""Largest number of copies of one node's code in another."""

MAX_REDUCTIONS = 6
"""Largest number of reductions in one node."""

_BLOCKS = frozenset(("stablehlo.concatenate", "stablehlo.pad"))
"""Ops that are branches in code, which reuse nothing that was computed before them."""


def is_block(node: Node) -> bool:
    """Whether a node is code that readers do not share, so that it is written out once or not at all."""
    return node.name in _BLOCKS or node.kind is Kind.UPDATE or node.kind is Kind.REDUCE


_ITSELF = frozenset((-1,))
"""The counter of a node's own result."""


@dataclass(slots=True, eq=False)
class Placement:
    """The nodes that compute a node, its roots (their ids). Placements share their tables, which are never changed.

    Along a chain of sums, such as a residual stream, roots add up. So a table is shared, or copied as a whole, and only differing
    entries are visited one by one.

    Attributes:
        times: Root -> how many times the node's code is written out there.
        counters: Root -> the nodes (their ids) there that each count the node's elements in a way of their own.
        joint: The part of `times` that several readers contribute to.
    """

    times: Mapping[int, int]
    counters: Mapping[int, frozenset[int]]
    most: int
    joint: Mapping[int, int] = field(default_factory=lambda: _NOTHING)


_NOTHING: Mapping[int, int] = MappingProxyType({})


class Evaluations:
    """As XLA's `FusionNodeIndexingEvaluation`: code is written out once per way in which the elements of a value are counted.

    Readers of equal shape count them in the same way, and share the code; each other reader counts in its own.
    """

    def __init__(self, shapes: Sequence[object]) -> None:
        self._shapes = shapes
        self._placements: dict[int, Placement] = {}
        self._several: set[int] = set()
        self._reductions: dict[int, int] = {}
        self._full: set[int] = set()

    def of(self, node: Node) -> Placement:
        """The placement of a node: one that no reader has absorbed is its own root."""
        root = id(node)
        placement = self._placements.get(root)
        if placement is None:
            placement = self._placements[root] = Placement({root: 1}, {root: _ITSELF}, 1)
            self._reductions[root] = int(node.kind is Kind.REDUCE)
        return placement

    def placement(self, node: Node, readers: Sequence[Node]) -> Placement:
        """The placement of a node if its readers compute it."""
        if len(readers) == 1:
            return self._part(node, readers[0])
        parts = [self._part(node, reader) for reader in readers if reader.results]
        if len(parts) == 1:
            return parts[0]
        first = max(parts, key=lambda part: len(part.times))
        times, counters = dict(first.times), dict(first.counters)
        shared: dict[int, set[int]] = {}
        counts = node.operands or node.kind is not Kind.BROADCAST  # copies of a constant do not count
        for part in parts:
            if part is first or part.counters is first.counters:
                continue
            for root in times.keys() & part.times.keys() if counts else ():
                shared.setdefault(root, set(counters[root])).update(part.counters[root])
            times.update(part.times)
            counters.update(part.counters)
        joint = {root: sum(1 if u == -1 else self._placements[u].times[root] for u in several) for root, several in shared.items()}
        times.update(joint)
        counters.update((root, frozenset(several)) for root, several in shared.items())
        return Placement(times, counters, max(*(part.most for part in parts), *joint.values()), joint)

    def are_several(self, nodes: Sequence[Node]) -> bool:
        """Whether nodes have more than one distinct root."""
        first = self.of(nodes[0]).times if nodes else _NOTHING
        return len(first) > 1 or any(self.of(n).times.keys() != first.keys() for n in nodes[1:])

    def absorb(self, node: Node, placement: Placement, readers: Sequence[Node], *, stays: bool, all_read: bool) -> None:
        """Fuses a node into readers."""
        if not all_read:
            roots = set[int]().union(*(self.of(u).times for u in readers))
            times = {root: placement.times[root] for root in roots}
            placement = Placement(times, {root: placement.counters[root] for root in roots}, max(times.values()))
        self._several.update(placement.times)
        if node.kind is Kind.REDUCE:
            for root in placement.times:
                self._reductions[root] += 1
                if self._reductions[root] >= MAX_REDUCTIONS:
                    self._full.add(root)
        if stays:
            root = id(node)
            self._reductions[root] = int(node.kind is Kind.REDUCE)
            placement = Placement({**placement.times, root: 1}, {**placement.counters, root: _ITSELF}, placement.most)
        self._placements[id(node)] = placement

    def too_many(self, node: Node, placement: Placement, reader: Node, at_most: int) -> bool:
        """Whether the roots of a reader would write a node more than `at_most` times; a root without absorbed nodes always takes it."""
        own = self.of(reader)
        if node.kind is Kind.REDUCE and not self._full.isdisjoint(own.times):
            return True
        if len(own.times) == 1 and self._several.isdisjoint(own.times):
            return False
        # Where no other reader contributes, the node is written out as many times as its reader is.
        times = max([own.most, *(n for root, n in placement.joint.items() if root in own.times)]) if placement.joint else own.most
        return times > at_most

    def _part(self, node: Node, reader: Node) -> Placement:
        """The contribution of one reader to a node's placement."""
        own = self.of(reader)
        if self._shapes[node.results[0]] == self._shapes[reader.results[0]]:
            return own
        return Placement(own.times, dict.fromkeys(own.times, frozenset((id(reader),))), own.most)
