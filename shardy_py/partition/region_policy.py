"""Strategies of our own partitioner under `lowering="shard_map"`, of one op by itself.

The axes of an op are those under which the fewest bytes move between its operands and what is wanted of its results (`region/strategies`).
A region is made of equations, whose local rules know more: sums that are deferred, several copies of a value, halos of gathers. Here a
dimension along which devices exchange elements is cut only where the op has windows or shifts it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import replace

from shardy_py.cost.compute import PRODUCTS
from shardy_py.dialect import AxisRef, FactorType, Mesh, OpShardingRule
from shardy_py.dialect.axis import Axes, num_shards
from shardy_py.dialect.format import format_axis
from shardy_py.ir import Type
from shardy_py.ir.types import element_bits
from shardy_py.partition.layouts import Layout, local_shape, parts
from shardy_py.partition.op import OpSpec
from shardy_py.partition.region import layouts as region
from shardy_py.partition.region.reshard_steps import COLLECTIVE_LAUNCH_BYTES, reshard_steps
from shardy_py.partition.region.strategies import EquationSpec, TensorLayouts, strategies
from shardy_py.partition.routes import Move
from shardy_py.partition.strategy import SHIFTS, Strategy, shifts
from shardy_py.partition.workarounds import WINDOWS, with_halos

_COMBINED_AT_ONCE = {"reduce_max": "max", "reduce_min": "min", "reduce_prod": "mul", "reduce_and": "and", "reduce_or": "or"}
"""Reductions of which no partial results are kept -> what combines them."""

_PRODUCT_WEIGHT, _WEIGHT = 0.002, 0.05
"""Cost of one point of the iteration space of products and of other ops, in bytes that could be sent meanwhile, as local rules have it."""


def region_strategy(op: OpSpec, layouts: Sequence[Layout], mesh: Mesh) -> Strategy:
    """The cheapest strategy of an op in a region.

    Args:
        op: The op.
        layouts: Of operands, then of results.
        mesh: The mesh.
    """
    rule, types, count = op.rule, op.types, len(op.operands)
    if rule is None:
        whole = [((),) * type_.rank for type_ in types]
        return Strategy(tuple(whole[:count]), tuple(whole[count:]))
    if op.name in WINDOWS:
        return with_halos(op, rule, layouts, mesh)
    axes = _RegionAxes.of(mesh)
    tensors = [TensorLayouts(type_.shape, element_bits(type_.dtype), (axes.layout(at),)) for type_, at in zip(types, layouts)]
    combine = _COMBINED_AT_ONCE.get(op.primitive or "", "add")
    exchanged = _launch if op.name in SHIFTS else None
    weight = _PRODUCT_WEIGHT if op.name in PRODUCTS else _WEIGHT
    operands, results = tuple(tensors[:count]), tuple(tensors[count:])
    best = strategies(EquationSpec(rule, operands, results, axes.mesh, combine, _single(rule), (), exchanged, weight))[0]
    reads, makes = tuple(map(axes.parts_of, best.operands)), tuple(map(axes.parts_of, best.results))
    summed = best.reduced or (best.results[0].unreduced if best.results else ())
    cut = op.name in SHIFTS and any(best.axes[factor] for factor in rule.permutation)
    shapes = [type_.shape for type_ in types]
    inside = shifts(shapes[:count], shapes[count], reads, makes[0], mesh) if cut else ()
    return Strategy(reads, makes, tuple(map(axes.parts.__getitem__, summed)), inside)


def region_moves(type_: Type, source: Layout, target: Layout, summed: Axes, mesh: Mesh) -> tuple[Move, ...]:
    """The collectives of a region from partial sums in one layout to a value in another, as `reshard_steps` has them.

    Args:
        type_: Type of the value.
        source: The layout before.
        target: The layout afterwards.
        summed: The axes that partial sums are added up over; none of a value.
        mesh: The mesh.
    """
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
    """The mesh of a region: its axes are the prime parts of the axes of another mesh.

    Args:
        mesh: The other.
    """

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


@functools.lru_cache(1 << 12)
def _single(rule: OpShardingRule) -> frozenset[int]:
    """The factors that are whole dimensions of every tensor, so that they may be cut unevenly."""
    compound = {factor for mapping in rule.mappings for dim in mapping if len(dim) > 1 for factor in dim}
    return frozenset(f for f, kind in enumerate(rule.factor_types) if f not in compound and kind is not FactorType.NEED_REPLICATION)


def _launch(counts: Sequence[int]) -> int:
    return COLLECTIVE_LAUNCH_BYTES if any(count > 1 for count in counts) else 0
