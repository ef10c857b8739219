"""A time below which no partition of a graph can be, for graphs with too many cuts to try them all.

A path through the graph divides all cuts into classes: a cut is of class p if it holds the first p nodes of the path and not
the next. Of every class we know the fewest bytes any of its cuts sends (a minimum cut), and the least and most work before
it; between two classes, the work that must lie between any two of their cuts. A partition that is only asked to keep to
these is at most as slow as a true one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from shardy_py.pipedream.partitions.cuts import Floats, masks_as_rows, output_index
from shardy_py.pipedream.partitions.levels import PARAMETER_COPIES, SLACK, Rules
from shardy_py.pipedream.profiles.graph import ProfileGraph, positions
from shardy_py.pipelines.minimum_cut import Network


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


# More classes give a higher bound and cost a minimum cut each.
CLASSES = 96
ROUNDS = 50


@dataclass(frozen=True, eq=False)
class Classes:
    """Classes of cuts, along one path.

    Args:
        least: Seconds of work that every cut of a class has before it.
        most: Seconds of work that some cut of the class may have before it.
        between: Seconds of work that lies between any cut of a class (row) and any of another (column).
    """

    least: Floats
    most: Floats
    between: Floats
    parameters: Floats
    activations: Floats
    bytes: Floats
    cuts: Sequence[int]


def classes(graph: ProfileGraph, *, transfers: bool) -> Classes:
    """Divides the cuts of a graph into classes, along its longest path in seconds; without transfers all bytes are 0."""
    path = _path(graph)
    down = [0, *(graph.ancestors[node] | 1 << node for node in path)]
    up = [*(graph.descendants[node] | 1 << node for node in path), 0]
    before = masks_as_rows(down, len(graph)).astype(np.float64)
    behind = masks_as_rows(up, len(graph)).astype(np.float64)
    work = np.array([node.time_ms / 1000.0 for node in graph.nodes])
    lightest_cuts = [lightest(graph, low, high) if transfers else (0.0, low) for low, high in zip(down, up)]
    return Classes(
        least=before @ work,
        most=(1.0 - behind) @ work,
        between=_between(behind, work, before),
        parameters=_between(behind, np.array([node.parameter_bytes for node in graph.nodes]), before),
        activations=_between(behind, np.array([node.activation_bytes for node in graph.nodes]), before),
        bytes=np.array([size for size, _ in lightest_cuts]),
        cuts=[cut for _, cut in lightest_cuts],
    )


def _between(behind: Floats, values: Floats, before: Floats) -> Floats:
    """The sum of values of nodes that lie behind every cut of one class (row) and before every cut of a later one."""
    return np.triu((behind * values) @ before.T, 1)


def lower_bound(graph: ProfileGraph, families: Classes, rules: Rules, machines: Sequence[int], bandwidths: Sequence[float]) -> float:
    """Seconds below which the slowest stage of no partition can be.

    Once inner levels of machines are taken to divide the work of a stage evenly, for nothing; once all machines are taken to be on
    one level, with the highest bandwidth for what stages send and with their memory.
    """
    work = sum(node.time_ms for node in graph.nodes) / 1000.0
    total = int(np.prod(machines))
    low = work / total
    if rules.straight:
        low = max(low, max(node.time_ms for node in graph.nodes) / 1000.0)
    shared = machines[-2] if len(machines) > 1 else 1
    outermost = _MachinePool(
        machines[-1], total // machines[-1], bandwidths[-1], _copies(rules, machines[-1:], bandwidths[-1:], shared), None
    )
    pools = [outermost]
    if rules.exact:
        flat = _MachinePool(total, 1, max(bandwidths), _copies(rules, machines, bandwidths), rules.memory)
        pools = [flat] if len(machines) == 1 else [outermost, flat]
    for pool in pools:
        low = _least(partial(_possible, families, rules, pool), low, work)
    return low


@dataclass(frozen=True)
class _MachinePool:
    """One level of machines; `copies` are the possible replications of a stage, with the seconds that they add per byte of parameters."""

    count: int
    inside: int
    bandwidth: float
    copies: Mapping[int, float]
    memory: float | None


def _copies(rules: Rules, machines: Sequence[int], bandwidths: Sequence[float], shared: int = 1) -> dict[int, float]:
    """By how many machines a stage can be replicated over, machine seconds that its gradients take at least, per byte of parameters."""
    seconds_by_copies = {1: 0.0}
    for count, bandwidth in zip(machines, bandwidths):
        grown: dict[int, float] = {}
        for copies, seconds in seconds_by_copies.items():
            for width in range(1, (1 if rules.straight else count) + 1):
                more = seconds + copies * 4 * (width - 1) / (bandwidth * width) / shared
                grown[copies * width] = min(more, grown.get(copies * width, np.inf))
        seconds_by_copies, shared = grown, count
    return dict(sorted(seconds_by_copies.items()))


def _least(possible: Callable[[float], bool], low: float, high: float) -> float:
    """The fewest seconds between two that may be possible, or `low` if that may."""
    if possible(low * SLACK) or not possible(high):
        return low
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        if possible(middle):
            high = middle
        else:
            low = middle
    return low


def _possible(families: Classes, rules: Rules, pool: _MachinePool, limit: float) -> bool:
    """Whether stages of at most `limit` seconds could do all the work, as far as the classes tell."""
    size = len(families.bytes)
    later = np.triu(np.ones((size, size), np.bool_))
    # [machines used, class of the last cut]: the most work that may be done before it.
    done = np.full((pool.count + 1, size), -np.inf)
    done[0, 0] = 0.0
    for used in range(1, pool.count + 1):
        for width, summing in pool.copies.items():
            if width > used:
                break
            room = (limit * width - summing * families.parameters) * pool.inside
            fits = later & (families.between <= room * SLACK)
            if pool.memory is not None:
                flight = -(-(pool.count - used) // width) + 1
                fits &= flight * families.activations + PARAMETER_COPIES * families.parameters <= pool.memory * SLACK
            if rules.compression is not None:
                light = 2 * families.bytes / (pool.bandwidth * width) / rules.compression <= limit * SLACK
                fits &= light[:, None]
                # PipeDream does not count what its first stage sends.
                if rules.exact or width < used:
                    fits &= light
            reached = (done[used - width][:, None] + np.where(fits, room, -np.inf)).max(axis=0)
            done[used] = np.maximum(done[used], reached)
        done[used] = np.where(done[used] * SLACK >= families.least, np.minimum(done[used], families.most), -np.inf)
    return bool(done[:, -1].max() * SLACK >= families.most[-1])


def _path(graph: ProfileGraph) -> list[int]:
    """A path that takes longest, thinned out to at most `CLASSES` nodes."""
    best: list[tuple[float, int]] = [(0.0, 0)] * len(graph)
    came: list[int | None] = [None] * len(graph)
    for node in graph.order:
        # Every node counts a little, so that a long path of cheap nodes beats a short one.
        own = graph.nodes[node].time_ms
        before = max(graph.operands[node], key=lambda other: (best[other], -other), default=None)
        time, count = best[before] if before is not None else (0.0, 0)
        best[node], came[node] = (time + own, count + 1), before
    node: int | None = max(range(len(graph)), key=lambda other: (best[other], -other))
    path: list[int] = []
    while node is not None:
        path.append(node)
        node = came[node]
    path.reverse()
    step = max(1, -(-len(path) // CLASSES))
    return path[::step]
