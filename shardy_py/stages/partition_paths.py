"""Reading the stages off a filled table, and choosing among partitions that are equally fast."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardy_py.stages.graph_cuts import Bools, Floats
from shardy_py.stages.partition_tables import Level

# Sums of times in another order differ by this much; what is closer counts as equal.
SLACK = 1 + 1e-12


@dataclass(frozen=True)
class Segment:
    """A stage on one level of machines: what lies behind cut start - 1 and up to cut end, on `width` machines."""

    start: int
    end: int
    width: int


def first_path(level: Level, table: Floats, start: int, end: int) -> list[Segment]:
    """The stages behind one entry of a table, in order: as few as possible, then cut as early as possible."""
    found: list[Segment] = []
    m = level.machines - 1
    row = table[start if len(table) > 1 else 0]
    while True:
        value = row[m, end]
        if _first_seconds(level, start, end, m + 1) <= value:
            return [Segment(start, end, m + 1), *reversed(found)]
        if level.rules.fewer and m and end > start and row[m - 1, end] <= value:
            m -= 1
            continue
        k, width = _last_cut(level, row, start, end, m)
        found.append(Segment(k + 1, end, width))
        end, m = k, m - width


def _first_seconds(level: Level, start: int, end: int, width: int) -> float:
    if width > level.widest or not level.fits(start, end, width, width):
        return np.inf
    return float(level.first(start, width)[end - start])


def _behind_seconds(level: Level, k: int, end: int, width: int) -> float:
    return float(level.behind(k, width, slice(end, end + 1))[0])


def _last_cut(level: Level, row: Floats, start: int, end: int, m: int) -> tuple[int, int]:
    """The lowest cut before the last stage that gives the table's value, then the smallest width."""
    for k in range(start, end):
        if level.cuts.inside[k, end] and row[:m, k].min() <= row[m, end]:
            for width in range(1, min(level.widest, m) + 1):
                before = row[m - width, k]
                if before <= row[m, end] and level.fits(k + 1, end, width, m + 1):
                    if max(before, _behind_seconds(level, k, end, width)) <= row[m, end]:
                        return k, width
    raise AssertionError("a value of the table has no stage that gives it")


def balanced_path(level: Level, bound: float, start: int, end: int) -> list[Segment]:
    """The best of all partitions of a segment whose stages take at most `bound` seconds.

    The one whose second slowest stage is fastest; then the one that sends the fewest bytes; then the one with the fewest
    machines, if some may be left unused; then the one that is cut earliest.

    Args:
        level: The level of machines.
        bound: Time of the slowest stage, in seconds, as the table has it.
        start: The segment lies behind cut start - 1.
        end: The segment ends with this cut.

    Returns:
        The stages, in order.
    """
    steps = Steps(level, bound * SLACK, start, end)
    return steps.path(steps.second_slowest() * SLACK)


@dataclass(frozen=True, eq=False)
class Step:
    """Stages of one width behind one cut: the cuts they end with, their seconds, and whether they fit, by machines before."""

    width: int
    cuts: NDArray[np.intp]
    seconds: Floats
    fits: Bools | None = None

    def only_fitting(self, values: Floats) -> Floats:
        """The values, the last two dimensions of which are machines before and cuts, with infinity where memory is too small."""
        return values if self.fits is None else np.where(self.fits, values, np.inf)


class Steps:
    """All stages of a segment that take no longer than a bound, and the searches over them.

    The lower the bound, the fewer stages there are: what machines have done before a cut is at most what they can do within
    the bound, and what is left at least what the others must be able to.

    Args:
        level: The level of machines. Its cuts come in the order of the work before them.
        bound: Seconds that no stage may exceed.
        start: The segment lies behind cut start - 1.
        end: The segment ends with this cut.
    """

    def __init__(self, level: Level, bound: float, start: int, end: int) -> None:
        self.level, self.bound, self.start, self.end = level, bound, start, end
        self.size = end - start + 1
        before = level.cuts.seconds[start - 1] if start else 0.0
        self.work = np.maximum.accumulate(level.cuts.seconds[start : end + 1]) - before
        # Work that one machine does within the bound.
        capacity = min(bound * level.below, 1e30) * SLACK
        counts = range(level.machines + 1)
        # The first cut behind which some number of machines can do all that is left.
        self.least = [int(np.searchsorted(self.work, (self.work[-1] - left * capacity) / SLACK, "left")) for left in counts]
        # For every cut, the one behind the last that some number of machines can reach from it.
        self.reach = [np.searchsorted(self.work, (self.work + width * capacity) * SLACK, "right").tolist() for width in counts]

    def firsts(self) -> list[Step]:
        """Every first stage, cuts counted from `start`."""
        level, found = self.level, []
        for width in range(1, level.widest + 1):
            seconds = level.first(self.start, width)[: self.size].copy()
            seconds[-1] = level.first(self.start, width, sends=False)[self.size - 1]
            allowed = (seconds <= self.bound) & level.fits(self.start, slice(self.start, self.end + 1), width, width)
            cuts = np.flatnonzero(allowed)
            found.append(Step(width, cuts, seconds[cuts]))
        return found

    def later(self, k: int, table: Floats) -> Iterator[tuple[slice, slice, Step]]:
        """Every stage behind cut `start + k`, with the rows of a table [..., machines, cut] that it leads from and to."""
        alive = np.flatnonzero(np.isfinite(table[..., k]).any(axis=tuple(range(table.ndim - 2))))
        if not len(alive):
            return
        level, machines = self.level, self.level.machines
        low, high = int(alive[0]), int(alive[-1])
        widths = range(1, min(level.widest, machines - 1 - low) + 1)
        windows = [self._window(k, width, machines - 1 - low - width) for width in widths]
        if not any(a < b for a, b in windows):
            return
        least = min(a for a, b in windows if a < b)
        held = level.cuts.held_by(self.start + k, slice(self.start + least, self.start + max(b for _, b in windows)))
        for width, (a, b) in zip(widths, windows):
            if a < b:
                rows = slice(low, min(high, machines - 1 - width) + 1)
                step = self._step(k, width, a, b, held[a - least : b - least], rows)
                if len(step.cuts):
                    yield rows, slice(rows.start + width, rows.stop + width), step

    def _window(self, k: int, width: int, left: int) -> tuple[int, int]:
        """The first cut that leaves little enough for `left` machines, and the one behind the last that `width` machines reach."""
        return max(k + 1, self.least[left]), self.reach[width][k]

    def _step(self, k: int, width: int, a: int, b: int, held: Bools, rows: slice) -> Step:
        level, first = self.level, self.start
        seconds = level.behind(first + k, width, slice(first + a, first + b))
        if b == self.size:
            seconds[-1:] = level.behind(first + k, width, slice(self.end, self.end + 1), sends=False)
        chosen = np.flatnonzero(held & (seconds <= self.bound))
        fits = None
        if level.rules.memory is not None:
            used = np.arange(rows.start + 1 + width, rows.stop + 1 + width)
            fits = np.asarray(level.fits(first + k + 1, chosen + (first + a), width, used))
        return Step(width, chosen + a, seconds[chosen], fits)

    def slowest(self) -> float:
        """Seconds of the slowest stage of the best partition, infinite if there is none within the bound."""
        table = np.full((self.level.machines, self.size), np.inf)
        for step in self.firsts():
            table[step.width - 1, step.cuts] = step.seconds
        for k in range(self.size - 1):
            for source, target, step in self.later(k, table):
                taken = step.only_fitting(np.maximum(table[source, k, None], step.seconds))
                table[target, step.cuts] = np.minimum(table[target, step.cuts], taken)
        return float(self._last(table[:, -1]).min())

    def second_slowest(self) -> float:
        """Seconds of the slowest stage of the best partition, its very slowest stage left out."""
        # [exempt, machines, cut]: seconds of the slowest stage but for `exempt` stages.
        table = np.full((2, self.level.machines, self.size), np.inf)
        for step in self.firsts():
            table[0, step.width - 1, step.cuts] = step.seconds
            table[1, step.width - 1, step.cuts] = 0.0
        for k in range(self.size - 1):
            for source, target, step in self.later(k, table):
                before = table[:, source, k, None]
                taken = np.maximum(before, step.seconds)
                taken[1] = np.minimum(taken[1], before[0])
                reached = table[:, target, step.cuts]
                table[:, target, step.cuts] = np.minimum(reached, step.only_fitting(taken))
        return float(self._last(table[1, :, -1]).min())

    def path(self, second: float) -> list[Segment]:
        """The partition with the fewest bytes over its cuts of those with at most one stage above `second` seconds."""
        sent = np.full((2, self.level.machines, self.size), np.inf)
        came = np.full((2, self.level.machines, self.size, 3), -1)
        for step in self.firsts():
            slow = (step.seconds > second).astype(int)
            sent[slow, step.width - 1, step.cuts] = 0.0
            came[slow, step.width - 1, step.cuts, 2] = step.width
        for k in range(self.size - 1):
            for source, target, step in self.later(k, sent):
                slow = step.seconds > second
                for previous, exempt in ((0, 0), (0, 1), (1, 1)):
                    chosen = np.flatnonzero(slow == (previous != exempt))
                    cuts = step.cuts[chosen]
                    more = sent[previous, source, k, None] + self.level.cuts.bytes[self.start + k]
                    more = step.only_fitting(np.broadcast_to(more, (len(more), len(step.cuts))))[:, chosen]
                    rows, columns = np.nonzero(more < sent[exempt, target][:, cuts])
                    sent[exempt, target.start + rows, cuts[columns]] = more[rows, columns]
                    came[exempt, target.start + rows, cuts[columns]] = (k, previous, step.width)
        return self._read(sent, came)

    def _last(self, values: Floats) -> Floats:
        """What counts at the end: all machines are used, unless fewer may be."""
        return values if self.level.rules.fewer else values[-1:]

    def _read(self, sent: Floats, came: NDArray[np.int_]) -> list[Segment]:
        machines = self.level.machines
        last = range(machines) if self.level.rules.fewer else [machines - 1]
        _, m, exempt = min((sent[exempt, m, -1], m, exempt) for m in last for exempt in (0, 1))
        found: list[Segment] = []
        cut = self.size - 1
        while True:
            k, previous, width = (int(value) for value in came[exempt, m, cut])
            if k < 0:
                return [Segment(self.start, self.start + cut, width), *reversed(found)]
            found.append(Segment(self.start + k + 1, self.start + cut, width))
            cut, m, exempt = k, m - width, previous
