"""Placement of buffers: temporaries in outputs that are not written yet, and next to each other with gaps."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from shardy_py.cost.liveness.live import Buffer

MAX_TRIED_OUTPUTS = 64
"""Number of outputs that are tried for one temporary."""


def into_outputs(buffers: Sequence[Buffer]) -> list[Buffer]:
    """The temporaries that need memory of their own.

    Others lie in an output before it is written, as XLA assigns them, or in a donated argument after its last read.
    """
    outputs = sorted((b for b in buffers if b.bytes and (b.role == "output" or b.free)), key=lambda b: (b.bytes, -b.outer_rank))
    sizes = [b.bytes for b in outputs]
    taken = [[(b.start, b.end)] if b.free is None else [(b.start, b.free[0]), (b.free[1], b.end)] for b in outputs]
    left: list[Buffer] = []
    for b in sorted((b for b in buffers if b.role == "temporary"), key=lambda b: (-b.bytes, b.outer_rank)):
        first = bisect_right(sizes, b.bytes - 1)
        for lives in taken[first : first + MAX_TRIED_OUTPUTS]:
            i = bisect_right(lives, (b.end, math.inf))  # no two of them overlap
            if not i or lives[i - 1][1] < b.start:
                lives.insert(i, (b.start, b.end))
                break
        else:
            left.append(b)
    return sorted(left, key=lambda b: (b.start, b.value))


def packed(buffers: Sequence[Buffer], alignment: int) -> int:
    """Bytes of one piece of memory that holds all buffers, those alive at the same time side by side.

    As XLA's `GlobalDecreasingSizeBestFitHeap`: the largest first, or the longest-lived, each into the smallest gap that is free while it
    lives.

    Args:
        buffers: Few; this takes time with the square of their number.

    Example:
        >>> packed([Buffer(100, 0, 1, 0, None), Buffer(60, 2, 3, 1, None), Buffer(50, 1, 2, 2, None)], 64)
        164
    """
    lasts = {id(b): last for b, last in zip(buffers, _durations(buffers))}
    by_size = sorted(buffers, key=lambda b: (-b.bytes, -lasts[id(b)], b.rank))
    by_time = sorted(buffers, key=lambda b: (-lasts[id(b)], -b.bytes, b.rank))
    return min(_placed(by_size, alignment), _placed(by_time, alignment))


def _durations(buffers: Sequence[Buffer]) -> list[int]:
    """Lifetimes of buffers as XLA counts them: in allocations and deallocations, not in steps."""
    lives = sorted((start, end, i) for i, b in enumerate(buffers) for start, end, *_ in b.lives or [(b.start, b.end)])
    events = [(start, 0, k) for k, (start, _, _) in enumerate(lives)] + [(end, 1, k) for k, (_, end, _) in enumerate(lives)]
    first, last = [len(events)] * len(buffers), [0] * len(buffers)
    for time, (_, gives_back, k) in enumerate(sorted(events)):
        i = lives[k][2]
        if gives_back:
            last[i] = time
        else:
            first[i] = min(first[i], time)
    return [end - start for start, end in zip(first, last)]


def _placed(buffers: Sequence[Buffer], alignment: int) -> int:
    placed: list[tuple[int, int, int, int]] = []
    total = 0
    for b in buffers:
        if not b.bytes:
            continue
        beside = sorted((low, high) for low, high, start, end in placed if start <= b.end and b.start <= end)
        best: tuple[int, int] | None = None
        at = 0
        for low, high in beside:
            if low - at >= b.bytes and (best is None or low - at < best[0]):
                best = (low - at, at)
            at = max(at, -(-high // alignment) * alignment)
        where = at if best is None else best[1]
        placed.append((where, where + b.bytes, b.start, b.end))
        total = max(total, where + b.bytes)
    return total
