"""Minimum cuts by a maximum flow (Dinic's algorithm), and the cheapest choice of values to keep and to compute again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


class Network:
    """Directed edges with capacities.

    Whole numbers up to 2 ** 53 stay exact; `float("inf")` is an edge that is never cut.

    Example:
        >>> network = Network()
        >>> a, b, c = network.vertex(), network.vertex(), network.vertex()
        >>> network.edge(a, b, 3.0)
        >>> network.edge(b, c, 2.0)
        >>> network.cut(a, c)
        (2.0, [True, True, False])
    """

    def __init__(self) -> None:
        # Edge i and edge i ^ 1 are one edge in both directions.
        self.edges: list[list[int]] = []
        self.target: list[int] = []
        self.capacity: list[float] = []

    def vertex(self) -> int:
        """The number of a new vertex."""
        self.edges.append([])
        return len(self.edges) - 1

    def edge(self, a: int, b: int, capacity: float) -> None:
        """Adds an edge from `a` to `b`."""
        for start, end, amount in ((a, b, capacity), (b, a, 0.0)):
            self.edges[start].append(len(self.target))
            self.target.append(end)
            self.capacity.append(amount)

    def cut(self, source: int, sink: int) -> tuple[float, list[bool]]:
        """The maximum flow, and which vertices are on the side of the source of the smallest minimum cut."""
        flow = 0.0
        while True:
            level = self._levels(source)
            if level[sink] < 0:
                return flow, [depth >= 0 for depth in level]
            for amount in self._augment(source, sink, level):
                flow += amount

    def _levels(self, source: int) -> list[int]:
        """The number of edges on the shortest path with capacity left from the source to each vertex; -1 where there is none."""
        level = [-1] * len(self.edges)
        level[source] = 0
        queue = deque([source])
        while queue:
            vertex = queue.popleft()
            for edge in self.edges[vertex]:
                if self.capacity[edge] > 0 and level[self.target[edge]] < 0:
                    level[self.target[edge]] = level[vertex] + 1
                    queue.append(self.target[edge])
        return level

    def _augment(self, source: int, sink: int, level: list[int]) -> Iterator[float]:
        """Augments the flow along one path of growing levels after the other, and yields the amounts."""
        path: list[int] = []
        following = [0] * len(self.edges)
        while True:
            vertex = self.target[path[-1]] if path else source
            if vertex == sink:
                amount = min(self.capacity[edge] for edge in path)
                for edge in path:
                    self.capacity[edge] -= amount
                    self.capacity[edge ^ 1] += amount
                yield amount
                # The next path begins with the edges in front of the first that is full; an infinite amount leaves NaN, which is full.
                del path[next(i for i, edge in enumerate(path) if not self.capacity[edge] > 0) :]
            elif following[vertex] < len(self.edges[vertex]):
                edge = self.edges[vertex][following[vertex]]
                if self.capacity[edge] > 0 and level[self.target[edge]] == level[vertex] + 1:
                    path.append(edge)
                else:
                    following[vertex] += 1
            elif path:
                following[self.target[path.pop() ^ 1]] += 1
            else:
                return


FORBIDDEN = float("inf")


Value = Any  # a variable of a jaxpr; a partition of a profile needs cuts, and no JAX


class RecomputeChoice:
    """Values that are kept, each at its price, or recomputed, all results of an equation at once and at its price.

    The network runs from reads to values that cannot be recomputed: of equally cheap choices the one that recomputes least wins.
    """

    def __init__(self) -> None:
        self._network = Network()
        self._source, self._sink = self._network.vertex(), self._network.vertex()
        self.values: dict[Value, int] = {}
        self.equations: dict[Value, int] = {}

    def keep(self, v: Value, price: float) -> None:
        """Adds a value that cannot be recomputed."""
        self.values[v] = self._network.vertex()
        self._network.edge(self.values[v], self._sink, price)

    def recompute(self, prices: Mapping[Value, float], price: float) -> None:
        """Adds the results of an equation, with the price of keeping each and that of computing them all again."""
        vertex = self._network.vertex()
        for v, storage in prices.items():
            self.values[v], self.equations[v] = self._network.vertex(), vertex
            self._network.edge(self.values[v], vertex, storage)
        self._network.edge(vertex, self._sink, price)

    def free(self, results: Iterable[Value]) -> None:
        """Adds the results of an equation that every reader computes for itself."""
        self.values.update(dict.fromkeys(results, self._network.vertex()))

    def needs(self, result: Value, operands: Iterable[Value]) -> None:
        """Says which values computing a result again takes."""
        vertex = self.equations.get(result, self.values[result])
        for operand in operands:
            self._network.edge(vertex, self.values[operand], FORBIDDEN)

    def bind(self, v: Value, other: Value) -> None:
        """Requires a value to be recomputed wherever another one is; that one is free, or can be recomputed itself."""
        self._network.edge(self.equations.get(v, self.values[v]), self.equations.get(other, self._sink), FORBIDDEN)

    def cheapest(self, read: Iterable[Value]) -> frozenset[Value]:
        """The cheapest set of values to recompute so that some values can be read."""
        for v in read:
            self._network.edge(self._source, self.values[v], FORBIDDEN)
        _, reached = self._network.cut(self._source, self._sink)
        return frozenset(v for v, vertex in self.equations.items() if reached[vertex])
