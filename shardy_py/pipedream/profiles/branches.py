"""Series-parallel structure of a profile graph: branches as single nodes, and whether nothing else is in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardy_py.pipedream.profiles.graph import GraphError, ProfileGraph, ProfileNode


@dataclass(frozen=True)
class Compressed:
    """A graph with chains of nodes in place of single ones."""

    graph: ProfileGraph
    members: Mapping[str, tuple[str, ...]]

    def expand(self, stage_of: Mapping[str, int]) -> dict[str, int]:
        """The stages of the nodes of the original graph, from the stages of the smaller one. Raises GraphError if a node has no stage."""
        absent = [id for id in self.members if id not in stage_of]
        if absent:
            raise GraphError(f"no stage is given for {len(absent)} of {len(self.members)} nodes", where=f"node {absent[0]!r}")
        return {id: stage_of[compressed] for compressed, ids in self.members.items() for id in ids}


def compress_branches(graph: ProfileGraph) -> Compressed:
    """Makes one node of every chain between a fork and a join, as PipeDream's `compress_branches` does.

    A stage boundary can no longer lie inside of a branch, which makes cuts fewer. Times and parameters are summed; the
    activation is the last node's, since no other leaves the branch. Takes time linear in nodes and edges.

    Args:
        graph: The graph.

    Returns:
        The smaller graph, whose branches are called `Branch 0`, `Branch 1`, ..., and what each node stands for.

    Example:
        >>> names = [ProfileNode(id, "ReLU", 1.0) for id in ("fork", "a", "b", "c", "join")]
        >>> wires = (("fork", "a"), ("a", "b"), ("fork", "c"), ("b", "join"), ("c", "join"))
        >>> compress_branches(ProfileGraph(tuple(names), wires)).members
        {'fork': ('fork',), 'a..b': ('a', 'b'), 'c': ('c',), 'join': ('join',)}
    """
    chains = _chains(graph)
    number = {chain[0]: i for i, chain in enumerate(chains)}
    chain_of = {node: chain for chain in chains for node in chain}
    name: dict[int, str] = {}
    nodes: list[ProfileNode] = []
    members: dict[str, tuple[str, ...]] = {}
    for position, node in enumerate(graph.nodes):
        chain = chain_of.get(position)
        if chain is None:
            merged = node
            ids = (node.id,)
        elif position == min(chain):
            parts = [graph.nodes[i] for i in chain]
            ids = tuple(part.id for part in parts)
            merged = ProfileNode(
                f"{ids[0]}..{ids[-1]}",
                f"Branch {number[chain[0]]}",
                sum(part.forward_ms for part in parts),
                sum(part.backward_ms for part in parts),
                parts[-1].activations,
                sum(part.parameter_bytes for part in parts),
            )
        else:
            continue
        nodes.append(merged)
        members[merged.id] = ids
        for i in chain or [position]:
            name[i] = merged.id
    pairs = [(name[graph.index[s]], name[graph.index[d]]) for s, d in graph.edges]
    return Compressed(ProfileGraph(tuple(nodes), tuple((s, d) for s, d in pairs if s != d)), members)


def is_series_parallel(graph: ProfileGraph) -> bool:
    """Whether a graph with one source and one sink is built from edges by putting graphs in series and side by side.

    Parallel edges become one, then a node with one operand and one use becomes an edge, until nothing changes; what is left of
    a series-parallel graph is one edge.

    Args:
        graph: Its nodes and edges; stages do not matter.

    Example:
        >>> names = tuple(ProfileNode(id, "ReLU") for id in "abcd")
        >>> is_series_parallel(ProfileGraph(names, (("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"))))
        True
        >>> is_series_parallel(ProfileGraph(names, (("a", "b"), ("a", "c"), ("b", "c"), ("b", "d"), ("c", "d"))))
        False
    """
    if len(graph.sources) != 1 or len(graph.sinks) != 1:
        return False
    before = [set(operands) for operands in graph.operands]
    behind = [set(uses) for uses in graph.uses]
    queue = list(range(len(graph)))
    left = len(graph)
    while queue:
        node = queue.pop()
        if len(before[node]) == 1 and len(behind[node]) == 1:
            source, target = before[node].pop(), behind[node].pop()
            behind[source].remove(node)
            before[target].remove(node)
            behind[source].add(target)
            before[target].add(source)
            left -= 1
            queue += [source, target]
    return left <= 2


def _chains(graph: ProfileGraph) -> list[tuple[int, ...]]:
    """Positions of the nodes of every branch of at least two nodes, in order."""
    chains = []
    operands = [tuple(dict.fromkeys(nodes)) for nodes in graph.operands]
    for start in range(len(graph)):
        if len(operands[start]) != 1 or len(graph.uses[operands[start][0]]) < 2:
            continue
        chain = [start]
        while len(graph.uses[chain[-1]]) == 1 and len(operands[graph.uses[chain[-1]][0]]) == 1:
            chain.append(graph.uses[chain[-1]][0])
        if len(chain) > 1:
            chains.append(tuple(chain))
    return chains
