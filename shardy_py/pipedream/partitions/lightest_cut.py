"""The closed set of nodes behind which the fewest bytes cross, by a maximum flow."""

from __future__ import annotations

from shardy_py.pipedream.partitions.cuts import output_index
from shardy_py.pipedream.profiles.graph import ProfileGraph, positions
from shardy_py.pipelines.max_flow import Network


def lightest(graph: ProfileGraph, inside: int, outside: int) -> tuple[float, int]:
    """The fewest bytes (each tensor once) across the border of a closed set with some nodes and without others, and the set as a mask.

    Example:
        >>> from shardy_py.pipedream import ProfileGraph, ProfileNode
        >>> nodes = [ProfileNode(id, "ReLU", activations=(size,)) for id, size in zip("abc", (8.0, 2.0, 4.0))]
        >>> lightest(ProfileGraph(tuple(nodes), (("a", "b"), ("b", "c"))), inside=0b001, outside=0b100)
        (2.0, 3)
    """
    network = Network()
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
            output = output_index(graph, user, len(sizes))
            for k in range(len(sizes)) if output is None else [output]:
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
