"""Solving all levels of machines over given cuts, innermost first, and reading the stages back, outermost first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardy_py.stages.graph_cuts import Cuts, Floats
from shardy_py.stages.partition_paths import SLACK, Segment, Steps, balanced_path, first_path
from shardy_py.stages.partition_tables import Level, Rules


@dataclass(frozen=True)
class Machines:
    """What a pipeline runs on.

    Args:
        counts: Number of machines on each level, innermost first: 4 GPUs in each of 2 servers are (4, 2).
        bandwidths: Bytes per second between the machines of each level.
        careful: Whether memory of inner levels is to do for as many minibatches as outer levels can ever keep in flight; without,
            what they do keep is left out.
    """

    counts: tuple[int, ...]
    bandwidths: tuple[float, ...]
    careful: bool = True

    @property
    def total(self) -> int:
        """Number of machines of the innermost level."""
        return math.prod(self.counts)


@dataclass(frozen=True, eq=False)
class Solution:
    """The best partition over some cuts.

    Args:
        cuts: The cuts.
        seconds: Time of the slowest stage; infinite if no partition fits in memory.
        levels: The stages on each level, outermost first.
        replication: Machines of the innermost level for each stage of the last level.
    """

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


def solve(
    cuts: Cuts, rules: Rules, machines: Machines, *, as_pipedream: bool = False, lowest: float = 0.0, highest: float = math.inf
) -> Solution:
    """The best partition over given cuts.

    Args:
        cuts: The cuts.
        rules: What to keep to.
        machines: What to run on.
        as_pipedream: Whether to choose stages as PipeDream does; else of equally fast partitions the balanced one.
        lowest: Seconds below which no slowest stage can be.
        highest: Seconds that some partition over these cuts is known to take.
    """
    last = len(cuts.downsets) - 1
    compute: Floats | None = None
    levels: list[Level] = []
    tables: list[Floats] = []
    for number, (count, bandwidth) in enumerate(zip(machines.counts, machines.bandwidths)):
        inner = machines.counts[number - 1] if number else 1
        below = math.prod(machines.counts[:number])
        level = Level(cuts, _on_level(rules, number), count, bandwidth, inner, below, compute, _waiting(machines, number))
        levels.append(level)
        if number + 1 < len(machines.counts):
            tables.append(level.table(last + 1))
            compute = level.ended(tables[-1])
    top = levels[-1]
    if as_pipedream:
        tables.append(top.table(1))
        seconds = float(tables[-1][0, -1, last])
    else:
        seconds = _slowest(top, last, lowest, highest)
    if math.isinf(seconds):
        return Solution(cuts, seconds)
    return _read(levels, tables, Solution(cuts, seconds))


def _slowest(top: Level, last: int, lowest: float, highest: float) -> float:
    if lowest and math.isinf(highest):
        for factor in LADDER:
            seconds = Steps(top, lowest * factor, 0, last).slowest()
            if not math.isinf(seconds):
                return seconds
    return Steps(top, highest * SLACK, 0, last).slowest()


def least_memory(cuts: Cuts, rules: Rules, machines: Machines) -> float:
    """Bytes that the machine that needs most needs at least, whatever the partition, on the innermost level."""
    level = Level(cuts, rules, machines.counts[0], machines.bandwidths[0], 1, waiting=_waiting(machines, 0))
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


def _on_level(rules: Rules, number: int) -> Rules:
    """Memory is that of one machine of the innermost level; PipeDream asks every level for it."""
    return replace(rules, memory=None) if rules.exact and number else rules


def _waiting(machines: Machines, number: int) -> int:
    """The most minibatches that levels above can keep in flight: as many as machines can stand behind this group of them."""
    outer = math.prod(machines.counts[number + 1 :])
    return (outer - 1) * machines.counts[number] if machines.careful else 0


def _read(levels: Sequence[Level], tables: Sequence[Floats], solution: Solution) -> Solution:
    last = len(solution.cuts.downsets) - 1
    found: list[tuple[Segment, ...]] = []
    outer = [(Segment(0, last, 1), 1)]
    for number in range(len(levels) - 1, -1, -1):
        level = levels[number]
        inner: list[tuple[Segment, int]] = []
        for segment, copies in outer:
            if number < len(tables) and not level.rules.exact:
                path = first_path(level, tables[number], segment.start, segment.end)
            else:
                top = number == len(levels) - 1
                seconds = solution.seconds if top else Steps(level, math.inf, segment.start, segment.end).slowest()
                path = balanced_path(level, seconds, segment.start, segment.end)
            inner += [(part, part.width * copies) for part in path]
        outer = inner
        found.append(tuple(segment for segment, _ in outer))
    return replace(solution, levels=tuple(found), replication=tuple(copies for _, copies in outer))
