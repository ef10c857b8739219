"""The cuts to search: all of them, or where their number explodes, a bounded family of promising ones.

The family holds minimum cuts along a path, the cuts behind each node of a topological order, the smallest with and the largest without each
node, and cuts near the best ones so far.
Everything is bounded by counts, never by a clock, so that the answer depends on nothing but the graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, islice
from operator import or_

import numpy as np

from shardy_py.pipedream.partitions.cuts import Bools, Cuts, Floats, all_downsets, masks_as_rows, output_index, reached_downsets
from shardy_py.pipedream.partitions.levels import LADDER, SLACK, CutSolution, Machines, Rules, solve
from shardy_py.pipedream.profiles.graph import ProfileGraph, positions
from shardy_py.pipelines.minimum_cut import Network

# How many nodes before and behind a cut are tried when it is improved, and how often.
NEAR = 150
ROUNDS = 10

# Nodes of a path between two of which the lightest cut is looked for.
PATH = 96

# Parts of a family that lie near the best cuts found.
SHARES = (0.5, 0.9)

# PipeDream tries all of its states, so its mode does too while that is possible at all.
STATES = {"one level": 6000, "several": 1600}


def search(graph: ProfileGraph, rules: Rules, machines: Machines) -> tuple[CutSolution, float]:
    """The best partition found, and seconds below which none can be."""
    if (solution := _over_all_cuts(graph, rules, machines)) is not None:
        return solution, solution.seconds
    pool = _CutPool(graph, transfers=rules.compression is not None)
    lowest = lower_bound(graph, rules, machines)
    if not rules.exact:
        return _bounded(pool, rules, machines, lowest, []), lowest
    # With the cuts of PipeDream's mode, so that the exact mode is never worse.
    theirs = replace(rules, exact=False)
    start = _over_all_cuts(graph, theirs, machines)
    if start is None:
        start = _bounded(pool, theirs, machines, lowest, [])
    # With several levels its cuts may lie beside each other; a node then belongs to the first stage that has it.
    fixed_cuts = [] if math.isinf(start.seconds) else list(accumulate(start.ends, or_))
    return _bounded(pool, rules, machines, lowest, fixed_cuts), lowest


def _over_all_cuts(graph: ProfileGraph, rules: Rules, machines: Machines) -> CutSolution | None:
    """The best partition over all cuts that a mode has; None where they are too many."""
    states = STATES["one level" if len(machines.counts) == 1 else "several"]
    downsets = all_downsets(graph, _limit(machines)) if rules.exact else reached_downsets(graph, states)
    if downsets is None:
        return None
    return solve(Cuts(graph, _by_work(graph, downsets), not rules.exact), rules, machines, lowest=lower_bound(graph, rules, machines))


def lower_bound(graph: ProfileGraph, rules: Rules, machines: Machines) -> float:
    """Seconds below which the slowest stage of no partition can be: no machine waits, and only replicas divide the work of an op."""
    times = [node.time_ms / 1000.0 for node in graph.nodes]
    return max(sum(times) / machines.total, max(times) if rules.straight else 0.0)


def _limit(machines: Machines) -> int:
    """The most cuts that tables can have."""
    if len(machines.counts) == 1:
        return min(4000, 600 + 24_000 // machines.total)
    return min(1200, 200 + 4_000 // max(machines.counts))


def _bounded_limit(machines: Machines) -> int:
    """The most cuts in a round of a bounded search; with several levels the tables are for every pair of cuts."""
    return _limit(machines) if len(machines.counts) == 1 else 200 + 2_400 // max(machines.counts)


class _CutPool:
    """Promising cuts of a graph."""

    def __init__(self, graph: ProfileGraph, *, transfers: bool) -> None:
        self.graph = graph
        self.cuts = promising(graph, transfers=transfers)
        self._work = np.array([node.time_ms / 1000.0 for node in graph.nodes])
        self._before = self.work(self.cuts)

    def work(self, downsets: Sequence[int]) -> Floats:
        """Seconds of work in each of some sets."""
        return masks_as_rows(downsets, len(self.graph)).astype(np.float64) @ self._work

    def useful(self, bound: float, machines: int, limit: int) -> list[int]:
        """At most `limit` cuts that stages of at most `bound` seconds can end with, evenly spread."""
        return thin([self.cuts[i] for i in np.flatnonzero(_between(self._before, float(self._work.sum()), bound, machines))], limit)

    def near(self, downsets: Sequence[int], bound: float, machines: int, limit: int) -> list[int]:
        """As `near`, with the cuts that fit between bounds; the given ones come first."""
        cuts = near(self.graph, downsets, limit)
        chosen = _between(self.work(cuts), float(self._work.sum()), bound, machines)
        return [cut for i, cut in enumerate(cuts) if chosen[i] or i < len(downsets)]


def _between(before: Floats, work: float, bound: float, machines: int) -> Bools:
    """The cuts that some machines reach, and that the others can go on from, in stages of at most `bound` seconds."""
    most = min(bound, work) * np.arange(machines + 1)
    reached = np.searchsorted(most * SLACK, before, "left")
    return reached + np.searchsorted(most * SLACK, work - before, "left") <= machines


def _bounded(pool: _CutPool, rules: Rules, machines: Machines, lowest: float, fixed_cuts: Sequence[int]) -> CutSolution:
    """The best partition over cuts of the pool, fixed ones, and cuts near the best ones so far."""
    best = None
    for bound in (*(lowest * factor for factor in LADDER), math.inf):
        family = [*fixed_cuts, *pool.useful(bound, machines.total, _bounded_limit(machines))]
        best = solve(_family(pool.graph, family, rules), rules, machines, highest=bound)
        if math.isfinite(best.seconds):
            return _improved(pool, rules, machines, lowest, fixed_cuts, best)
    assert best is not None
    return best


def _improved(pool: _CutPool, rules: Rules, machines: Machines, lowest: float, fixed_cuts: Sequence[int], best: CutSolution) -> CutSolution:
    """The best partition that a few rounds of local search reach from a given one."""
    limit = _bounded_limit(machines)
    failed = 0
    for _ in range(ROUNDS):
        if best.seconds <= lowest * SLACK:
            break
        # Half of the family lies near the best cuts, then, where that brings nothing, most of it.
        close = [*fixed_cuts, *pool.near(best.ends or fixed_cuts, best.seconds, machines.total, int(limit * SHARES[failed]))]
        family = [*close, *pool.useful(best.seconds, machines.total, limit - len(close))]
        solution = solve(_family(pool.graph, family, rules), rules, machines, highest=best.seconds)
        if solution.seconds * SLACK < best.seconds:
            best, failed = solution, 0
        elif (failed := failed + 1) == len(SHARES):
            break
    return best


def _family(graph: ProfileGraph, downsets: Iterable[int], rules: Rules) -> Cuts:
    """Cuts of a pool, the whole graph among them."""
    return Cuts(graph, _by_work(graph, (*downsets, (1 << len(graph)) - 1)), not rules.exact)


def _by_work(graph: ProfileGraph, downsets: Iterable[int]) -> list[int]:
    """Each set once, in the order of the work in it."""
    chosen = list({*downsets} - {0})
    # In whole picoseconds, so that a set has at least the work of what it holds to the last digit.
    work = masks_as_rows(chosen, len(graph)).astype(np.float64) @ np.round([node.time_ms * 1e9 for node in graph.nodes])
    keys = [(float(seconds), downset.bit_count(), downset) for seconds, downset in zip(work, chosen)]
    return [downset for *_, downset in sorted(keys)]


def thin(downsets: Sequence[int], limit: int) -> list[int]:
    """At most `limit` of the sets, evenly spread."""
    return list(downsets[:: max(1, -(-len(downsets) // limit))])


def promising(graph: ProfileGraph, *, transfers: bool) -> list[int]:
    """Closed sets: the lightest along a path, those of an order, and of each node the smallest set with it and the largest without it."""
    everything, path = (1 << len(graph)) - 1, _path(graph)
    smallest = [graph.ancestors[node] | 1 << node for node in range(len(graph))]
    largest = [everything & ~(graph.descendants[node] | 1 << node) for node in range(len(graph))]
    pairs = zip([0, *(smallest[node] for node in path)], [*(everything & ~largest[node] for node in path), 0])
    light = [lightest(graph, inside, outside)[1] for inside, outside in pairs] if transfers else []
    cuts = dict.fromkeys([*light, *smallest, *largest, *accumulate((1 << node for node in graph.order), or_)])
    cuts.pop(0, None)
    return list(cuts)


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


def _path(graph: ProfileGraph) -> list[int]:
    """A path that takes longest, thinned out to at most `PATH` nodes."""
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
    step = max(1, -(-len(path) // PATH))
    return path[::step]


def near(graph: ProfileGraph, downsets: Sequence[int], limit: int) -> list[int]:
    """Closed sets that differ from given ones by one node and its dependencies, or by one node and its dependents.

    The given ones come first, then those that differ by the nodes nearest in the order of the graph.
    """
    each = min(NEAR, max(1, (limit - len(downsets)) // (2 * max(1, len(downsets)))))
    cuts = dict.fromkeys(downsets)
    for downset in downsets:
        outside = (node for node in graph.order if not downset >> node & 1)
        inside = (node for node in reversed(graph.order) if downset >> node & 1)
        for node in islice(outside, each):
            cuts[downset | graph.ancestors[node] | 1 << node] = None
        for node in islice(inside, each):
            cuts[downset & ~(graph.descendants[node] | 1 << node)] = None
    cuts.pop(0, None)
    return list(cuts)
