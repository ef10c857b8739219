"""The collectives of a reshard, as a function of two shardings and a shape."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from shardy_py.dialect import AllToAllParam, AxisRef, Mesh, TensorSharding
from shardy_py.dialect.axis import merged, normalized
from shardy_py.errors import DialectError

Part = tuple[str, int, int]
"""`(axis, pre_size, size)`, as in `"x":(2)4`; a full axis has the pre-size 1 and its full size."""

Kind = Literal["all_slice", "all_gather", "all_to_all", "collective_permute"]


@dataclass(frozen=True, slots=True)
class CollectiveStep:
    """One collective of a reshard.

    Attributes:
        kind: `all_slice` (each device keeps a piece; no data is sent), `all_gather`, `all_to_all` or `collective_permute`.
        axes: Per dimension, the axes that an `all_slice` cuts it along or an `all_gather` gathers; empty for the others.
        moves: For an `all_to_all`, the axes it moves and the dimensions they leave and get to; empty for the others.
    """

    kind: Kind
    axes: tuple[tuple[AxisRef, ...], ...]
    moves: tuple[AllToAllParam, ...]
    result: TensorSharding


def collectives_for(
    source: TensorSharding | None, target: TensorSharding, shape: Sequence[int], meshes: Mapping[str, Mesh], *, complete: bool = True
) -> tuple[CollectiveStep, ...]:
    """The collectives from one sharding to another, as `sdy-reshard-to-collectives` chooses them; empty if nothing moves.

    Open dimensions, priorities and replicated axes do not matter. Where jaxlib reports an error because the op it made is not valid,
    which can only be where axis sizes are not powers of two, all that has to change is gathered and sliced. Raises DialectError if the
    ranks or the axes of the meshes differ.

    Source: Shardy's reshard_to_collectives.cc.

    Args:
        complete: Whether to gather and slice what is missing where jaxlib stops before it reaches the axes of `target`, which is rare
            and again not with powers of two. Without it, the steps are those of jaxlib even then.

    Example:
        >>> mesh = Mesh([("x", 2), ("y", 2)])
        >>> steps = collectives_for(TensorSharding("m", [["x"], []]), TensorSharding("m", [[], ["x"]]), (8, 8), {"m": mesh})
        >>> [(step.kind, step.moves, step.result) for step in steps]
        [('all_to_all', ({"x"}: 0->1,), #sdy.sharding<@m, [{}, {"x"}]>)]
    """
    to_mesh = target.mesh_in(meshes)
    if source is None:
        source = TensorSharding.closed(target.mesh, target.rank)
    return _collectives_for(source, target, tuple(shape), source.mesh_in(meshes), to_mesh, complete)


@functools.lru_cache(maxsize=1 << 16)
def _collectives_for(
    source: TensorSharding, target: TensorSharding, shape: tuple[int, ...], mesh: Mesh, to_mesh: Mesh, complete: bool
) -> tuple[CollectiveStep, ...]:
    if not source.rank == target.rank == len(shape):
        raise DialectError(
            "cannot reshard between shardings of different rank", where=f"{source} to {target} for a tensor of shape {list(shape)}"
        )
    if target.is_fully_replicated:
        if source.is_fully_replicated:
            return ()
        target = TensorSharding(source.mesh, TensorSharding.closed(source.mesh, source.rank).dims, (), target.unreduced)
        to_mesh = mesh
    elif not mesh.same_axes(to_mesh):
        raise DialectError(
            "cannot reshard between meshes with different axes",
            where=f"{source} to {target}",
            why=f"the meshes are {mesh.text(short=True)} and {to_mesh.text(short=True)}",
        )
    steps: list[CollectiveStep] = []
    before = target.mesh if mesh is to_mesh else source.mesh

    def emit(search: CollectiveSearch, kind: str, per_dim: Sequence[Sequence[Part]], move: tuple[int, int] | None) -> None:
        over = before if search.other_mesh else target.mesh
        result = TensorSharding(over, tuple(axes_of(parts, mesh) for parts in search.current), (), target.unreduced)
        axes = tuple(axes_of(parts, mesh) for parts in per_dim)
        if move is None:
            steps.append(CollectiveStep(kind, axes, (), result))  # type: ignore[arg-type]
        else:
            steps.append(CollectiveStep("all_to_all", (), (AllToAllParam(axes[0], *move),), result))

    search, alike = _start(source, target, shape, mesh, mesh is not to_mesh, emit)
    if not alike:
        search.finish()
        return tuple(steps)
    for _ in range(2):
        if search.done:
            return tuple(steps)
        search.all_slice()
        if not is_permute_useful(search):
            search.reorder_devices()
        elif not permute(search):
            search.finish()
            return tuple(steps)
        search.all_to_alls()
        search.all_gather()
    if complete and not search.done:
        search.finish()
    return tuple(steps)


def _start(
    source: TensorSharding, target: TensorSharding, shape: Sequence[int], mesh: Mesh, other_mesh: bool, emit: Emit
) -> tuple[CollectiveSearch, bool]:
    """A search from `source` to `target`, and whether all their axes could be cut into parts that are equal or do not overlap."""
    old = [parts_of(dim.axes, mesh) for dim in source.dims]
    new = [parts_of(dim.axes, mesh) for dim in target.dims]
    old_aligned, new_aligned = aligned(old, new), aligned(new, old)
    alike = old_aligned is not None and new_aligned is not None
    if old_aligned is not None and new_aligned is not None:
        old, new = old_aligned, new_aligned
    pairs = [without_common_prefix(a, b) for a, b in zip(old, new, strict=True)]
    return CollectiveSearch([a for a, _ in pairs], [b for _, b in pairs], old, shape, other_mesh, emit), alike


def is_permute_useful(search: CollectiveSearch) -> bool:
    """Whether axes stand where only a permute can help, or where it saves a gather."""
    if any(s and t and _divides(s[0], t[0]) for s, t in zip(search.source, search.target, strict=True)):
        return True
    added = [part for order in search.target for part in order if part not in search.present]
    removed = [part for parts in search.source for part in parts if part not in search.wanted]
    if added and removed and _divides(added[-1], removed[-1]):
        return True
    return any(_is_out_of_order(search, dim) for dim in range(len(search.source)))


def permute(search: CollectiveSearch) -> bool:
    """Moves axes to their target dimensions by one permute, where the number of pieces per dimension allows it.

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


def _place_other_axes(search: CollectiveSearch, room: list[int], replaced: list[int]) -> tuple[list[list[Part]], list[list[Part]]]:
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


def _is_out_of_order(search: CollectiveSearch, dim: int) -> bool:
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
        """Cuts a dimension along those of its missing axes that fit; the rest becomes homeless."""
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


def size_of(parts: Iterable[Part]) -> int:
    """Into how many pieces the parts cut a dimension."""
    product = 1
    for part in parts:
        product *= part[2]
    return product


def parts_of(axes: Iterable[AxisRef], mesh: Mesh) -> list[Part]:
    """The parts of axes, in order."""
    return [(axis.name, axis.pre_size or 1, axis.size_in(mesh)) for axis in axes]


def axes_of(parts: Iterable[Part], mesh: Mesh) -> tuple[AxisRef, ...]:
    """The axes that parts are, neighbouring parts of one axis merged."""
    return merged((normalized(AxisRef(*part), mesh) for part in parts), mesh)


def split_to_fit(part: Part, room: int) -> tuple[Part | None, Part | None]:
    """Splits a part into the piece that fits where `room` more pieces may be cut, and the rest.

    All of it where its size divides the room, the major part where the room divides its size, else nothing.

    Example:
        >>> split_to_fit(("x", 1, 8), 2)
        (('x', 1, 2), ('x', 2, 4))
    """
    name, pre, size = part
    if room == 1:
        return None, part
    if room % size == 0:
        return part, None
    if size % room == 0:
        return (name, pre, room), (name, pre * room, size // room)
    return None, part


def distribute(parts: Iterable[Part], room: list[int], split: Callable[[Part, Part, Part], None] | None = None) -> list[list[Part]]:
    """Puts parts into the first dimensions that have room for them, which gets less in place.

    Args:
        parts: Parts without a dimension, the most urgent first; what is left of one that is split goes first in the next dimension.
        room: Into how many more pieces each dimension may be cut.
        split: Told of a part that is split and of what it becomes.
    """
    left = list(parts)
    return [fill(left, room, dim, split) for dim in range(len(room))]


def fill(left: list[Part], room: list[int], dim: int, split: Callable[[Part, Part, Part], None] | None = None) -> list[Part]:
    """Takes from a list what fits into a dimension, as `distribute` does for each."""
    placed: list[Part] = []
    i = 0
    while i < len(left) and room[dim] > 1:
        part = left[i]
        fitting, rest = split_to_fit(part, room[dim])
        if fitting is None:
            i += 1
            continue
        del left[i]
        if rest is not None:
            left.insert(0, rest)
            if split is not None:
                split(part, fitting, rest)
        room[dim] //= fitting[2]
        placed.append(fitting)
    return placed


def split_in(orders: Sequence[list[Part]], part: Part, first: Part, second: Part) -> None:
    """Replaces a part by two, in whichever list has it."""
    for order in orders:
        if part in order:
            i = order.index(part)
            order[i : i + 1] = [first, second]
            return


def aligned(per_dim: Sequence[list[Part]], other: Sequence[list[Part]]) -> list[list[Part]] | None:
    """The parts of `per_dim`, cut wherever a part of `other` begins or ends within one; None where that cannot be done.

    It cannot where sizes do not divide each other, as with `"x":(1)2` and `"x":(1)3`.
    """
    cuts: dict[str, set[int]] = {}
    for parts in other:
        for name, pre, size in parts:
            cuts.setdefault(name, set()).update((pre, pre * size))
    result: list[list[Part]] = []
    for parts in per_dim:
        pieces: list[Part] = []
        for name, pre, size in parts:
            end = pre * size
            for cut in sorted(cuts.get(name, ())):
                if pre < cut < end:
                    if cut % pre or end % cut:
                        return None
                    pieces.append((name, pre, cut // pre))
                    pre = cut
            pieces.append((name, pre, end // pre))
        result.append(pieces)
    return result


def without_common_prefix(parts: list[Part], other: list[Part]) -> tuple[list[Part], list[Part]]:
    """Both lists without the parts that both begin with."""
    i = 0
    while i < len(parts) and i < len(other) and parts[i] == other[i]:
        i += 1
    return parts[i:], other[i:]
