"""Strategies of Shardy's `sdy-insert-explicit-reshards`, of one op by itself."""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.dialect import DimensionSharding, Mesh, TensorSharding
from shardy_py.dialect.axis import Axes, merged
from shardy_py.ir import Type
from shardy_py.partition.layouts import Layout, all_axes, layout_of, local_shape, parts
from shardy_py.partition.op import OpSpec
from shardy_py.partition.routes import Move
from shardy_py.partition.strategy import Strategy
from shardy_py.passes.export.collective_steps import collectives_for
from shardy_py.passes.export.explicit_reshards.decision import decide


def shardy_strategy(op: OpSpec, layouts: Sequence[Layout], mesh: Mesh) -> Strategy:
    """The strategy of an op whose conflicts Shardy settles; an op without a rule runs as its values lie.

    Args:
        op: The op.
        layouts: Of operands, then of results.
        mesh: The mesh.
    """
    count = len(op.operands)
    reads, makes, summed = list(layouts[:count]), list(layouts[count:]), ()
    shardings = [_sharding(layout, mesh) for layout in layouts]
    decision = None if op.rule is None or op.rule.is_custom else decide(op.name, op.rule, shardings, op.types, {}, True)
    if decision is not None:
        for i, sharding in decision.operands:
            reads[i] = layout_of(sharding, op.operands[i].type.rank, mesh)
        for i, sharding in decision.results:
            makes[i] = layout_of(sharding, op.results[i].type.rank, mesh)
        summed = tuple(part for axis in decision.reduced for part in parts(axis, mesh))
    return Strategy(tuple(reads), tuple(makes), summed)


def shardy_moves(type_: Type, source: Layout, target: Layout, summed: Axes, mesh: Mesh) -> tuple[Move, ...]:
    """The collectives of `sdy-reshard-to-collectives`, behind an all-reduce of partial sums.

    Args:
        type_: Type of the value.
        source: The layout before.
        target: The layout afterwards.
        summed: The axes that partial sums are added up over; none of a value.
        mesh: The mesh.
    """
    scatters = bool(summed) and set(summed) <= set(all_axes(target)) and not set(summed) & set(all_axes(source))
    moves = [Move("all_reduce", summed, local_shape(type_.shape, source, mesh), scatters)] if summed else []
    before = source
    for step in collectives_for(_sharding(source, mesh), _sharding(target, mesh), type_.shape, {}):
        if step.sends_data:
            axes = (*(axis for dim in step.axes for axis in dim), *(axis for move in step.moves for axis in move.axes))
            cut = tuple(part for axis in axes for part in parts(axis, mesh))
            moves.append(Move(step.kind, cut, local_shape(type_.shape, before, mesh)))
        before = layout_of(step.result, type_.rank, mesh)
    return tuple(moves)


def _sharding(layout: Layout, mesh: Mesh) -> TensorSharding:
    return TensorSharding(mesh, [DimensionSharding(merged(axes, mesh)) for axes in layout])
