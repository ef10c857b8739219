"""Cuts of a profile graph: sets of nodes closed under their dependencies, and the figures of each.

A set that holds with every node also its operands is what may stand before a stage boundary (PipeDream calls its maximal
nodes an antichain, and the set a state). Sets are masks, see `graph`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from shardy_py.pipedream.profiles.graph import GraphError, ProfileGraph, positions

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# Sets that are compared with all others at a time.
ROWS = 32


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
        >>> from shardy_py.pipedream import ProfileGraph, ProfileNode
        >>> g = ProfileGraph(tuple(ProfileNode(i, "ReLU") for i in "abcd"), (("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")))
        >>> list(antichains(g))
        [('a',), ('b',), ('c',), ('b', 'c'), ('d',)]
    """
    downsets = all_downsets(graph, limit)
    if downsets is None:
        raise GraphError(f"the graph has more than {limit} cuts", fix="raise the limit, or compress the branches first")
    yield from (antichain(graph, downset) for downset in downsets)


def all_downsets(graph: ProfileGraph, limit: int | None = None) -> list[int] | None:
    """All non-empty closed sets, small ones first; None if there are more than `limit`."""
    needs = [sum(1 << i for i in set(operands)) for operands in graph.operands]
    start = sum(1 << i for i, need in enumerate(needs) if not need)
    level = {0: start}
    downsets: list[int] = []
    while level:
        following: dict[int, int] = {}
        for downset, ready in level.items():
            for node in positions(ready):
                grown = downset | 1 << node
                if grown not in following:
                    opened = sum(1 << user for user in graph.uses[node] if needs[user] & ~grown == 0)
                    following[grown] = ready & ~(1 << node) | opened
        downsets += following
        if limit is not None and len(downsets) > limit:
            return None
        level = following
    return downsets


def reached_downsets(graph: ProfileGraph, limit: int | None = None) -> list[int] | None:
    """The states of PipeDream's `antichain_dag`, small ones first; None if there are more than `limit`.

    They start at the first source and grow by a user of what is inside, together with all that this user depends on. So other
    sources enter when they are needed, and what the first source has nothing to do with never does.
    """
    uses = [sum(1 << user for user in users) for users in graph.uses]
    first = graph.position(graph.sources[0])
    outside_of = {1 << first: uses[first]}
    queue = [1 << first]
    for downset in queue:
        outside = outside_of[downset]
        for node in positions(outside):
            grown = downset | graph.ancestors[node] | 1 << node
            if grown not in outside_of:
                reach = outside
                for new in positions(grown & ~downset):
                    reach |= uses[new]
                outside_of[grown] = reach & ~grown
                queue.append(grown)
        if limit is not None and len(outside_of) > limit:
            return None
    return sorted(queue, key=int.bit_count)


@dataclass(frozen=True, eq=False)
class Cuts:
    """Closed sets in an order in which no set comes before one that it holds, with their figures."""

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
        return self._sums[0] / 1000.0

    @cached_property
    def activations(self) -> Floats:
        """Bytes of all activations in each set."""
        return self._sums[1]

    @cached_property
    def parameters(self) -> Floats:
        """Bytes of all parameters in each set."""
        return self._sums[2]

    @cached_property
    def bytes(self) -> Floats:
        """Bytes of activations that cross the boundary behind each set.

        Either each tensor that is used outside, once; or as PipeDream's `augment_antichain` counts: the maximal nodes, and the
        nodes below one of them that have a user not below that one, even if the user is inside of the set.
        """
        if not self.counted_twice:
            return crossing_bytes(self.graph, self.members)
        sizes = np.array([node.activation_bytes for node in self.graph.nodes])
        members = np.ascontiguousarray(self.members.T)
        top = (members & ~_any_of(self.graph.uses, members)).T
        below = _shared_below(self.graph.uses, self.graph.ancestors)
        counted = top.copy()
        for start in range(0, len(top), ROWS):
            # Few nodes of a set are maximal.
            sets, nodes = np.nonzero(top[start : start + ROWS])
            several = np.logical_or.reduceat(below[nodes], np.searchsorted(sets, np.arange(sets[-1] + 1)), axis=0)
            counted[start : start + ROWS] |= several
        return counted.astype(np.float64) @ sizes

    @cached_property
    def sent(self) -> Floats:
        """The same, but nothing behind the last set."""
        sent = self.bytes.copy()
        sent[-1] = 0.0
        return sent

    @cached_property
    def inside(self) -> Bools:
        """Whether a set (row) is a proper part of another one (column)."""
        size = len(self.downsets)
        packed = np.packbits(self.members, axis=1)
        # One row per word of 64 nodes; a few sets at a time, so that what is compared stays in cache.
        words = np.ascontiguousarray(np.pad(packed, ((0, 0), (0, -packed.shape[1] % 8))).view(np.uint64).T)
        result = np.zeros((size, size), np.bool_)
        for start in range(0, size, ROWS):
            rows = slice(start, min(start + ROWS, size))
            missing = words[0, rows, None] & ~words[0, None, start:]
            for word in words[1:]:
                missing |= word[rows, None] & ~word[None, start:]
            result[rows, start:] = missing == 0
        np.fill_diagonal(result, False)
        return result

    @cached_property
    def _sums(self) -> Floats:
        figures = [(node.forward_ms + node.backward_ms, node.activation_bytes, node.parameter_bytes) for node in self.graph.nodes]
        return np.ascontiguousarray((self.members.astype(np.float64) @ np.array(figures, np.float64).reshape(-1, 3)).T)


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
    tensors: list[tuple[int, float, list[int]]] = []
    for node, users in enumerate(graph.uses):
        sizes = graph.nodes[node].activations
        readers = [(user, output_index(graph, user, len(sizes))) for user in users]
        takers = [[user for user, item in readers if item is None or item == k] for k in range(len(sizes))]
        tensors += [(node, size, some) for size, some in zip(sizes, takers) if some]
    if not tensors:
        return np.zeros(len(members))
    # Nodes by rows, so that what is read together lies together.
    inside = np.ascontiguousarray(members.T)
    sent = inside[[node for node, _, _ in tensors]] & _any_of([takers for _, _, takers in tensors], ~inside)
    return np.array([size for _, size, _ in tensors]) @ sent.astype(np.float64)


@lru_cache(maxsize=4)
def _shared_below(uses: tuple[tuple[int, ...], ...], ancestors: tuple[int, ...]) -> Bools:
    """Whether a node (row) depends on another one (column) that is also used by nodes it does not depend on, itself left out."""
    below = masks_as_rows(ancestors, len(uses))
    below_or_self = below | np.eye(len(uses), dtype=np.bool_)
    return np.ascontiguousarray(below & _any_of(uses, ~np.ascontiguousarray(below_or_self.T)).T)


def _any_of(groups: Sequence[Sequence[int]], rows: Bools) -> Bools:
    """For each group of rows whether any of them is true, column by column; false for an empty group."""
    result = np.zeros((len(groups), rows.shape[1]), np.bool_)
    filled = [i for i, group in enumerate(groups) if group]
    if filled:
        starts = np.cumsum([0, *(len(groups[i]) for i in filled[:-1])])
        result[filled] = np.logical_or.reduceat(rows[[node for i in filled for node in groups[i]]], starts, axis=0)
    return result


def output_index(graph: ProfileGraph, user: int, outputs: int) -> int | None:
    """The one of several outputs that a node takes; None if it takes all."""
    description = graph.nodes[user].description
    if outputs < 2 or not (description.startswith("__getitem__(") and description.endswith(")")):
        return None
    inner = description[len("__getitem__(") : -1]
    return int(inner) if inner.isdecimal() and int(inner) < outputs else None


def _maximal(graph: ProfileGraph, downset: int) -> int:
    return sum(1 << node for node in positions(downset) if not any(downset >> user & 1 for user in graph.uses[node]))
