"""The closed set of nodes behind which the fewest bytes cross, by a maximum flow (Dinic's algorithm)."""

from __future__ import annotations

from collections import deque

from shardy_py.stages.graph import ProfileGraph, positions
from shardy_py.stages.graph_cuts import taken_output


def lightest(graph: ProfileGraph, inside: int, outside: int) -> tuple[float, int]:
    """The closed set that sends the fewest bytes of those that hold some nodes and not some others.

    Args:
        graph: The graph.
        inside: Mask of nodes that the set holds, closed under what they depend on.
        outside: Mask of nodes that it does not, closed under what depends on them.

    Returns:
        The bytes that cross the boundary behind it, each tensor once, and the set, as a mask.

    Example:
        >>> from shardy_py.stages import ProfileGraph, ProfileNode
        >>> nodes = [ProfileNode(id, "ReLU", activations=(size,)) for id, size in zip("abc", (8.0, 2.0, 4.0))]
        >>> lightest(ProfileGraph(tuple(nodes), (("a", "b"), ("b", "c"))), inside=0b001, outside=0b100)
        (2.0, 3)
    """
    network = _Network()
    source, sink = network.vertex(), network.vertex()
    free = positions(((1 << len(graph)) - 1) & ~inside & ~outside)
    vertex = {node: network.vertex() for node in free}

    def place(node: int) -> int:
        if node in vertex:
            return vertex[node]
        return source if inside >> node & 1 else sink

    border = [node for node in positions(inside) if any(not inside >> user & 1 for user in graph.uses[node])]
    for node in [*border, *free]:
        sizes = graph.nodes[node].activations
        takers: list[list[int]] = [[] for _ in sizes]
        for user in graph.uses[node]:
            taken = taken_output(graph, user, len(sizes))
            for k in range(len(sizes)) if taken is None else [taken]:
                takers[k].append(place(user))
        for size, users in zip(sizes, takers):
            targets = [user for user in dict.fromkeys(users) if user != source]
            if size and targets:
                tensor = network.vertex()
                network.edge(place(node), tensor, size)
                for target in targets:
                    network.edge(tensor, target, float("inf"))
        if node in vertex:
            for operand in dict.fromkeys(map(place, graph.operands[node])):
                if operand != source:
                    network.edge(vertex[node], operand, float("inf"))
    amount, reached = network.cut(source, sink)
    return amount, inside | sum(1 << node for node in free if reached[vertex[node]])


class _Network:
    """Directed edges with capacities; edge i and edge i ^ 1 are one edge in both directions."""

    def __init__(self) -> None:
        self.edges: list[list[int]] = []
        self.target: list[int] = []
        self.capacity: list[float] = []

    def vertex(self) -> int:
        self.edges.append([])
        return len(self.edges) - 1

    def edge(self, a: int, b: int, capacity: float) -> None:
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
            following = [0] * len(self.edges)
            while pushed := self._push(source, sink, level, following):
                flow += pushed

    def _levels(self, source: int) -> list[int]:
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

    def _push(self, source: int, sink: int, level: list[int], following: list[int]) -> float:
        """Sends as much as one path takes; 0 if there is no path left along which the level grows by one."""
        path: list[int] = []
        vertex = source
        while vertex != sink:
            edges = self.edges[vertex]
            while following[vertex] < len(edges):
                edge = edges[following[vertex]]
                if self.capacity[edge] > 0 and level[self.target[edge]] == level[vertex] + 1:
                    break
                following[vertex] += 1
            if following[vertex] < len(edges):
                path.append(edges[following[vertex]])
                vertex = self.target[path[-1]]
            elif path:
                vertex = self.target[path.pop() ^ 1]
                following[vertex] += 1
            else:
                return 0.0
        amount = min(self.capacity[edge] for edge in path)
        for edge in path:
            self.capacity[edge] -= amount
            self.capacity[edge ^ 1] += amount
        return amount
