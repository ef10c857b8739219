"""The cheapest choice of values that are kept, or sent, and of those that are computed again from them: a minimum cut."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jax.extend.core import Var

from shardy_py.pipelines.max_flow import Network

FORBIDDEN = float("inf")


class RecomputeChoice:
    """Values that are kept, each at its price, or recomputed, all results of an equation at once and at its price.

    The network runs from reads to values that cannot be recomputed: of equally cheap choices the one that recomputes least wins.
    """

    def __init__(self) -> None:
        self._network = Network()
        self._source, self._sink = self._network.vertex(), self._network.vertex()
        self.values: dict[Var, int] = {}
        self.equations: dict[Var, int] = {}

    def keep(self, v: Var, price: float) -> None:
        """Adds a value that cannot be recomputed."""
        self.values[v] = self._network.vertex()
        self._network.edge(self.values[v], self._sink, price)

    def recompute(self, prices: Mapping[Var, float], price: float) -> None:
        """Adds the results of an equation, with the price of keeping each and that of computing them all again."""
        vertex = self._network.vertex()
        for v, storage in prices.items():
            self.values[v], self.equations[v] = self._network.vertex(), vertex
            self._network.edge(self.values[v], vertex, storage)
        self._network.edge(vertex, self._sink, price)

    def free(self, results: Iterable[Var]) -> None:
        """Adds the results of an equation that every reader computes for itself."""
        self.values.update(dict.fromkeys(results, self._network.vertex()))

    def needs(self, result: Var, operands: Iterable[Var]) -> None:
        """Says which values computing a result again takes."""
        vertex = self.equations.get(result, self.values[result])
        for operand in operands:
            self._network.edge(vertex, self.values[operand], FORBIDDEN)

    def bind(self, v: Var, other: Var) -> None:
        """Requires a value to be recomputed wherever another one is; that one is free, or can be recomputed itself."""
        self._network.edge(self.equations.get(v, self.values[v]), self.equations.get(other, self._sink), FORBIDDEN)

    def cheapest(self, read: Iterable[Var]) -> frozenset[Var]:
        """The cheapest set of values to recompute so that some values can be read."""
        for v in read:
            self._network.edge(self._source, self.values[v], FORBIDDEN)
        _, reached = self._network.cut(self._source, self._sink)
        return frozenset(v for v, vertex in self.equations.items() if reached[vertex])
