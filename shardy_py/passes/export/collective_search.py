"""The search for the collectives that turn one sharding into another: slice, permute, exchange, gather, and once more.

`Search` holds, for each dimension, the axes that still have to leave it or move within it, those that still have to come, and those
it has now. Each step brings the three closer together. Source: `CollectiveInserter` in Shardy's reshard_to_collectives.cc.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from shardy_py.passes.export.collective_parts import Part, distribute, size_of, split_in, split_to_fit

Emit = Callable[["CollectiveSearch", str, Sequence[Sequence[Part]], tuple[int, int] | None], None]


class CollectiveSearch:
    """The reshard that is left to do.

    Args:
        source: Per dimension, the axes to get rid of or to move; what both sides begin with is left out.
        emit: Called with each step: its kind, its axes per dimension, and for an all-to-all the
            axes moved, from where and to where.

    Attributes:
        present: The axes there to be moved. As in the reference, one that has been gathered still counts until the next permute.
    """

    __slots__ = ("_emit", "current", "other_mesh", "present", "shape", "source", "target", "wanted")

    def __init__(
        self,
        source: list[list[Part]],
        target: list[list[Part]],
        current: list[list[Part]],
        shape: Sequence[int],
        other_mesh: bool,
        emit: Emit,
    ) -> None:
        self.source = source
        self.target = target
        self.current = current
        self.shape = shape
        self.other_mesh = other_mesh
        self.present: set[Part] = set()
        self._emit = emit
        self.renew_present()
        self.index()

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return not (self.other_mesh or any(self.source) or any(self.target))

    def index(self) -> None:
        """Finds anew where each axis has to go."""
        self.wanted = {part: (dim, i) for dim, parts in enumerate(self.target) for i, part in enumerate(parts)}

    def renew_present(self) -> None:
        """Recomputes the axes that can be moved."""
        self.present = {part for parts in self.source for part in parts}

    def emit(self, kind: str, per_dim: Sequence[Sequence[Part]] = (), move: tuple[int, int] | None = None) -> None:
        """Reports a step after which the axes are as `current` says."""
        self._emit(self, kind, per_dim, move)

    def add(self, dim: int, part: Part) -> None:
        """Cuts a dimension along one more axis, which the target does not have there."""
        self.source[dim].append(part)
        self.current[dim].append(part)
        self.present.add(part)

    def all_slice(self) -> None:
        """Cuts along axes that nothing is cut along yet, as long as no dimension is cut finer than both sides need together."""
        rank = len(self.source)
        room = [size_of(t) // math.gcd(size_of(s), size_of(t)) for s, t in zip(self.source, self.target, strict=True)]
        sliced: list[list[Part]] = [[] for _ in range(rank)]
        for dim in range(rank):
            self._slice_before_move(dim, room, sliced)
        homeless: list[Part] = []
        for dim in range(rank):
            self._slice_in_place(dim, room, sliced, homeless)
        for dim, parts in enumerate(distribute(homeless, room, partial(split_in, self.target))):
            sliced[dim] += parts
            for part in parts:
                self.add(dim, part)
        self.index()
        if any(sliced):
            self.emit("all_slice", sliced)

    def _slice_before_move(self, dim: int, room: list[int], sliced: list[list[Part]]) -> None:
        """Slices a dimension that an all-to-all will empty into another along the axes that follow there, for all to move at once."""
        parts = self.source[dim]
        if not parts or self.target[dim] or parts[-1] not in self.wanted:
            return
        goal, i = self.wanted[parts[-1]]
        order = self.target[goal]
        if self.source[goal] or i + 1 >= len(order) or order[i + 1] in self.present:
            return
        matching = 0
        while matching < min(len(parts), i + 1) and parts[-1 - matching] == order[i - matching]:
            matching += 1
        if any(self.wanted.get(part, (-1,))[0] == goal for part in parts[: len(parts) - matching]):
            return
        following: list[Part] = []
        for part in order[i + 1 :]:
            if part in self.present:
                break
            following.append(part)
        if self.shape[dim] % (size_of(self.current[dim]) * size_of(following)):
            return
        room[goal] //= size_of(parts[len(parts) - matching :]) * size_of(following)
        for part in following:
            self.add(dim, part)
        sliced[dim] += following

    def _slice_in_place(self, dim: int, room: list[int], sliced: list[list[Part]], homeless: list[Part]) -> None:
        """Cuts a dimension along the axes it has to get, as far as there is room; the rest becomes homeless."""
        order = self.target[dim]
        i = 0
        while i < len(order):
            part = order[i]
            if part in self.present:
                i += 1
                continue
            fitting, rest = split_to_fit(part, room[dim])
            if fitting is None:
                homeless.append(part)
                i += 1
                continue
            if rest is not None:
                order[i : i + 1] = [fitting, rest]
            room[dim] //= fitting[2]
            sliced[dim].append(fitting)
            if i == 0 and not self.source[dim]:
                order.pop(0)
                self.current[dim].append(fitting)
            else:
                self.add(dim, fitting)
                i += 1

    def all_to_alls(self) -> None:
        """Moves axes from the ends of dimensions to other dimensions, first where they arrive in their final place."""
        for in_place in (True, False):
            for dim in range(len(self.source)):
                while self._all_to_all(dim, in_place):
                    pass

    def _all_to_all(self, dim: int, in_place: bool) -> bool:
        parts = self.source[dim]
        if not parts or parts[-1] not in self.wanted:
            return False
        goal = self.wanted[parts[-1]][0]
        if goal == dim:
            return False
        start = len(parts)
        while start and self.wanted.get(parts[start - 1], (-1,))[0] == goal:
            start -= 1
        moved = parts[start:]
        order = self.target[goal]
        fits = order[: len(moved)] == moved
        if in_place and not fits:
            return False
        del parts[start:], self.current[dim][-len(moved) :]
        self.current[goal] += moved
        if fits and not self.source[goal]:
            del order[: len(moved)]
        else:
            self.source[goal] += moved
        self.index()
        self.emit("all_to_all", (moved,), (dim, goal))
        return True

    def all_gather(self) -> None:
        """Gathers, in dimensions whose last axis is wanted nowhere, all that does not stay, as the reference does."""
        gathered: list[list[Part]] = [[] for _ in self.source]
        for dim, parts in enumerate(self.source):
            if parts and parts[-1] not in self.wanted:
                gathered[dim] = list(parts)
                del self.current[dim][-len(parts) :]
                parts.clear()
        if any(gathered):
            self.emit("all_gather", gathered)
        for parts, order in zip(self.source, self.target, strict=True):
            while parts and order and parts[0] == order[0]:
                del parts[0], order[0]
        self.index()

    def reorder_devices(self) -> None:
        """Moves to the mesh of the target, if it is another, with unchanged axes."""
        if self.other_mesh:
            self.other_mesh = False
            self.emit("collective_permute")

    def finish(self) -> None:
        """Gathers all that is left, reorders devices, and slices: what always works."""
        gathered = [list(parts) for parts in self.source]
        for parts, current in zip(self.source, self.current, strict=True):
            del current[len(current) - len(parts) :]
            parts.clear()
        if any(gathered):
            self.emit("all_gather", gathered)
        self.reorder_devices()
        sliced = [list(parts) for parts in self.target]
        for order, current in zip(self.target, self.current, strict=True):
            current += order
            order.clear()
        if any(sliced):
            self.emit("all_slice", sliced)
        self.index()
