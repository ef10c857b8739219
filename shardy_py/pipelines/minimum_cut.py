"""Minimum cuts by a maximum flow (Dinic's algorithm)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator


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
