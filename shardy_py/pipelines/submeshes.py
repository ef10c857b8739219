"""Cuts a line of pieces into stages on meshes of their own, so that a step of a pipeline is shortest: Alpa's outer problem."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MOST_BOUNDS = 32
"""Bounds on the slowest stage that are tried; of more seconds of stages so many are taken, evenly."""


@dataclass(frozen=True)
class Run:
    """A stage: pieces from `start` to `end`, on a mesh of a shape."""

    start: int
    end: int
    shape: tuple[int, ...]


def divided(
    seconds: Mapping[tuple[int, ...], Sequence[float]], stages: int, devices: int, microbatches: int
) -> tuple[float, tuple[Run, ...]] | None:
    """The fastest stages (all once, and the slowest again per further microbatch), and their seconds; None where too many share.

    Example:
        >>> seconds = {(1,): [4.0, 1.0, 1.0], (2,): [2.0, 0.6, 0.6]}
        >>> divided(seconds, 2, 3, 4)
        (10.0, (Run(start=0, end=1, shape=(2,)), Run(start=1, end=3, shape=(1,))))
    """
    count = len(next(iter(seconds.values())))
    runs: dict[tuple[int, int], list[tuple[float, tuple[int, ...]]]] = {}
    for start in range(count):
        for end in range(start + 1, count + 1):
            best: dict[int, tuple[float, tuple[int, ...]]] = {}
            for shape, pieces in seconds.items():
                size, total = math.prod(shape), math.fsum(pieces[start:end])
                if size not in best or total < best[size][0]:
                    best[size] = total, shape
            runs[start, end] = list(best.values())
    bounds = sorted({total for each in runs.values() for total, _ in each})
    step = max(1, math.ceil(len(bounds) / MOST_BOUNDS))
    result: tuple[float, tuple[Run, ...]] | None = None
    before = 0.0
    for bound in (*bounds[step - 1 :: step], bounds[-1]):
        if result is not None and (microbatches - 1) * before >= result[0]:
            break  # whatever takes longer than the last bound in its slowest stage takes longer in all
        before = bound
        chosen = _least_sum(runs, count, stages, devices, bound)
        if chosen is not None:
            times = [math.fsum(seconds[run.shape][run.start : run.end]) for run in chosen]
            total = math.fsum(times) + (microbatches - 1) * max(times)
            if result is None or total < result[0]:
                result = total, chosen
    return result


def _least_sum(
    runs: Mapping[tuple[int, int], Sequence[tuple[float, tuple[int, ...]]]], count: int, stages: int, devices: int, bound: float
) -> tuple[Run, ...] | None:
    """The stages with the least sum, none of which takes longer than the bound."""
    reached: dict[tuple[int, int], tuple[float, tuple[Run, ...]]] = {(0, 0): (0.0, ())}
    for number in range(stages):
        following: dict[tuple[int, int], tuple[float, tuple[Run, ...]]] = {}
        for (start, used), (before, taken) in reached.items():
            for end in range(start + 1, count - (stages - number - 1) + 1):
                for total, shape in runs[start, end]:
                    key = end, used + math.prod(shape)
                    if total <= bound and key[1] <= devices - (stages - number - 1):
                        if key not in following or before + total < following[key][0]:
                            following[key] = before + total, (*taken, Run(start, end, shape))
        reached = following
    best = reached.get((count, devices))
    return None if best is None else best[1]
