"""Routes between layouts as XLA's partitioner takes them: `PartitionedHlo::Reshard` of xla/service/spmd/spmd_partitioner.cc."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from shardy_py.dialect import AxisRef, Mesh
from shardy_py.dialect.axis import Axes, num_shards
from shardy_py.partition.layouts import Layout, all_axes, local_shape


@dataclass(frozen=True, slots=True)
class RouteStep:
    """One collective of a route between layouts, of a value of any shape; a `collective_permute` is over all axes and names none."""

    kind: str
    axes: Axes
    before: Layout


@dataclass(frozen=True, slots=True)
class Move:
    """One collective; `scatters` of an all_reduce whose devices keep a piece each, so that a reduce-scatter would do."""

    kind: str
    axes: Axes
    shape: tuple[int, ...]
    scatters: bool = False

    @property
    def elements(self) -> int:
        """Elements of the operand on one device."""
        return math.prod(self.shape)


def moves(shape: tuple[int, ...], source: Layout, target: Layout, mesh: Mesh) -> tuple[Move, ...]:
    """The collectives from one layout of a value to another, see `route`."""
    return tuple(Move(step.kind, step.axes, local_shape(shape, step.before, mesh)) for step in route(source, target, mesh))


def settled(shape: tuple[int, ...], source: Layout, target: Layout, summed: Axes, mesh: Mesh) -> tuple[Move, ...]:
    """The collectives from partial sums in one layout to a value in another."""
    after = moves(shape, source, target, mesh)
    if not summed:
        return after
    scatters = not after and set(summed) <= set(all_axes(target))
    return (Move("all_reduce", summed, local_shape(shape, source, mesh), scatters), *after)


@functools.lru_cache(1 << 16)
def route(source: Layout, target: Layout, mesh: Mesh) -> tuple[RouteStep, ...]:
    """The collectives from one layout to another; slicing sends nothing.

    Where every dimension is cut into at least as many pieces before as afterwards, pieces are brought into order and gathered; where into
    at most as many, cut and brought into order; where axes move from one dimension to another, an all-to-all does it. Anything else gathers
    the whole value and cuts it again, which XLA calls an involuntary full rematerialization.

    Example:
        >>> mesh = Mesh([("x", 2), ("y", 4)])
        >>> x, y = AxisRef("x"), AxisRef("y")
        >>> [step.kind for step in route(((x,), ()), ((), (x,)), mesh)]
        ['all_to_all']
    """
    if source == target:
        return ()

    before, after = [num_shards(dim, mesh) for dim in source], [num_shards(dim, mesh) for dim in target]
    if before == after:
        return (RouteStep("collective_permute", (), source),)
    if all(s % d == 0 for s, d in zip(before, after)):
        gathered = tuple(axis for dim, after_dim in zip(source, target) for axis in _behind(dim, num_shards(after_dim, mesh), mesh))
        gather = RouteStep("all_gather", gathered, source)
        if all(dim[: len(after_dim)] == after_dim for dim, after_dim in zip(source, target)):
            return (gather,)
        return (RouteStep("collective_permute", (), source), gather)
    if all(d % s == 0 for s, d in zip(before, after)):
        if all(after_dim[: len(dim)] == dim for dim, after_dim in zip(source, target)):
            return ()
        return (RouteStep("collective_permute", (), target),)
    across = () if replicates(tuple(before), tuple(after), mesh.size) else _across(source, target, mesh)
    return across or (RouteStep("all_gather", all_axes(source), source),)


def _behind(dim: Axes, pieces: int, mesh: Mesh) -> Axes:
    """The minor axes of a dimension, below a number of pieces."""
    size, i = 1, 0
    while i < len(dim) and size < pieces:
        size *= dim[i].size_in(mesh)
        i += 1
    return dim[i:]


def _across(source: Layout, target: Layout, mesh: Mesh) -> tuple[RouteStep, ...]:
    """A route with all-to-alls; empty where only gathering the whole value does."""
    source_dim = {axis: d for d, dim in enumerate(source) for axis in dim}
    target_dim = {axis: d for d, dim in enumerate(target) for axis in dim}
    moved = [axis for axis in source_dim if axis in target_dim and target_dim[axis] != source_dim[axis]]
    gathered = [axis for axis in source_dim if axis not in target_dim]
    if not moved:
        changed = [d for d, (s, t) in enumerate(zip(source, target)) if s != t]
        if len(changed) > 1:
            return ()
        d = changed[0]
        if num_shards(source[d], mesh) < num_shards(target[d], mesh):
            return (RouteStep("collective_permute", (), target),)
        return (RouteStep("collective_permute", (), source), RouteStep("all_gather", tuple(gathered), source))
    if {source_dim[axis] for axis in gathered} & {source_dim[axis] for axis in moved}:
        return ()
    current: list[list[AxisRef]] = [list(dim) for dim in source]
    steps: list[RouteStep] = []
    for axis in reversed(gathered):
        if current[source_dim[axis]][-1] != axis:
            return ()
        steps.append(RouteStep("all_gather", (axis,), tuple(map(tuple, current))))
        current[source_dim[axis]].pop()
    for axis, d in target_dim.items():
        if axis not in source_dim:
            current[d].append(axis)
    pairs: dict[tuple[int, int], list[AxisRef]] = {}
    for axis in moved:
        pairs.setdefault((source_dim[axis], target_dim[axis]), []).append(axis)
    for (d, e), axes in pairs.items():
        steps.append(RouteStep("all_to_all", tuple(axes), tuple(map(tuple, current))))
        current[d] = [axis for axis in current[d] if axis not in axes]
        current[e] += axes
    if tuple(map(tuple, current)) != target:
        steps.append(RouteStep("collective_permute", (), tuple(map(tuple, current))))
    return tuple(steps)


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
