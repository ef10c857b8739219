"""When a collective permute brings two shardings closer, and to which sharding it should go.

A permute keeps into how many pieces each dimension is cut and can change everything else.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from shardy_py.passes.export.collective_parts import Part, distribute, fill, size_of, split_in, split_to_fit
from shardy_py.passes.export.collective_search import Search


def is_permute_useful(search: Search) -> bool:
    """Whether axes stand where only a permute can help, or where it saves a gather."""
    if any(s and t and _divides(s[0], t[0]) for s, t in zip(search.source, search.target, strict=True)):
        return True
    added = _last(part for order in search.target for part in order if part not in search.present)
    removed = _last(part for parts in search.source for part in parts if part not in search.wanted)
    if added is not None and removed is not None and _divides(added, removed):
        return True
    return any(_is_out_of_order(search, dim) for dim in range(len(search.source)))


def permute(search: Search) -> bool:
    """Moves axes to their target dimensions by one permute, as far as the number of pieces per dimension allows.

    In each dimension come first the axes it has to get, as many as fit; axes that have to go elsewhere stand at the end, ready for an
    all-to-all; those that nobody wants fill what is left, where they are if possible.

    Returns:
        Whether there is such a permute. Where sizes do not divide each other the reference may end with another number of pieces,
        which its verifier rejects; then nothing has changed.
    """
    old, target, current = search.source, [list(order) for order in search.target], search.current
    room = [size_of(parts) for parts in old]
    stays, ends, replaced = _place_target_axes(room, target)
    fronts, middles = _place_other_axes(search, room, replaced)
    new = [[*front, *middle, *end] for front, middle, end in zip(fronts, middles, ends, strict=True)]
    if any(size_of(parts) != size_of(a) * size_of(b) for parts, a, b in zip(old, stays, new, strict=True)):
        return False
    for dim, parts in enumerate(old):
        current[dim] = [*current[dim][: len(current[dim]) - len(parts)], *stays[dim], *new[dim]]
    search.source = new
    search.target = target
    search.other_mesh = False
    search.renew_present()
    search.index()
    search.emit("collective_permute")
    return True


def _place_target_axes(room: list[int], target: list[list[Part]]) -> tuple[list[list[Part]], list[list[Part]], list[int]]:
    """Places axes of the target, others at dimensions' ends: per dimension both, and how many pieces the former make."""
    stays: list[list[Part]] = [[] for _ in target]
    for dim, order in enumerate(target):
        while order and room[dim] > 1:
            fitting, rest = split_to_fit(order[0], room[dim])
            if fitting is None:
                break
            order[:1] = [] if rest is None else [rest]
            room[dim] //= fitting[2]
            stays[dim].append(fitting)
    ends = distribute([part for order in target for part in order], room, partial(split_in, target))
    return stays, ends, [size_of(parts) for parts in stays]


def _place_other_axes(search: Search, room: list[int], replaced: list[int]) -> tuple[list[list[Part]], list[list[Part]]]:
    """Keeps axes that the target lacks, to be gathered later, in the remaining room.

    In each dimension, the first of them give way to the axes in their final place; the others stay before those.

    Returns:
        Per dimension: axes that came from other dimensions, and its own.
    """
    own: list[list[Part]] = []
    homeless: list[Part] = []
    for dim, parts in enumerate(search.source):
        others = [part for part in parts if part not in search.wanted]
        first, last = _split_after(others, replaced[dim])
        left = last + first
        own.append(fill(left, room, dim))
        homeless += left
    return distribute(homeless, room), own


def _split_after(parts: list[Part], pieces: int) -> tuple[list[Part], list[Part]]:
    """Cuts a list where the parts so far make `pieces` pieces, or earlier where sizes do not divide."""
    first: list[Part] = []
    rest = list(parts)
    while pieces > 1 and rest:
        name, pre, size = rest[0]
        if pieces % size == 0:
            first.append(rest.pop(0))
            pieces //= size
        elif size % pieces == 0:
            first.append((name, pre, pieces))
            rest[0] = (name, pre * pieces, size // pieces)
            break
        else:
            break
    return first, rest


def _is_out_of_order(search: Search, dim: int) -> bool:
    """Whether all-to-alls and gathers from the end of a dimension would find its axes in a wrong order."""
    seen: set[int] = set()
    before: tuple[int, int] | None = None
    moves = False
    for part in search.source[dim]:
        place = search.wanted.get(part)
        if place is None:
            if moves and not search.target[dim]:
                return True
            before = None
            continue
        goal, i = place
        if goal == dim or (goal in seen and before != (goal, i - 1)):
            return True
        seen.add(goal)
        before = place
        moves = True
    return False


def _divides(a: Part, b: Part) -> bool:
    return a[2] % b[2] == 0 or b[2] % a[2] == 0


def _last(parts: Iterable[Part]) -> Part | None:
    last = None
    for part in parts:
        last = part
    return last
