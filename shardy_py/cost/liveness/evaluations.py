"""How often each node that is computed where it is read is written out there, and when that is too often."""

from __future__ import annotations

from collections.abc import Iterable

from shardy_py.cost.liveness.graph import Graph, Kind, Node

AT_MOST = 15
"""How often the code of one node is written out in another."""

REDUCTIONS = 6
"""How many reductions are in one node."""

BLOCKS = frozenset(("stablehlo.concatenate", "stablehlo.pad"))
"""Ops that are branches in code, in which nothing that was computed before them is read again."""


class Evaluations:
    """As XLA's `FusionNodeIndexingEvaluation`: code is written out once per way in which the elements of a value are counted.

    Readers of equal shape count them in the same way, and share the code; each other reader counts in its own.

    Args:
        graph: Whose nodes they are.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._times: dict[int, dict[int, int]] = {}
        self._counted_by: dict[int, dict[int, set[int]]] = {}
        self._several: set[int] = set()
        self._reductions: dict[int, int] = {}

    def start(self, node: Node) -> None:
        """A node that may take in others.

        Args:
            node: Comes before what it reads.
        """
        root = id(node)
        self._times[root] = {-1: 1, root: 1}
        self._reductions[root] = int(node.kind is Kind.REDUCE)
        self._counted_by[root] = {v: {-1} for v in node.results[:1]}
        self._reads(node, root)

    def absorb(self, node: Node, roots: Iterable[int]) -> None:
        """A node is computed in others.

        Args:
            node: It.
            roots: The others, by id.
        """
        for root in roots:
            self._several.add(root)
            self._reductions[root] += node.kind is Kind.REDUCE
            self._times[root][id(node)] = self._written(node, root)
            self._reads(node, root)

    def too_many(self, node: Node, roots: Iterable[int], several: bool) -> bool:
        """Whether a node would be written out too often.

        Args:
            node: It.
            roots: The nodes, by id, that it would be computed in. What is alone as yet takes it in anyhow.
            several: Whether it has several readers.
        """
        if node.kind is Kind.BROADCAST:
            return False
        if node.kind is Kind.REDUCE and any(self._reductions[root] >= REDUCTIONS for root in roots):
            return True
        blocks = node.name in BLOCKS or node.kind in (Kind.UPDATE, Kind.REDUCE)
        return any(
            (times := self._written(node, root)) > AT_MOST or (blocks and (times > 1 or several)) for root in roots if root in self._several
        )

    def _written(self, node: Node, root: int) -> int:
        times = self._times[root]
        return sum(times[u] for u in self._counted_by[root].get(node.results[0], ()))

    def _reads(self, node: Node, root: int) -> None:
        if not node.results:
            return
        v, counted_by = node.results[0], self._counted_by[root]
        for operand in node.operands:
            same = self._shape(operand) == self._shape(v)
            counted_by.setdefault(operand, set()).update(counted_by[v] if same else (id(node),))

    def _shape(self, v: int) -> object:
        form = self._graph.forms.get(v)
        return v if form is None else form[0]
