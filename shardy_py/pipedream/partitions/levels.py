"""Solving all levels of machines over given cuts, innermost first, and reading the stages back, outermost first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardy_py.pipedream.partitions.cuts import Cuts, Floats
from shardy_py.pipedream.partitions.paths import SLACK, Pipelines, Segment, balanced_path, first_path
from shardy_py.pipedream.partitions.tables import Level, Rules, Table


@dataclass(frozen=True)
class Machines:
    """The machines of a pipeline, level by level from the innermost: 4 GPUs in each of 2 servers are (4, 2)."""

    counts: tuple[int, ...]
    bandwidths: tuple[float, ...]

    @property
    def total(self) -> int:
        """Number of machines of the innermost level."""
        return math.prod(self.counts)


@dataclass(frozen=True, eq=False)
class Solution:
    """The best partition over some cuts."""

    cuts: Cuts
    seconds: float
    levels: tuple[tuple[Segment, ...], ...] = ()
    replication: tuple[int, ...] = ()

    @property
    def ends(self) -> list[int]:
        """The set of nodes behind which each stage ends, as masks, the last one left out."""
        return [self.cuts.downsets[segment.end] for segment in self.levels[-1][:-1]]


# How far above what is known to be possible at least the search for the slowest stage goes, step by step.
LADDER = (1.02, 1.1, 1.2, 1.5, 2.5)


def solve(cuts: Cuts, rules: Rules, machines: Machines, *, lowest: float = 0.0, highest: float = math.inf) -> Solution:
    """The best partition over given cuts, its slowest stage within `lowest` and `highest` seconds; of ties the balanced one."""
    cuts = _light(cuts, rules, machines, highest * SLACK)
    top = _levels(cuts, rules, machines)[-1]
    last = len(cuts.downsets) - 1
    bounds = [lowest * factor for factor in LADDER if lowest and lowest * factor < highest]
    for bound in [*bounds, highest * SLACK]:
        seconds = float(Pipelines(top, bound, np.array([0]), last, last).slowest()[0, 0])
        if math.isfinite(seconds):
            return _read(top, Solution(cuts, seconds))
    return Solution(cuts, math.inf)


def _light(cuts: Cuts, rules: Rules, machines: Machines, bound: float) -> Cuts:
    """Without cuts that no stage could send in so many seconds, however many machines it is replicated over."""
    if rules.compression is None:
        return cuts
    rate = max(machines.bandwidths) * rules.compression * (1 if rules.straight else machines.total)
    heavy = 2 * cuts.sent / rate > bound
    return replace(cuts, downsets=[cut for cut, out in zip(cuts.downsets, heavy) if not out]) if heavy.any() else cuts


def solve_as_pipedream(cuts: Cuts, rules: Rules, machines: Machines) -> Solution:
    """The partition that PipeDream's tables over given cuts give: of equally fast ones that with the fewest stages, cut earliest."""
    last = len(cuts.downsets) - 1
    tables: list[tuple[Table, Floats]] = []
    levels = _levels(cuts, rules, machines)
    compute: Floats | None = None
    for level in levels:
        table = Table(level, compute)
        tables.append((table, table.filled(1 if level is levels[-1] else last + 1)))
        compute = tables[-1][1][:, level.machines - 1]
    seconds = float(tables[-1][1][0, -1, last])
    solution = Solution(cuts, seconds)
    outer = [(Segment(0, last, 1), 1)]
    for table, filled in reversed(tables) if math.isfinite(seconds) else ():
        paths = [(first_path(table, filled, segment.start, segment.end), copies) for segment, copies in outer]
        outer = [(part, part.width * copies) for path, copies in paths for part in path]
        solution = _with_level(solution, outer)
    return solution


def least_memory(cuts: Cuts, rules: Rules, machines: Machines) -> float:
    """Bytes that the machine that needs most needs at least, whatever the partition, on a single level of as many machines."""
    level = Level(cuts, rules, machines.total, machines.bandwidths[0], 1)
    table = np.full((level.machines, len(cuts.downsets)), np.inf)
    for width in range(1, level.widest + 1):
        table[width - 1] = level.memory(0, slice(None), width, width)
    for k in range(len(cuts.downsets) - 1):
        for width in range(1, min(level.widest, level.machines - 1) + 1):
            later = slice(k + 1, None)
            needed = level.memory(k + 1, later, width, np.arange(width + 1, level.machines + 1))
            needed = np.where(cuts.inside[k, later], needed, np.inf)
            table[width:, later] = np.minimum(table[width:, later], np.maximum(table[:-width, k, None], needed))
    return float(table[:, -1].min() if rules.fewer else table[-1, -1])


def _levels(cuts: Cuts, rules: Rules, machines: Machines) -> list[Level]:
    levels: list[Level] = []
    for number, (count, bandwidth) in enumerate(zip(machines.counts, machines.bandwidths)):
        inner = machines.counts[number - 1] if number else 1
        below = math.prod(machines.counts[:number])
        levels.append(Level(cuts, _on_level(rules, number), count, bandwidth, inner, below, levels[-1] if levels else None))
    return levels


def _on_level(rules: Rules, number: int) -> Rules:
    """The rules on a level: memory limits only machines of the innermost one, except in PipeDream, which checks every level."""
    return replace(rules, memory=None) if rules.exact and number else rules


def _read(top: Level, solution: Solution) -> Solution:
    """The stages of all levels, where the slowest one is known."""
    # (level, seconds of its slowest stage, its segment, machines of outer levels that do the same)
    last = len(solution.cuts.downsets) - 1
    outer: list[tuple[Level | None, float, Segment, int]] = [(top, solution.seconds, Segment(0, last, 1), 1)]
    while True:
        inner: list[tuple[Level | None, float, Segment, int]] = []
        for level, seconds, segment, copies in outer:
            if level is None:
                return solution
            used = 0
            for part in balanced_path(level, seconds, segment.start, segment.end):
                used += part.width
                within, slowest = level.within(part.width, used), 0.0
                if within is not None:
                    bound = seconds * part.width * SLACK
                    slowest = float(Pipelines(within, bound, np.array([part.start]), part.end, part.end).slowest()[0, 0])
                inner.append((within, slowest, part, part.width * copies))
        outer = inner
        solution = _with_level(solution, [(segment, copies) for _, _, segment, copies in outer])


def _with_level(solution: Solution, stages: Sequence[tuple[Segment, int]]) -> Solution:
    segments = tuple(segment for segment, _ in stages)
    return replace(solution, levels=(*solution.levels, segments), replication=tuple(copies for _, copies in stages))
