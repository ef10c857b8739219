"""The cuts to search: all of them, or where their number explodes, a bounded family of promising ones.

The family holds the cuts of a few topological orders, one behind every node, and cuts near the best ones so far.
Everything is bounded by counts, never by a clock, so that the answer depends on nothing but the graph.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, islice
from operator import or_

import numpy as np

from shardy_py.pipedream.partitions.bound import classes, lower_bound
from shardy_py.pipedream.partitions.cuts import Bools, Cuts, Floats, all_downsets, masks_as_rows, reached_downsets
from shardy_py.pipedream.partitions.levels import LADDER, SLACK, CutSolution, Machines, Rules, solve
from shardy_py.pipedream.profiles.graph import ProfileGraph

# How many nodes before and behind a cut are tried when it is improved, and how often.
NEAR = 150
ROUNDS = 10

# Parts of a family that lie near the best cuts found.
SHARES = (0.5, 0.9)

# PipeDream tries all of its states, so its mode does too while that is possible at all.
STATES = {"one level": 6000, "several": 1600}


def search(graph: ProfileGraph, rules: Rules, machines: Machines) -> tuple[CutSolution, float]:
    """The best partition found, and seconds below which none can be."""
    if (solution := _over_all_cuts(graph, rules, machines)) is not None:
        return solution, solution.seconds
    pool = _CutPool(graph, transfers=rules.compression is not None)
    lowest = lower_bound(graph, pool.classes, rules, machines.counts, machines.bandwidths)
    if not rules.exact:
        return _bounded(pool, rules, machines, lowest, []), lowest
    # With the cuts of PipeDream's mode, so that the exact mode is never worse.
    theirs = replace(rules, exact=False)
    start = _over_all_cuts(graph, theirs, machines)
    if start is None:
        start = _bounded(pool, theirs, machines, lower_bound(graph, pool.classes, theirs, machines.counts, machines.bandwidths), [])
    # With several levels its cuts may lie beside each other; a node then belongs to the first stage that has it.
    fixed_cuts = [] if math.isinf(start.seconds) else list(accumulate(start.ends, or_))
    return _bounded(pool, rules, machines, lowest, fixed_cuts), lowest


def _over_all_cuts(graph: ProfileGraph, rules: Rules, machines: Machines) -> CutSolution | None:
    """The best partition over all cuts that a mode has; None where they are too many."""
    states = STATES["one level" if len(machines.counts) == 1 else "several"]
    downsets = all_downsets(graph, _limit(machines)) if rules.exact else reached_downsets(graph, states)
    if downsets is None:
        return None
    even = sum(node.time_ms for node in graph.nodes) / 1000.0 / machines.total
    return solve(Cuts(graph, _by_work(graph, downsets), not rules.exact), rules, machines, lowest=even)


def _limit(machines: Machines) -> int:
    """The most cuts that tables can have."""
    if len(machines.counts) == 1:
        return min(4000, 600 + 24_000 // machines.total)
    return min(1200, 200 + 4_000 // max(machines.counts))


def _bounded_limit(machines: Machines) -> int:
    """The most cuts in a round of a bounded search; with several levels the tables are for every pair of cuts."""
    return _limit(machines) if len(machines.counts) == 1 else 200 + 2_400 // max(machines.counts)


class _CutPool:
    """Promising cuts of a graph: the lightest of all classes, and those of some topological orders."""

    def __init__(self, graph: ProfileGraph, *, transfers: bool) -> None:
        self.graph = graph
        self.classes = classes(graph, transfers=transfers)
        self.cuts = list(dict.fromkeys([*self.classes.cuts, *(cut for chain in order_cuts(graph) for cut in chain)]))
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


def order_cuts(graph: ProfileGraph) -> list[list[int]]:
    """Chains of closed sets: of the order that takes whichever ready node leaves the fewest bytes to send, and branch by branch."""
    return [list(accumulate((1 << node for node in order), or_)) for order in (_leanest(graph), graph.order)]


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


def _leanest(graph: ProfileGraph) -> list[int]:
    """A topological order that always takes a ready node after which the fewest bytes cross; the first in the file of several."""
    sizes = [node.activation_bytes for node in graph.nodes]
    operands = [set(nodes) for nodes in graph.operands]
    missing = [len(nodes) for nodes in operands]
    waiting = [len(users) for users in graph.uses]

    def grows(node: int) -> float:
        freed = sum(sizes[operand] for operand in operands[node] if waiting[operand] == 1)
        return (sizes[node] if graph.uses[node] else 0.0) - freed

    ready = [(grows(node), node) for node in range(len(graph)) if not missing[node]]
    heapq.heapify(ready)
    order: list[int] = []
    is_scheduled = [False] * len(graph)
    while ready:
        amount, node = heapq.heappop(ready)
        # What was pushed before another user of an operand was taken is stale; the fresh entry is pushed then.
        if is_scheduled[node] or amount != grows(node):
            continue
        is_scheduled[node] = True
        order.append(node)
        changed = []
        for operand in operands[node]:
            waiting[operand] -= 1
            if waiting[operand] == 1:
                changed += [user for user in graph.uses[operand] if not is_scheduled[user] and not missing[user]]
        for user in graph.uses[node]:
            missing[user] -= 1
            if not missing[user]:
                changed.append(user)
        for other in dict.fromkeys(changed):
            heapq.heappush(ready, (grows(other), other))
    return order
