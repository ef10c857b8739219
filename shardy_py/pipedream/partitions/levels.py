"""Costs of the stages between cuts on each level of machines, the best stages over given cuts, and the stages read back.

A stage that lies behind cut k, ends with cut j, and is replicated over w machines takes, per minibatch,

    max( (compute + 4 (w - 1) parameters / (bandwidth w)) / w,  2 bytes_k / (bandwidth w),  2 bytes_j / (bandwidth w) )

Source: PipeDream, optimizer_graph_hierarchical.py. Levels are solved innermost first and read outermost first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardy_py.pipedream.partitions.cuts import Bools, Cuts, Floats

# Sums of times in another order differ by this much; what is closer counts as equal.
SLACK = 1 + 1e-12

# How many stages are looked at at a time, so that their figures stay in cache.
AT_ONCE = 1 << 16

Indices = NDArray[np.intp]


# One place, or several.
Starts = int | NDArray[np.intp]
Ends = int | slice | NDArray[np.intp]

# Weights, their gradients, and two moments of Adam.
PARAMETER_COPIES = 4


@dataclass(frozen=True)
class Rules:
    """The rules of a partition.

    Args:
        exact: Whether to use true bytes and memory; else PipeDream's, faults included.
        compression: Divisor of activations when they are sent; None leaves transfers out.
    """

    exact: bool
    compression: float | None
    straight: bool
    fewer: bool
    memory: float | None


@dataclass(frozen=True, eq=False)
class MachineLevel:
    """One level of machines: its stages between any two cuts, and their costs.

    Args:
        inner: Divisor of parameter bytes when they are summed: the number of machines in each machine.
        waiting: Machines of the innermost level behind all of this level's, for each copy of it.
    """

    cuts: Cuts
    rules: Rules
    machines: int
    bandwidth: float
    inner: int
    below: int = 1
    inside: MachineLevel | None = None
    waiting: int = 0

    @property
    def widest(self) -> int:
        """The most machines that one stage may be replicated over."""
        return 1 if self.rules.straight else self.machines

    def within(self, width: int, used: int) -> MachineLevel | None:
        """The level inside of the machines of a stage that is replicated over `width` of them, if `used` end with it."""
        if self.inside is None or not self.rules.exact:
            return self.inside
        behind = (self.machines - used) * self.below + self.waiting
        return replace(self.inside, waiting=-(-behind // width))

    def grown(self, values: Floats, starts: Starts, ends: Ends) -> Floats:
        """The amount of something between cut start - 1 and a cut: by cut, or by start and cut."""
        starts = np.asarray(starts)
        return values[ends] - np.where(starts > 0, values[starts - 1], 0.0)[..., None]

    def seconds(self, starts: Starts, width: int, ends: Ends, work: Floats, *, first: bool = False, sends: bool = True) -> Floats:
        """Seconds of stages between cuts on `width` machines; `first` stages receive nothing, and PipeDream does not count their sends."""
        cuts, rules = self.cuts, self.rules
        shared = self.inner if rules.exact or first else 1
        seconds = work
        if width > 1:
            parameters = self.grown(cuts.parameters, starts, ends)
            seconds = (work + 4 * (width - 1) * parameters / (self.bandwidth * width) / shared) / width
        if rules.compression is not None:
            each = 2.0 / (self.bandwidth * width) / rules.compression
            if not first:
                seconds = np.maximum(seconds, each * cuts.bytes[np.asarray(starts) - 1][..., None])
            if sends and (rules.exact or not first):
                seconds = np.maximum(seconds, each * cuts.sent[ends])
        return seconds

    def memory(self, starts: Starts, ends: Ends, width: int, used: int) -> Floats:
        """Bytes that a machine of the stages from behind cut start - 1 to some cuts needs, if `used` machines end with them.

        PipeDream: activations and parameters for every minibatch in flight in later stages. Exact: activations for these and the
        current one, parameters with gradients and optimizer state once. A row for each start.
        """
        activations = self.grown(self.cuts.activations, starts, ends)
        parameters = self.grown(self.cuts.parameters, starts, ends)
        behind = self.machines - used + (self.waiting if self.rules.exact else 0)
        flight = -(-behind // width)
        if self.rules.exact:
            return (flight + 1) * activations + PARAMETER_COPIES * parameters
        return flight * (activations + parameters)


@dataclass(frozen=True)
class Segment:
    """A stage on one level of machines: the nodes behind cut start - 1 and up to cut end, on `width` machines."""

    start: int
    end: int
    width: int


@dataclass(frozen=True, eq=False)
class PathStep:
    """Candidate stages on the same machines: one number of machines in front of them, and one width.

    Attributes:
        cuts: The cuts they follow, counted from the segment's start; none for first stages.
        ends: The cuts they end with, counted from the segment's start or, for last ones, from its first end.
        seconds: Their times, by cut before (one row for first stages) and by end; infinite for those that cannot be.
    """

    before: int
    width: int
    last: bool
    cuts: Indices
    ends: slice
    seconds: Floats

    @property
    def after(self) -> int:
        """Machines up to their end."""
        return self.before + self.width


class Pipelines:
    """All pipelines from some cuts to some cuts, whose stages take no longer than a bound, and the searches over them.

    The lower the bound, the fewer stages there are: what machines have done before a cut is at most what they can do within
    the bound, and what is left at least what the others must be able to.

    Args:
        starts: The pipelines lie behind cut start - 1 for each of these, in ascending order.
    """

    def __init__(self, level: MachineLevel, bound: float, starts: Indices, least: int, most: int) -> None:
        self.level, self.bound, self.starts = level, bound, starts
        self.base = base = int(starts[0])
        self.ends = slice(max(least - base, 0), most - base + 1)
        before = level.cuts.seconds[base - 1] if base else 0.0
        work = np.maximum.accumulate(level.cuts.seconds[base : most + 1]) - before
        # Work that one machine does within the bound.
        capacity = min(bound * level.below, 1e30) * SLACK
        machines = np.arange(level.machines + 1)
        # For every number of machines the first cut behind which the others can do all that is left, and the one behind the last
        # that they reach; something is left to do behind it.
        left = (level.machines - machines) * capacity
        done = (work[starts[-1] - base - 1] if starts[-1] > base else 0.0) + machines * capacity
        self.low = np.searchsorted(work, (work[self.ends.start] - left) / SLACK, "left").tolist()
        self.high = np.minimum(np.searchsorted(work, done * SLACK, "right"), len(work) - 1).tolist()

    def slowest(self) -> Floats:
        """Seconds of the slowest stage of the best pipeline from each start to each end, infinite if there is none in the bound."""
        values = _CutValues(self, (len(self.starts),))
        for step in self._steps(lambda m: values.inner[m].min(axis=0)):
            slowest = _slower(values.inner[step.before][:, step.cuts], step.seconds) if step.before else step.seconds
            reached = values.at(step)
            np.minimum(reached, slowest, out=reached)
        return values.least

    def path(self) -> list[Segment]:
        """The pipeline from the only start to the last end with the fewest bytes; then with the fewest machines, cut earliest."""
        # The bytes, and the cut and the width they came from.
        sent, came = _CutValues(self, ()), _CutValues(self, (2,))
        for step in self._steps(lambda m: sent.inner[m]):
            reached, origin = sent.at(step), came.at(step)
            if step.before:
                more = sent.inner[step.before][step.cuts] + self.level.cuts.bytes[self.base + step.cuts]
                amounts = np.where(step.seconds < np.inf, more[:, None], np.inf)
                rows = amounts.argmin(axis=0)
                amount, cut = amounts[rows, np.arange(len(rows))], step.cuts[rows]
            else:
                amount = np.where(step.seconds[0] < np.inf, 0.0, np.inf)
                cut = np.full(len(amount), -1)
            same = (amount == reached) & (cut < origin[0])
            better = np.flatnonzero((amount < reached) | (same & (amount < np.inf)))
            reached[better], origin[0, better], origin[1, better] = amount[better], cut[better], step.width
        _, after = min((sent.last[m][-1], m) for m in sent.last)
        cut, (k, width) = self.ends.stop - 1, map(int, came.last[after][:, -1])
        segments = [Segment(self.base + k + 1, self.base + cut, width)]
        while k >= 0:
            cut, after = k, after - width
            k, width = map(int, came.inner[after][:, cut])
            segments.append(Segment(self.base + k + 1, self.base + cut, width))
        return segments[::-1]

    def _steps(self, reached: Callable[[int], Floats]) -> Iterator[PathStep]:
        """All stages behind cuts that have been reached, in an order in which no step follows one that extends it."""
        machines = self.level.machines
        for after in range(1, machines + 1):
            kinds = [False] if after < machines else []
            if after == machines or self.level.rules.fewer:
                kinds.append(True)
            for width in range(1, min(self.level.widest, after) + 1):
                before = after - width
                low, high = self.low[before], self.high[before]
                cuts = np.flatnonzero(reached(before)[low:high] < np.inf) + low if before else self.starts - (self.base + 1)
                for last in kinds:
                    ends = self.ends if last else slice(self.low[after], self.high[after])
                    size = ends.stop - ends.start
                    behind = cuts[: np.searchsorted(cuts, ends.stop - 1)] if before else cuts
                    if size > 0 and len(behind):
                        target = slice(0, size) if last else ends
                        for some in np.array_split(behind, -(-len(behind) * size // AT_ONCE) if before else 1):
                            seconds = self._seconds(some, width, ends, after, last)
                            yield PathStep(before, width, last, some, target, seconds)

    def _seconds(self, cuts: Indices, width: int, ends: slice, after: int, last: bool) -> Floats:
        level, first = self.level, width == after
        starts, ends = cuts + (self.base + 1), slice(self.base + ends.start, self.base + ends.stop)
        inner = level.within(width, after)
        if inner is None:
            work = level.grown(level.cuts.seconds, starts, ends)
        else:
            work = Pipelines(inner, self.bound * width, starts, ends.start, ends.stop - 1).slowest()
            # Some ends may lie before all starts.
            work = np.pad(work, ((0, 0), (ends.stop - ends.start - work.shape[1], 0)), constant_values=np.inf)
        # What a segment sends at its end is left to the level above; PipeDream counts it on both.
        seconds = level.seconds(starts, width, ends, work, first=first, sends=not (last and level.rules.exact))
        allowed: Bools = seconds <= self.bound
        if first and not level.rules.exact:
            # PipeDream takes the difference between cuts neither of which holds the other.
            allowed &= np.arange(ends.start, ends.stop) >= starts[:, None]
        else:
            allowed &= level.cuts.inside[starts - 1, ends] | (starts == 0)[:, None]
        if level.rules.memory is not None:
            allowed &= level.memory(starts, ends, width, after) <= level.rules.memory
        return np.where(allowed, seconds, np.inf)


def _slower(before: Floats, seconds: Floats) -> Floats:
    """The least, over cuts, of the slower of all stages before it and one behind it: from starts by cuts and cuts by ends."""
    slower = np.empty((len(before), seconds.shape[1]))
    for some in np.array_split(np.arange(len(before)), -(-len(before) * seconds.size // AT_ONCE)):
        slower[some] = np.maximum(before[some, :, None], seconds).min(axis=1)
    return slower


class _CutValues:
    """Values of cuts, infinite at first: for each number of machines, a row of cuts per kind of value; those of last cuts apart."""

    def __init__(self, pipelines: Pipelines, kinds: tuple[int, ...]) -> None:
        machines, size = pipelines.level.machines, pipelines.ends.stop - 1
        self.inner = np.full((machines, *kinds, size), np.inf)
        totals = range(1, machines + 1) if pipelines.level.rules.fewer else [machines]
        self.last = {m: np.full((*kinds, pipelines.ends.stop - pipelines.ends.start), np.inf) for m in totals}

    def at(self, step: PathStep) -> Floats:
        """The values at the ends that a step leads to."""
        return (self.last[step.after] if step.last else self.inner[step.after])[..., step.ends]

    @property
    def least(self) -> Floats:
        """The least of all numbers of machines that may be used, for each end."""
        return np.minimum.reduce(list(self.last.values()))


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
class CutSolution:
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


def solve(cuts: Cuts, rules: Rules, machines: Machines, *, lowest: float = 0.0, highest: float = math.inf) -> CutSolution:
    """The best partition over given cuts, its slowest stage within `lowest` and `highest` seconds; of ties the lightest."""
    top = _levels(cuts, rules, machines)[-1]
    last = len(cuts.downsets) - 1
    bounds = [lowest * factor for factor in LADDER if lowest and lowest * factor < highest]
    for bound in [*bounds, highest * SLACK]:
        seconds = float(Pipelines(top, bound, np.array([0]), last, last).slowest()[0, 0])
        if math.isfinite(seconds):
            return _read(top, CutSolution(cuts, seconds))
    return CutSolution(cuts, math.inf)


def _levels(cuts: Cuts, rules: Rules, machines: Machines) -> list[MachineLevel]:
    levels: list[MachineLevel] = []
    for number, (count, bandwidth) in enumerate(zip(machines.counts, machines.bandwidths)):
        inner = machines.counts[number - 1] if number else 1
        below = math.prod(machines.counts[:number])
        levels.append(MachineLevel(cuts, _on_level(rules, number), count, bandwidth, inner, below, levels[-1] if levels else None))
    return levels


def _on_level(rules: Rules, number: int) -> Rules:
    """The rules on a level: memory limits only machines of the innermost one, except in PipeDream, which checks every level."""
    return replace(rules, memory=None) if rules.exact and number else rules


def _read(top: MachineLevel, solution: CutSolution) -> CutSolution:
    """The stages of all levels, where the slowest one is known."""
    # (level, seconds of its slowest stage, its segment, machines of outer levels that do the same)
    last = len(solution.cuts.downsets) - 1
    outer: list[tuple[MachineLevel | None, float, Segment, int]] = [(top, solution.seconds, Segment(0, last, 1), 1)]
    while True:
        inner: list[tuple[MachineLevel | None, float, Segment, int]] = []
        for level, seconds, segment, copies in outer:
            if level is None:
                return solution
            used = 0
            for part in Pipelines(level, seconds * SLACK, np.array([segment.start]), segment.end, segment.end).path():
                used += part.width
                within, slowest = level.within(part.width, used), 0.0
                if within is not None:
                    bound = seconds * part.width * SLACK
                    slowest = float(Pipelines(within, bound, np.array([part.start]), part.end, part.end).slowest()[0, 0])
                inner.append((within, slowest, part, part.width * copies))
        outer = inner
        solution = _with_level(solution, [(segment, copies) for _, _, segment, copies in outer])


def _with_level(solution: CutSolution, stages: Sequence[tuple[Segment, int]]) -> CutSolution:
    segments = tuple(segment for segment, _ in stages)
    return replace(solution, levels=(*solution.levels, segments), replication=tuple(copies for _, copies in stages))
