"""The collectives of a reshard, as a function of two shardings and a shape."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from shardy_py.dialect import AllToAllParam, AxisRef, Mesh, TensorSharding
from shardy_py.errors import DialectError
from shardy_py.passes.export.collective_parts import (
    Part,
    aligned,
    axes_of,
    distribute,
    fill,
    parts_of,
    size_of,
    split_in,
    split_to_fit,
    without_common_prefix,
)
from shardy_py.passes.export.collective_search import CollectiveSearch, Emit

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

    @property
    def sends_data(self) -> bool:
        """Whether devices talk to each other."""
        return self.kind != "all_slice"

    def __str__(self) -> str:
        if self.kind == "collective_permute":
            return f"collective_permute -> {self.result.text(short=True)}"
        if self.moves:
            what = ", ".join(map(str, self.moves))
        else:
            what = ", ".join(f"{{{', '.join(map(str, axes))}}}" for axes in self.axes)
        return f"{self.kind} [{what}] -> {self.result.text(short=True)}"


def collectives_for(
    source: TensorSharding | None, target: TensorSharding, shape: Sequence[int], meshes: Mapping[str, Mesh], *, complete: bool = True
) -> tuple[CollectiveStep, ...]:
    """The collectives from one sharding to another, as `sdy-reshard-to-collectives` chooses them; empty if nothing moves.

    Open dimensions, priorities and replicated axes do not matter. Where jaxlib reports an error because the op it made is not valid,
    which can only be where axis sizes are not powers of two, all that has to change is gathered and sliced. Raises DialectError if the
    ranks or the axes of the meshes differ.

    Source: Shardy's reshard_to_collectives.cc.

    Args:
        complete: Whether to gather and slice what is missing where jaxlib stops with other axes than those of `target`, which is rare
            and again not with powers of two. Without it, the steps are those of jaxlib even then.

    Example:
        >>> mesh = Mesh([("x", 2), ("y", 2)])
        >>> steps = collectives_for(TensorSharding("m", [["x"], []]), TensorSharding("m", [[], ["x"]]), (8, 8), {"m": mesh})
        >>> [str(step) for step in steps]
        ['all_to_all [{"x"}: 0->1] -> <@m, [{}, {"x"}]>']
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
    added = _last(part for order in search.target for part in order if part not in search.present)
    removed = _last(part for parts in search.source for part in parts if part not in search.wanted)
    if added is not None and removed is not None and _divides(added, removed):
        return True
    return any(_is_out_of_order(search, dim) for dim in range(len(search.source)))


def permute(search: CollectiveSearch) -> bool:
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


def _last(parts: Iterable[Part]) -> Part | None:
    last = None
    for part in parts:
        last = part
    return last
