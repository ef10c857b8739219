"""The collectives of a reshard, as a function of two shardings and a shape."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from shardy_py.dialect import AllToAllParam, AxisRef, Mesh, TensorSharding
from shardy_py.errors import DialectError
from shardy_py.passes.export.collective_parts import Part, aligned, axes_of, parts_of, without_common_prefix
from shardy_py.passes.export.collective_permutes import is_permute_useful, permute
from shardy_py.passes.export.collective_search import Emit, Search

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

    def emit(search: Search, kind: str, per_dim: Sequence[Sequence[Part]], move: tuple[int, int] | None) -> None:
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
) -> tuple[Search, bool]:
    """A search from `source` to `target`, and whether all their axes could be cut into parts that are equal or do not overlap."""
    old = [parts_of(dim.axes, mesh) for dim in source.dims]
    new = [parts_of(dim.axes, mesh) for dim in target.dims]
    old_aligned, new_aligned = aligned(old, new), aligned(new, old)
    alike = old_aligned is not None and new_aligned is not None
    if old_aligned is not None and new_aligned is not None:
        old, new = old_aligned, new_aligned
    pairs = [without_common_prefix(a, b) for a, b in zip(old, new, strict=True)]
    return Search([a for a, _ in pairs], [b for _, b in pairs], old, shape, other_mesh, emit), alike
