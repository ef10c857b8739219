"""Collectives of our own partitioner between two layouts of a value, for the planner's prices."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import replace

from shardy_py.dialect import AxisRef, Mesh
from shardy_py.dialect.axis import Axes, num_shards
from shardy_py.dialect.format import format_axis
from shardy_py.ir import Type
from shardy_py.partition.layouts import Layout, local_shape, parts
from shardy_py.partition.region import layouts as region
from shardy_py.partition.region.reshard_steps import reshard_steps
from shardy_py.partition.routes import Move


def region_moves(type_: Type, source: Layout, target: Layout, summed: Axes, mesh: Mesh) -> tuple[Move, ...]:
    """The collectives of a region from partial sums in one layout to a value in another, as `reshard_steps` has them."""
    axes = _RegionAxes.of(mesh)
    before = region.partial(axes.layout(source), [axes.names[axis] for axis in summed])
    steps = reshard_steps(before, axes.layout(target), type_.shape, axes.mesh)
    return tuple(
        Move(
            "all_reduce" if step.kind == "reduce_scatter" else step.kind,
            () if step.kind == "collective_permute" else tuple(map(axes.parts.__getitem__, step.axes)),
            local_shape(type_.shape, axes.parts_of(step.before), mesh),
            step.kind == "reduce_scatter",
        )
        for step in steps
        if step.kind != "all_slice"
    )


def scattered_by_axis(moves: Sequence[Move], mesh: Mesh) -> tuple[Move, ...]:
    """Collectives as a region for TPUs has them, whose reduce-scatters are over one axis of the mesh after the other."""
    steps: list[Move] = []
    for move in moves:
        elements = move.elements
        for _, run in itertools.groupby(move.axes, lambda axis: axis.name) if move.scatters else ():
            axes = tuple(run)
            steps.append(replace(move, axes=axes, shape=(elements,)))
            elements = -(-elements // num_shards(axes, mesh))
        if not move.scatters:
            steps.append(move)
    return tuple(steps)


class _RegionAxes:
    """The mesh of a region: its axes are the prime parts of the axes of another mesh."""

    def __init__(self, mesh: Mesh) -> None:
        every = [part for axis in mesh.axes for part in parts(AxisRef(axis.name), mesh)]
        self.names = {part: AxisRef(format_axis(part)) for part in every}
        self.parts = {axis: part for part, axis in self.names.items()}
        self.mesh = Mesh([(axis.name, part.size_in(mesh)) for part, axis in self.names.items()])

    @staticmethod
    @functools.lru_cache(64)
    def of(mesh: Mesh) -> _RegionAxes:
        """The mesh of a region, made once."""
        return _RegionAxes(mesh)

    def layout(self, layout: Layout) -> region.Layout:
        """A layout in the region."""
        return region.layout([[self.names[axis] for axis in dim] for dim in layout])

    def parts_of(self, layout: region.Layout) -> Layout:
        """A layout of the region in parts of the mesh's axes; partial sums are left out."""
        return tuple(tuple([self.parts[axis] for axis in dim.axes]) for dim in layout.dims)
