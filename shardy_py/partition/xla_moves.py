"""Resharding in XLA's partitioner: the cases in which it replicates the value."""

from __future__ import annotations

import math

Cuts = tuple[int, ...]
"""The number of parts into which each dimension is cut."""


def replicates(before: Cuts, after: Cuts, devices: int) -> bool:
    """Whether XLA's partitioner has to replicate the value in between.

    It has a collective where numbers of parts only change dimensions, for two dimensions whose numbers have the same product, for changes
    that only add cuts, and for those that only remove them; and, before or after one of these, gathers a single dimension or, where no
    device is idle afterwards, cuts one. Two more cases have a side without idle devices. The rules fit the warnings of jaxlib 0.10.2 on
    2,500 pairs of shardings of two and three dimensions over 8 devices, with one exception: whether three dimensions cut in two can become
    one cut in four depends on the dimension, and counts as possible.

    Example:
        >>> replicates((2, 1, 4), (1, 8, 1), 8), replicates((2, 4), (4, 2), 8)
        (True, False)
    """
    if _is_direct(before, after):
        return False
    lost = [i for i, (b, a) in enumerate(zip(before, after)) if b > a]
    gained = [i for i, (b, a) in enumerate(zip(before, after)) if a > b]

    def with_one(i: int) -> Cuts:
        return (*before[:i], after[i], *before[i + 1 :])

    all_busy_after = math.prod(after) == devices
    if len(lost) > 1 and any(_is_direct(with_one(i), after) for i in lost):
        return False
    if all_busy_after and len(gained) > 1 and any(math.prod(with_one(i)) <= devices and _is_direct(with_one(i), after) for i in gained):
        return False
    if math.prod(before[i] / after[i] for i in lost) == math.prod(after[i] / before[i] for i in gained):
        return True
    if all_busy_after and len(lost) + len(gained) == 2 and before[gained[0]] == 1:
        return False
    return not (math.prod(before) == devices and all(before[i] > 1 for i in gained))


def _is_direct(before: Cuts, after: Cuts) -> bool:
    """Whether one kind of collective suffices."""
    changed = [(b, a) for b, a in zip(before, after) if b != a]
    if all(b > a for b, a in changed) or all(b < a for b, a in changed):
        return True
    if sorted(b for b, _ in changed) == sorted(a for _, a in changed):
        return True
    return len(changed) == 2 and math.prod(b for b, _ in changed) == math.prod(a for _, a in changed)
