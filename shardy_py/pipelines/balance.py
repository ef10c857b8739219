"""Cutting a line of equations into stages of equal cost, where little crosses."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate

SLACK = 1.05
"""Share by which a stage may be longer than the best slowest stage, for the sake of fewer bytes."""


def balanced(costs: Sequence[float], crossing: Sequence[float], stages: int, *, seconds_per_byte: float = 0.0) -> list[int]:
    """The cuts with the fewest bytes of all whose slowest stage is within `SLACK` of the best; of several the fastest.

    A stage takes as long as what it computes, or as what it sends over one of its ends and gets back, whichever is longer: both go
    on at once, as `sp.pipedream.partition` counts in exact mode.

    Args:
        seconds_per_byte: Seconds for a byte that crosses, in both directions together.

    Example:
        >>> balanced([1, 1, 1, 1, 2], [0, 9, 9, 1, 9], 2)
        [3]
        >>> balanced([1, 1, 1, 2, 1], [0, 9, 1, 9, 9], 2), balanced([1, 1, 1, 2, 1], [0, 9, 1, 9, 9], 2, seconds_per_byte=1)
        ([3], [2])
    """
    transfer = [seconds_per_byte * size for size in crossing]
    least = _least_bottleneck(costs, transfer, stages)
    best = _fewest_bytes(costs, crossing, transfer, stages, least * SLACK)
    assert best is not None
    low, high = least, least * SLACK
    for _ in range(12):
        middle = (low + high) / 2
        other = _fewest_bytes(costs, crossing, transfer, stages, middle)
        if other is not None and other[0] <= best[0]:
            best, high = other, middle
        else:
            low = middle
    return best[1]


def _least_bottleneck(costs: Sequence[float], transfer: Sequence[float], stages: int) -> float:
    """The smallest bound that `stages` runs of items, none of them empty, can keep."""
    low, high = max(costs), max(sum(costs), *transfer)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _can_keep(costs, transfer, stages, middle) else (middle, high)
    return high * (1 + 1e-12)


def _can_keep(costs: Sequence[float], transfer: Sequence[float], stages: int, bound: float) -> bool:
    """Whether `stages` runs can keep a bound: each as long as it can be; where these are too few, more cuts only make runs shorter."""
    runs, load, since, allowed = 1, 0.0, None, 0
    for number, (cost, seconds) in enumerate(zip(costs, transfer)):
        if number and seconds <= bound:
            allowed, since = allowed + 1, 0.0
        if load + cost > bound:
            if since is None:
                return False
            runs, load, since = runs + 1, since, None
        load += cost
        if since is not None:
            since += cost
        if load > bound:
            return False
    return runs <= stages <= allowed + 1


def _fewest_bytes(
    costs: Sequence[float], crossing: Sequence[float], transfer: Sequence[float], stages: int, bound: float
) -> tuple[float, list[int]] | None:
    """The fewest bytes over all cuts with every stage within the bound, and the cuts."""
    n = len(costs)
    total = [0.0, *accumulate(costs)]
    none = float("inf")
    best = [0.0] + [none] * n
    choices: list[list[int]] = []
    for stage in range(stages):
        window: deque[int] = deque()
        following, choice = [none] * (n + 1), [0] * (n + 1)
        entered = 0
        for end in range(1, n + 1):
            while entered < end:
                value = best[entered] + (crossing[entered] if stage and entered < n else 0.0)
                if stage and transfer[entered] > bound * (1 + 1e-9):
                    value = none
                while window and best[window[-1]] + (crossing[window[-1]] if stage else 0.0) >= value:
                    window.pop()
                if value < none:
                    window.append(entered)
                entered += 1
            while window and total[end] - total[window[0]] > bound * (1 + 1e-9):
                window.popleft()
            if window:
                start = window[0]
                following[end] = best[start] + (crossing[start] if stage else 0.0)
                choice[end] = start
        choices.append(choice)
        best = following
    if best[n] == none:
        return None
    cuts: list[int] = []
    end = n
    for choice in reversed(choices[1:]):
        end = choice[end]
        cuts.append(end)
    return best[n], cuts[::-1]
