"""Cuts of a profile graph: sets of nodes closed under what they depend on, and the figures of each.

A set that holds with every node also its operands is what may stand before a stage boundary (PipeDream calls its maximal
nodes an antichain, and the set a state). Sets are masks, see `graph`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardy_py.stages.graph import GraphError, ProfileGraph, positions

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def optimized_part(graph: ProfileGraph) -> ProfileGraph:
    """The nodes that have a choice of stage: without inputs, which go first, and without unused `__getitem__` nodes.

    As PipeDream's optimizer does: sources whose description starts with `Input`, then sinks that start with `__getitem__`, in
    one pass.
    """
    inputs = {id for id in graph.sources if graph[id].is_input}
    rest = graph.subgraph([node.id for node in graph.nodes if node.id not in inputs])
    unused = {id for id in rest.sinks if rest[id].description.startswith("__getitem__")}
    return rest.subgraph([node.id for node in rest.nodes if node.id not in unused])


def antichain(graph: ProfileGraph, downset: int) -> tuple[str, ...]:
    """The ids of the maximal nodes of a set: those that no other node in it uses."""
    return graph.ids(_maximal(graph, downset))


def antichains(graph: ProfileGraph, limit: int | None = None) -> Iterator[tuple[str, ...]]:
    """Every non-empty cut of a graph by its maximal nodes, small sets first.

    Args:
        graph: The graph.
        limit: The number of cuts above which to give up; their number can be exponential in the number of branches.

    Raises:
        GraphError: If there are more cuts than the limit.

    Example:
        >>> from shardy_py.stages import ProfileGraph, ProfileNode
        >>> g = ProfileGraph(tuple(ProfileNode(i, "ReLU") for i in "abcd"), (("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")))
        >>> list(antichains(g))
        [('a',), ('b',), ('c',), ('b', 'c'), ('d',)]
    """
    found = all_downsets(graph, limit)
    if found is None:
        raise GraphError(f"the graph has more than {limit} cuts", fix="raise the limit, or compress the branches first")
    yield from (antichain(graph, downset) for downset in found)


def all_downsets(graph: ProfileGraph, limit: int | None = None) -> list[int] | None:
    """All non-empty closed sets, small ones first; None if there are more than `limit`."""
    needs = [sum(1 << i for i in set(operands)) for operands in graph.operands]
    start = sum(1 << i for i, need in enumerate(needs) if not need)
    level = {0: start}
    found: list[int] = []
    while level:
        following: dict[int, int] = {}
        for downset, ready in level.items():
            for node in positions(ready):
                grown = downset | 1 << node
                if grown not in following:
                    opened = sum(1 << user for user in graph.uses[node] if needs[user] & ~grown == 0)
                    following[grown] = ready & ~(1 << node) | opened
        found += following
        if limit is not None and len(found) > limit:
            return None
        level = following
    return found


def reached_downsets(graph: ProfileGraph, limit: int | None = None) -> list[int] | None:
    """The states of PipeDream's `antichain_dag`, small ones first; None if there are more than `limit`.

    They start at the first source and grow by a user of what is inside, together with all that this user depends on. So other
    sources enter when they are needed, and what the first source has nothing to do with never does.
    """
    uses = [sum(1 << user for user in users) for users in graph.uses]
    first = graph.position(graph.sources[0])
    found = {1 << first: uses[first]}
    queue = [1 << first]
    for downset in queue:
        outside = found[downset]
        for node in positions(outside):
            grown = downset | graph.ancestors[node] | 1 << node
            if grown not in found:
                reach = outside
                for new in positions(grown & ~downset):
                    reach |= uses[new]
                found[grown] = reach & ~grown
                queue.append(grown)
        if limit is not None and len(found) > limit:
            return None
    return sorted(queue, key=int.bit_count)


@dataclass(frozen=True, eq=False)
class Cuts:
    """Closed sets in an order in which no set comes before one that it holds, with their figures.

    Args:
        graph: The graph.
        downsets: The sets, the last one with all nodes that have to be placed.
        counted_twice: Whether bytes are counted as PipeDream does, see `bytes`.
    """

    graph: ProfileGraph
    downsets: Sequence[int]
    counted_twice: bool

    @cached_property
    def members(self) -> Bools:
        """Whether a set (row) holds a node (column)."""
        return masks_as_rows(self.downsets, len(self.graph))

    @cached_property
    def seconds(self) -> Floats:
        """Forward and backward time of each set, in seconds."""
        return self._sums([node.forward_ms + node.backward_ms for node in self.graph.nodes]) / 1000.0

    @cached_property
    def activations(self) -> Floats:
        """Bytes of all activations in each set."""
        return self._sums([node.activation_bytes for node in self.graph.nodes])

    @cached_property
    def parameters(self) -> Floats:
        """Bytes of all parameters in each set."""
        return self._sums([node.parameter_bytes for node in self.graph.nodes])

    @cached_property
    def bytes(self) -> Floats:
        """Bytes of activations that cross the boundary behind each set.

        Either each tensor that is used outside, once; or as PipeDream's `augment_antichain` counts: the maximal nodes, and the
        nodes below one of them that have a user not below that one, even if the user is inside of the set.
        """
        if not self.counted_twice:
            return crossing_bytes(self.graph, self.members)
        sizes = np.array([node.activation_bytes for node in self.graph.nodes])
        extra = masks_as_rows(self.graph.shared_below, len(sizes)).astype(np.float32)
        top = self.members.copy()
        for node, users in enumerate(self.graph.uses):
            top[:, node] &= ~self.members[:, list(users)].any(axis=1)
        return (top | (top.astype(np.float32) @ extra > 0)).astype(np.float64) @ sizes

    @cached_property
    def sent(self) -> Floats:
        """The same, but nothing behind the last set."""
        sent = self.bytes.copy()
        sent[-1] = 0.0
        return sent

    @cached_property
    def inside(self) -> Bools:
        """Whether a set (row) is a proper part of another one (column)."""
        result = np.ones((len(self.downsets),) * 2, np.bool_)
        for word in self._words:
            result &= (word[:, None] & ~word[None, :]) == 0
        np.fill_diagonal(result, False)
        return result

    def held_by(self, k: int, others: slice) -> Bools:
        """Whether a set is a part of each of some later sets."""
        words = self._words[:, others]
        return ((self._words[:, k, None] & ~words) == 0).all(axis=0)

    @cached_property
    def _words(self) -> NDArray[np.uint64]:
        """The masks in words of 64 nodes, one row per word."""
        packed = np.packbits(self.members, axis=1)
        return np.ascontiguousarray(np.pad(packed, ((0, 0), (0, -packed.shape[1] % 8))).view(np.uint64).T)

    def _sums(self, values: Sequence[float]) -> Floats:
        return self.members.astype(np.float64) @ np.array(values, np.float64)


def masks_as_rows(masks: Sequence[int], size: int) -> Bools:
    """One row per mask, one column per node of a graph of `size` nodes."""
    width = (size + 7) // 8
    packed = b"".join(mask.to_bytes(width, "little") for mask in masks)
    rows = np.frombuffer(packed, np.uint8).reshape(len(masks), width)
    return np.unpackbits(rows, axis=1, count=size, bitorder="little").astype(np.bool_)


def crossing_bytes(graph: ProfileGraph, members: Bools) -> Floats:
    """Bytes of the tensors made inside and used outside of each set (row of `members`), each tensor once.

    Of a node with several outputs, users that are `__getitem__(k)` need output k alone.
    """
    crossing = np.zeros(len(members))
    outside = ~members
    for node, users in enumerate(graph.uses):
        sizes = graph.nodes[node].activations
        whole = [user for user in users if taken_output(graph, user, len(sizes)) is None]
        used = outside[:, whole].any(axis=1)
        amount = np.where(used, sum(sizes), 0.0)
        for k in sorted({item for user in users if (item := taken_output(graph, user, len(sizes))) is not None}):
            takers = [user for user in users if taken_output(graph, user, len(sizes)) == k]
            amount += np.where(~used & outside[:, takers].any(axis=1), sizes[k], 0.0)
        crossing += np.where(members[:, node], amount, 0.0)
    return crossing


def taken_output(graph: ProfileGraph, user: int, outputs: int) -> int | None:
    """Which of several outputs a node takes, or None if it takes all."""
    description = graph.nodes[user].description
    if outputs < 2 or not (description.startswith("__getitem__(") and description.endswith(")")):
        return None
    inner = description[len("__getitem__(") : -1]
    return int(inner) if inner.isdecimal() and int(inner) < outputs else None


def _maximal(graph: ProfileGraph, downset: int) -> int:
    return sum(1 << node for node in positions(downset) if not any(downset >> user & 1 for user in graph.uses[node]))
