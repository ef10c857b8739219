"""Seconds and bytes of one op under a joint layout of its operands and results, and of the data that moves for it.

A plan's cost is the sum of these: of every op, once per trip, and of every value that is brought to a layout, once. So a search over
layouts can price them without a plan. The price of an op includes the collectives that complete its results; moves of its operands are
separate, since several readers may share one.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardy_py.cost.collectives import collective_seconds
from shardy_py.cost.hardware import Hardware, lay_out
from shardy_py.cost.links import Level, levels_of
from shardy_py.dialect import AxisRef, Mesh
from shardy_py.dialect.axis import Axes, num_shards
from shardy_py.dialect.format import format_axis
from shardy_py.ir import Type
from shardy_py.ir.types import element_bits
from shardy_py.partition.layouts import Layout, local_shape, parts
from shardy_py.partition.region import layouts as region
from shardy_py.partition.region.reshard_steps import reshard_steps


@dataclass(frozen=True, slots=True)
class Move:
    """One collective on an operand of some elements on each device; a `collective_permute` is over all axes and names none."""

    kind: str
    axes: Axes
    elements: int


class Machine:
    """A mesh on some hardware, which prices are of."""

    def __init__(self, mesh: Mesh, hardware: Hardware, links: Mapping[str, object] | None = None) -> None:
        self.mesh = mesh
        self.hardware = hardware
        self.sizes: dict[str, int] = dict(mesh.shape)
        self.links = lay_out(self.sizes, hardware, links)
        self._levels: dict[Axes, tuple[Level, ...]] = {}
        self._moves: dict[tuple[Type, Layout, Layout, Axes], float] = {}

    def collectives(self, steps: Sequence[Move], dtype: str) -> float:
        """The seconds of a sequence of collectives on a value."""
        seconds, bits = 0.0, element_bits(dtype)
        for step in steps:
            group = num_shards(step.axes, self.mesh) if step.axes else self.mesh.size
            if group > 1:
                seconds += collective_seconds(step.kind, -(-step.elements * bits // 8), self.levels(step.axes))
        return seconds

    def levels(self, axes: Axes) -> tuple[Level, ...]:
        """The links that devices along some axes exchange data over; along all where there are none."""
        levels = self._levels.get(axes)
        if levels is None:
            sizes = {axis: size for axis, size in self.sizes.items() if size > 1}
            if axes:
                names = [axis for axis in self.sizes if any(part.name == axis for part in axes)]
                sizes = {axis: num_shards((part for part in axes if part.name == axis), self.mesh) for axis in names}
            levels = self._levels[axes] = levels_of(list(sizes.items()), self.links, self.sizes)
        return levels

    def settle(self, type_: Type, source: Layout, target: Layout, summed: Axes = ()) -> float:
        """The seconds of bringing a value, or partial sums over some axes, from one layout to another."""
        if source == target and not summed:
            return 0.0
        key = (type_, source, target, summed)
        cost = self._moves.get(key)
        if cost is None:
            moves = region_moves(type_, source, target, summed, self.mesh)
            if self.hardware.platform == "tpu":
                moves = scattered_by_axis(moves, self.mesh)
            cost = self._moves[key] = self.collectives(moves, type_.dtype)
        return cost


def piece_bytes(type_: Type, elements: int) -> int:
    """The bytes of a piece from its number of elements."""
    return -(-elements * element_bits(type_.dtype) // 8)


def region_moves(type_: Type, source: Layout, target: Layout, summed: Axes, mesh: Mesh) -> tuple[Move, ...]:
    """The collectives of a region from partial sums in one layout to a value in another, as `reshard_steps` has them."""
    axes = _RegionAxes.of(mesh)
    before = region.partial(axes.layout(source), [axes.names[axis] for axis in summed])
    steps = reshard_steps(before, axes.layout(target), type_.shape, axes.mesh)
    return tuple(
        Move(
            step.kind,
            () if step.kind == "collective_permute" else tuple(map(axes.parts.__getitem__, step.axes)),
            math.prod(local_shape(type_.shape, axes.parts_of(step.before), mesh)),
        )
        for step in steps
        if step.kind != "all_slice"
    )


def scattered_by_axis(moves: Sequence[Move], mesh: Mesh) -> tuple[Move, ...]:
    """Collectives as a region for TPUs has them, whose reduce-scatters are over one axis of the mesh after the other."""
    steps: list[Move] = []
    for move in moves:
        elements, by_axis = move.elements, itertools.groupby(move.axes, lambda axis: axis.name)
        for axes in [tuple(run) for _, run in by_axis] if move.kind == "reduce_scatter" else [move.axes]:
            steps.append(Move(move.kind, axes, elements))
            elements = -(-elements // num_shards(axes, mesh))
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
