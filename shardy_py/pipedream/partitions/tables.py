"""Costs of the stages between cuts on one level of machines, and PipeDream's tables of all of them.

A stage that lies behind cut k, ends with cut j, and is replicated over w machines takes, per minibatch,

    max( (compute + 4 (w - 1) parameters / (bandwidth w)) / w,  2 bytes_k / (bandwidth w),  2 bytes_j / (bandwidth w) )

Source: PipeDream, optimizer_graph_hierarchical.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardy_py.pipedream.partitions.cuts import Bools, Cuts, Floats

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

    def memory(self, starts: Starts, ends: Ends, width: int, used: int | NDArray[np.int_]) -> Floats:
        """Bytes that a machine of the stages from behind cut start - 1 to some cuts needs, if `used` machines end with them.

        PipeDream: activations and parameters for every minibatch in flight in later stages. Exact: activations for these and the
        current one, parameters with gradients and optimizer state once. A row for each start, or for each of several numbers of
        machines.
        """
        activations = self.grown(self.cuts.activations, starts, ends)
        parameters = self.grown(self.cuts.parameters, starts, ends)
        flight = self.in_flight(width, used)
        flight = flight if isinstance(flight, int) else flight[:, None]
        if self.rules.exact:
            return np.asarray(flight * activations + PARAMETER_COPIES * parameters)
        return np.asarray(flight * (activations + parameters))

    def in_flight(self, width: int, used: int | NDArray[np.int_]) -> int | NDArray[np.int_]:
        """Minibatches whose activations a stage keeps; PipeDream does not count the current one."""
        if self.rules.exact:
            return -(-(self.machines - used + self.waiting) // width) + 1
        return -(-(self.machines - used) // width)

    def fits(self, starts: Starts, ends: Ends, width: int, used: int | NDArray[np.int_]) -> Bools | bool:
        """Whether stages fit in memory; for several numbers of machines a row for each."""
        return True if self.rules.memory is None else self.memory(starts, ends, width, used) <= self.rules.memory


@dataclass(frozen=True, eq=False)
class PipeDreamTable:
    """PipeDream's dynamic-programming table of one level.

    `table[i, m, j]` is the time per minibatch, in seconds, of the slowest stage of the best pipeline that runs what lies behind
    cut i - 1 (from the start for i = 0) and up to cut j on m + 1 machines; infinite where there is none. It is filled in the order
    of k: once row k is final it is extended by every later stage.

    Args:
        compute: Seconds from behind cut i - 1 (row) to cut j (column) in one machine of this level, if it has machines inside.
    """

    level: MachineLevel
    compute: Floats | None = None

    def first(self, start: int, width: int) -> Floats:
        """Seconds of the stages from behind cut start - 1 to every cut from `start` on."""
        ends = slice(start, None)
        return self.level.seconds(start, width, ends, self._work(start, ends), first=True)

    def behind(self, k: int, width: int, ends: slice) -> Floats:
        """Seconds of the stages from cut k to some later cuts."""
        return self.level.seconds(k + 1, width, ends, self._work(k + 1, ends))

    def _work(self, start: int, ends: slice) -> Floats:
        return self.level.grown(self.level.cuts.seconds, start, ends) if self.compute is None else self.compute[start, ends]

    def filled(self, rows: int) -> Floats:
        """The table for the first `rows` starts: 1 on the outermost level, else all."""
        level, size = self.level, len(self.level.cuts.downsets)
        table = np.full((rows, level.machines, size), np.inf)
        for start in range(rows):
            for width in range(1, level.widest + 1):
                fits = level.fits(start, slice(start, None), width, width)
                table[start, width - 1, start:] = np.where(fits, self.first(start, width), np.inf)
        for k in range(size):
            done = min(k + 1, rows)
            if level.rules.fewer:
                # PipeDream leaves the segment that ends with its first cut out.
                strict = min(k, rows)
                table[:strict, :, k] = np.minimum.accumulate(table[:strict, :, k], axis=1)
            for width, seconds in self._steps(k) if k + 1 < size else ():
                before = table[:done, : level.machines - width, k, None]
                reached = table[:done, width:, k + 1 :]
                np.minimum(reached, np.maximum(before, seconds), out=reached)
        return table

    def _steps(self, k: int) -> Iterator[tuple[int, Floats]]:
        """(width, seconds) of every stage behind cut k; the seconds by cut, or by machines before and cut where memory counts."""
        level, later = self.level, slice(k + 1, None)
        for width in range(1, min(level.widest, level.machines - 1) + 1):
            allowed = level.cuts.inside[k, later]
            if level.rules.memory is not None:
                allowed = allowed & level.fits(k + 1, later, width, np.arange(width + 1, level.machines + 1))
            yield width, np.where(allowed, self.behind(k, width, later), np.inf)
