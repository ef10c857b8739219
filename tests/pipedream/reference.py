"""PipeDream's recurrence and an exhaustive search, as plainly as they can be written, to compare the partitioner with."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardy_py.pipedream import Partition, ProfileGraph
from shardy_py.pipedream.partitions.cuts import Cuts, all_downsets, optimized_part, reached_downsets
from shardy_py.pipedream.partitions.levels import PARAMETER_COPIES
from shardy_py.pipedream.profiles.graph import positions

Table = dict[tuple[int, int, int], float]


@dataclass(frozen=True)
class Asked:
    """The arguments of a partition that the recurrence knows."""

    machines: tuple[int, ...]
    bandwidths: tuple[float, ...]
    compression: float | None = None
    straight: bool = False
    fewer: bool = False
    memory: float | None = None


def pipedream(graph: ProfileGraph, asked: Asked) -> float:
    """Seconds that PipeDream's optimizer predicts; infinite where it finds nothing."""
    part = optimized_part(graph)
    states = reached_downsets(part)
    assert states is not None
    # PipeDream takes any topological order, by hash; on several levels the answer depends on it where cuts lie beside each other.
    states = sorted(states, key=lambda state: (round(sum(part.nodes[i].time_ms for i in positions(state)), 9), state.bit_count(), state))
    cuts = Cuts(part, states, True)
    time, act, params = ([0.0, *map(float, values)] for values in (cuts.seconds, cuts.activations, cuts.parameters))
    size = len(states)
    below = [[k for k in range(j) if states[k] & ~states[j] == 0] for j in range(size)]
    compute = {(i, j): time[j + 1] - time[i] for i in range(size) for j in range(i, size)}
    inner = 1
    for level, (n, bandwidth) in enumerate(zip(asked.machines, asked.bandwidths)):
        final = level + 1 == len(asked.machines)
        best: Table = {}
        for i, j in itertools.combinations_with_replacement(range(size), 2):
            p, a = params[j + 1] - params[i], act[j + 1] - act[i]
            for m in range(1 if asked.straight else n):
                if asked.memory is None or math.ceil((n - m - 1) / (m + 1)) * (a + p) <= asked.memory:
                    best[i, j, m] = (compute[i, j] + 4 * m * p / (bandwidth * (m + 1)) / inner) / (m + 1)
        for i in range(1 if final else size):
            for m in range(1, n):
                for j in range(i, size):  # PipeDream begins at i + 1, and so finds no stage of one state on fewer machines
                    found = best.get((i, j, m), math.inf)
                    if asked.fewer:
                        found = min(found, best.get((i, j, m - 1), math.inf))
                    for k in below[j]:
                        for width in range(1, 2 if asked.straight else m + 1):
                            p, a = params[j + 1] - params[k + 1], act[j + 1] - act[k + 1]
                            if asked.memory is not None and math.ceil((n - m - 1) / width) * (a + p) > asked.memory:
                                continue
                            last = compute.get((k + 1, j), math.inf)
                            last = (last + 4 * (width - 1) * p / (bandwidth * width)) / width
                            if asked.compression is not None:
                                each = 2 / (bandwidth * width) / asked.compression
                                last = max(last, each * cuts.bytes[k], each * cuts.bytes[j] if j < size - 1 else 0.0)
                            found = min(found, max(best.get((i, k, m - width), math.inf), last))
                    best[i, j, m] = found
        compute = {(i, j): best.get((i, j, n - 1), math.inf) for i, j in compute}
        inner = n
    return compute[0, size - 1]


def stage_seconds(part: ProfileGraph, before: int, after: int, width: int, rest: int, asked: Asked) -> float:
    """Seconds of the stage between two cuts on one level of machines, in exact mode; infinite if it does not fit."""
    nodes = [part.nodes[i] for i in positions(after & ~before)]
    params = sum(node.parameter_bytes for node in nodes)
    memory = (math.ceil(rest / width) + 1) * sum(node.activation_bytes for node in nodes) + PARAMETER_COPIES * params
    if asked.memory is not None and memory > asked.memory:
        return math.inf
    bandwidth = asked.bandwidths[0]
    seconds = (sum(node.time_ms for node in nodes) / 1e3 + 4 * (width - 1) * params / (bandwidth * width)) / width
    if asked.compression is not None:
        crossing = Cuts(part, [before, after], False).bytes
        seconds = max(seconds, 2 * float(crossing.max()) / (bandwidth * width) / asked.compression)
    return seconds


def pipelines(part: ProfileGraph, asked: Asked) -> Iterator[tuple[list[int], list[int]]]:
    """(cuts, widths) of every pipeline of a small graph, on one level of machines."""
    downsets = all_downsets(part)
    assert downsets is not None
    everything = (1 << len(part)) - 1

    def extended(cut: int, left: int) -> Iterator[tuple[list[int], list[int]]]:
        if cut == everything and (left == 0 or asked.fewer):
            yield [], []
        for after in downsets:
            if after != cut and cut & ~after == 0:
                for width in range(1, min(left, 1 if asked.straight else left) + 1):
                    for cuts, widths in extended(after, left - width):
                        yield [after, *cuts], [width, *widths]

    yield from extended(0, asked.machines[0])


def slowest(part: ProfileGraph, cuts: Sequence[int], widths: Sequence[int], asked: Asked) -> float:
    """Seconds of the slowest stage of a pipeline, in exact mode; unused machines count as behind it for memory."""
    seconds, before, used = [], 0, 0
    for after, width in zip(cuts, widths):
        used += width
        seconds.append(stage_seconds(part, before, after, width, asked.machines[0] - used, asked))
        before = after
    return max(seconds)


def exact(graph: ProfileGraph, asked: Asked) -> float:
    """Seconds of the best pipeline of a small graph, by trying all."""
    part = optimized_part(graph)
    return min((slowest(part, cuts, widths, asked) for cuts, widths in pipelines(part, asked)), default=math.inf)


def exact_on_levels(graph: ProfileGraph, asked: Asked) -> float:
    """The same on any number of levels of machines, with what is in flight in all machines behind."""
    part = optimized_part(graph)
    downsets = all_downsets(part)
    assert downsets is not None

    def pipelines(before: int, end: int, left: int) -> Iterator[list[tuple[int, int]]]:
        if before == end:
            if left == 0 or asked.fewer:
                yield []
            return
        for after in downsets:
            if after != before and before & ~after == 0 and after & ~end == 0:
                for width in range(1, min(left, 1 if asked.straight else left) + 1):
                    for rest in pipelines(after, end, left - width):
                        yield [(after, width), *rest]

    def best(number: int, before: int, end: int, waiting: int) -> float:
        """On one machine that has levels up to `number` inside, with machines of the innermost level behind each copy of it."""
        nodes = [part.nodes[i] for i in positions(end & ~before)]
        if number < 0:
            return sum(node.time_ms for node in nodes) / 1e3
        n, bandwidth, below = asked.machines[number], asked.bandwidths[number], math.prod(asked.machines[:number])
        inner = asked.machines[number - 1] if number else 1
        found = math.inf
        for stages in pipelines(before, end, n):
            worst, used, start = 0.0, 0, before
            for after, width in stages:
                used += width
                behind = math.ceil(((n - used) * below + waiting) / width)
                nodes = [part.nodes[i] for i in positions(after & ~start)]
                params = sum(node.parameter_bytes for node in nodes)
                memory = (behind + 1) * sum(node.activation_bytes for node in nodes) + PARAMETER_COPIES * params
                if number == 0 and asked.memory is not None and memory > asked.memory:
                    worst = math.inf
                work = best(number - 1, start, after, behind)
                worst = max(worst, (work + 4 * (width - 1) * params / (bandwidth * width) / inner) / width)
                if asked.compression is not None:
                    ends = [cut for cut in (start, after) if cut not in (before, end)]
                    sent = float(Cuts(part, ends, False).bytes.max()) if ends else 0.0
                    worst = max(worst, 2 * sent / (bandwidth * width) / asked.compression)
                start = after
            found = min(found, worst)
        return found

    return best(len(asked.machines) - 1, 0, (1 << len(part)) - 1, 0)


def evaluated(graph: ProfileGraph, stage_of: dict[str, int], replication: Sequence[int], asked: Asked) -> float:
    """Seconds of the slowest stage of given stages, in exact mode."""
    part = optimized_part(graph)
    cuts = [part.mask(node.id for node in part.nodes if stage_of[node.id] <= stage) for stage in range(len(replication))]
    return slowest(part, cuts, replication, asked)


def evaluated_levels(graph: ProfileGraph, found: Partition, asked: Asked) -> float:
    """Seconds of the slowest stage of a partition on any levels of machines, in exact mode.

    Replicas of a server sum gradients over slower links, and each of their machines a share; only the outermost boundaries of
    what a server does are sent over those links.
    """
    if len(asked.machines) == 1:
        return evaluated(graph, dict(found.stage_of), found.replication, asked)
    part = optimized_part(graph)
    stage_of = found.stage_of
    # The number of the innermost stage with which each split ends, by level, innermost first.
    ends = {split.end: number for number, split in enumerate(found.levels[-1])}
    boundaries = [0, *(part.mask(n.id for n in part.nodes if stage_of[n.id] <= stage) for stage in range(len(found.stages)))]
    sent = Cuts(part, boundaries[1:], False).bytes
    bytes_at = [0.0, *map(float, sent)]

    def seconds(level: int, first: int, last: int) -> float:
        """Of the pipeline of stages `first` to `last` on one machine of the level above."""
        number = len(asked.machines) - 1 - level
        n, bandwidth = asked.machines[number], asked.bandwidths[number]
        inner = asked.machines[number - 1] if number else 1
        worst, start = 0.0, first
        for split in found.levels[level]:
            end = ends[split.end]
            if not first <= end <= last:
                continue
            width = split.replication
            nodes = [part.nodes[i] for i in positions(boundaries[end + 1] & ~boundaries[start])]
            params = sum(node.parameter_bytes for node in nodes)
            work = seconds(level + 1, start, end) if number else sum(node.time_ms for node in nodes) / 1e3
            worst = max(worst, (work + 4 * (width - 1) * params / (bandwidth * width) / inner) / width)
            if asked.compression is not None:
                crossing = [bytes_at[k] for k in (start, end + 1) if first < k <= last]
                worst = max(worst, 2 * max(crossing, default=0.0) / (bandwidth * width) / asked.compression)
            start = end + 1
        assert start == last + 1
        assert n >= 1
        return worst

    return seconds(0, 0, len(found.stages) - 1)
