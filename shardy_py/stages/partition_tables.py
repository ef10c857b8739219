"""The tables of the partitioner: the best pipeline of every segment between two cuts, for every number of machines.

`table[i, m, j]` is the time per minibatch, in seconds, of the slowest stage of the best pipeline that runs what lies behind
cut i - 1 (from the start for i = 0) and up to cut j on m + 1 machines; infinite where there is none. A stage between cuts k
and j that is replicated over w machines takes

    max( (compute + 4 (w - 1) parameters / (bandwidth w)) / w,  2 bytes_k / (bandwidth w),  2 bytes_j / (bandwidth w) )

and tables are filled in the order of k: once row k is final it is extended by every later stage. Cuts come in an order in
which no set comes before one it holds. Source: PipeDream, optimizer_graph_hierarchical.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardy_py.stages.graph_cuts import Bools, Cuts, Floats

# One cut, or several.
Ends = int | slice | NDArray[np.intp]

# Weights, their gradients, and two moments of Adam.
PARAMETER_COPIES = 4


@dataclass(frozen=True)
class Rules:
    """What a partition has to keep to.

    Args:
        exact: Whether to use true bytes and memory; else PipeDream's, faults included.
        compression: By what activations are divided when they are sent; None leaves transfers out.
        straight: Whether no stage may be replicated.
        fewer: Whether machines may be left unused.
        memory: Bytes per machine, or None for no limit.
    """

    exact: bool
    compression: float | None
    straight: bool
    fewer: bool
    memory: float | None


@dataclass(frozen=True, eq=False)
class Level:
    """One level of machines: its stages, between any two cuts, and what they cost.

    Args:
        cuts: The cuts.
        rules: What to keep to.
        machines: Number of machines on this level.
        bandwidth: Bytes per second between them.
        inner: By what parameter bytes are divided when they are summed, the number of machines in each machine.
        below: Number of machines of the innermost level in each machine.
        compute: Seconds from behind cut i - 1 (row) to cut j (column) in one machine of this level, if it has machines inside.
        waiting: Minibatches that may be in flight in addition, because of levels above.
    """

    cuts: Cuts
    rules: Rules
    machines: int
    bandwidth: float
    inner: int
    below: int = 1
    compute: Floats | None = None
    waiting: int = 0

    @property
    def widest(self) -> int:
        """The most machines that one stage may be replicated over."""
        return 1 if self.rules.straight else self.machines

    def behind(self, k: int, width: int, ends: slice, *, sends: bool = True) -> Floats:
        """Seconds of the stages from cut k to some later cuts, on `width` machines, taking k to be a part of all of them."""
        cuts = self.cuts
        parameters = cuts.parameters[ends] - cuts.parameters[k]
        shared = self.inner if self.rules.exact else 1
        work = cuts.seconds[ends] - cuts.seconds[k] if self.compute is None else self.compute[k + 1, ends]
        seconds = (work + 4 * (width - 1) * parameters / (self.bandwidth * width) / shared) / width
        if self.rules.compression is not None:
            each = 2.0 / (self.bandwidth * width) / self.rules.compression
            seconds = np.maximum(seconds, each * cuts.bytes[k])
            if sends:
                seconds = np.maximum(seconds, each * cuts.sent[ends])
        return seconds

    def first(self, start: int, width: int, *, sends: bool = True) -> Floats:
        """Seconds of the stages from behind cut start - 1 to every cut from `start` on; infinite to those it is no part of."""
        cuts = self.cuts
        before = cuts.parameters[start - 1] if start else 0.0
        if self.compute is not None:
            work = self.compute[start, start:]
        else:
            work = cuts.seconds[start:] - (cuts.seconds[start - 1] if start else 0.0)
        if start and self.rules.exact:
            work = np.where(cuts.held_by(start - 1, slice(start, None)), work, np.inf)
        shared = 4 * (width - 1) * (cuts.parameters[start:] - before) / (self.bandwidth * width) / self.inner
        seconds = (work + shared) / width
        if self.rules.exact and sends and self.rules.compression is not None:
            seconds = np.maximum(seconds, 2.0 * cuts.bytes[start:] / (self.bandwidth * width) / self.rules.compression)
        return seconds

    def memory(self, start: int, ends: Ends, width: int, used: int | NDArray[np.int_]) -> Floats:
        """Bytes that a machine of the stage from behind cut start - 1 to some cuts needs, if `used` machines end with it.

        PipeDream: activations and parameters for every minibatch in flight in later stages. Exact: activations for these and the
        current one, parameters with gradients and optimizer state once. A row for each of several numbers of machines.
        """
        cuts = self.cuts
        activations = cuts.activations[ends] - (cuts.activations[start - 1] if start else 0.0)
        parameters = cuts.parameters[ends] - (cuts.parameters[start - 1] if start else 0.0)
        flight = self.in_flight(width, used)
        flight = flight if isinstance(flight, int) else flight[:, None]
        if self.rules.exact:
            return np.asarray(flight * activations + PARAMETER_COPIES * parameters)
        return np.asarray(flight * (activations + parameters))

    def in_flight(self, width: int, used: int | NDArray[np.int_]) -> int | NDArray[np.int_]:
        """Minibatches whose activations a stage keeps; PipeDream does not count the current one."""
        later = -(-(self.machines - used) // width)
        return later + 1 + self.waiting if self.rules.exact else later

    def fits(self, start: int, ends: Ends, width: int, used: int | NDArray[np.int_]) -> Bools | bool:
        """Whether the stage fits in memory; for several numbers of machines a row for each."""
        return True if self.rules.memory is None else self.memory(start, ends, width, used) <= self.rules.memory

    def table(self, rows: int) -> Floats:
        """Fills the table for the first `rows` starts: 1 on the outermost level, else all."""
        size = len(self.cuts.downsets)
        table = np.full((rows, self.machines, size), np.inf)
        for start in range(rows):
            for width in range(1, self.widest + 1):
                seconds = self.first(start, width)
                table[start, width - 1, start:] = np.where(self.fits(start, slice(start, None), width, width), seconds, np.inf)
        for k in range(size):
            done = min(k + 1, rows)
            if self.rules.fewer:
                # PipeDream leaves the segment that ends with its first cut out.
                strict = done if self.rules.exact else min(k, rows)
                table[:strict, :, k] = np.minimum.accumulate(table[:strict, :, k], axis=1)
            for width, seconds in self.steps(k) if k + 1 < size else ():
                before = table[:done, : self.machines - width, k, None]
                reached = table[:done, width:, k + 1 :]
                np.minimum(reached, np.maximum(before, seconds), out=reached)
        return table

    def ended(self, table: Floats) -> Floats:
        """The last machine's part of a full table, where what a segment sends at its end is left to the level above."""
        last = self.machines - 1
        if not (self.rules.exact and self.rules.compression is not None):
            return table[:, last]
        size = len(self.cuts.downsets)
        result = np.full((size, size), np.inf)
        for start in range(size):
            for width in range(1 if self.rules.fewer else self.machines, self.widest + 1):
                seconds = self.first(start, width, sends=False)
                fits = self.fits(start, slice(start, None), width, width)
                result[start, start:] = np.minimum(result[start, start:], np.where(fits, seconds, np.inf))
        for k in range(size - 1):
            for width in range(1, min(self.widest, last) + 1):
                later = slice(k + 1, None)
                seconds = self.behind(k, width, later, sends=False)
                seconds = np.where(self.cuts.inside[k, later] & self.fits(k + 1, later, width, self.machines), seconds, np.inf)
                reached = result[: k + 1, k + 1 :]
                np.minimum(reached, np.maximum(table[: k + 1, last - width, k, None], seconds), out=reached)
        return result

    def steps(self, k: int) -> Iterator[tuple[int, Floats]]:
        """(width, seconds) of every stage behind cut k; the seconds by cut, or by machines before and cut where memory counts."""
        later = slice(k + 1, None)
        for width in range(1, min(self.widest, self.machines - 1) + 1):
            allowed = self.cuts.inside[k, later]
            if self.rules.memory is not None:
                allowed = allowed & self.fits(k + 1, later, width, np.arange(width + 1, self.machines + 1))
            yield width, np.where(allowed, self.behind(k, width, later), np.inf)
