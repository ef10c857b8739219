"""How ops run that are partitioned here, as XLA's partitioner may get them wrong (`mispartitioned`, `backends/xla_workarounds`).

Such an op runs under the axes of one of its operands or results, completed by those of the others, whichever moves the fewest bytes.
Along a dimension that windows or shifts go over it gets what it lacks from its neighbours. Two kinds of
ops that XLA's partitioner is left with, and runs on whole operands, are here too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from shardy_py.cost.collectives import received_bytes
from shardy_py.dialect import FactorType, Mesh, OpShardingRule
from shardy_py.ir import Op
from shardy_py.partition.layouts import Axes, Layout, from_factors, layout_of, local_shape, size_of, to_factors
from shardy_py.partition.mispartitioned import AT_RISK, as_sharded, is_mispartitioned
from shardy_py.partition.op import CONSTANTS, OpSpec, spec_of
from shardy_py.partition.routes import Move
from shardy_py.partition.strategy import Strategy, choice_of
from shardy_py.partition.variables import variable_sharding
from shardy_py.partition.windows import Window, halo, is_cumulative, windows_of_convolution, windows_of_padding, windows_of_reduction


def workaround_of(op: Op, mesh: Mesh, meshes: Mapping[str, Mesh]) -> Strategy | None:
    """The workaround for an op of a program; see `workaround`.

    Args:
        op: With final shardings.
        mesh: Its mesh.
        meshes: Those of the program.
    """
    if op.name not in WORKAROUNDS:
        return None
    if op.name in AT_RISK and op.name not in _OTHERS and not is_mispartitioned(op, as_sharded(meshes)):
        return None
    values = (*op.operands, *op.results)
    layouts = [layout_of(v.sharding, v.type.rank, mesh) for v in values]
    variables = [layout_of(variable_sharding(v), v.type.rank, mesh) for v in values]
    return workaround(spec_of(op), layouts, mesh, variables)


def workaround(op: OpSpec, layouts: Sequence[Layout], mesh: Mesh, variables: Sequence[Layout] | None = None) -> Strategy | None:
    """How an op runs that XLA's partitioner is not left with, or runs on whole operands; None of others.

    Args:
        op: The op.
        layouts: Of operands, then of results.
        mesh: The mesh.
        variables: The same where constants lie as the variables do that they come from.
    """
    if op.name not in WORKAROUNDS:
        return None
    cuts = [tuple(size_of(dim, mesh) for dim in layout) for layout in layouts]
    if op.name not in AT_RISK or not is_mispartitioned(op, lambda tensor: cuts[tensor.number]):
        other = _OTHERS.get(op.name)
        return None if other is None else other(op, layouts, mesh)
    if op.rule is None:
        return None
    proposals = list(_proposals(op, op.rule, variables or layouts, mesh))
    strategies = [_strategy(op, op.rule, axes, mesh) for axes in proposals]
    devices = [size_of((axis for cut in axes for axis in cut), mesh) for axes in proposals]
    # The least to compute of what moves as little; then as the results lie.
    best = min(range(len(strategies)), key=lambda i: (_bytes(op, strategies[i], layouts, mesh), -devices[i]))
    return strategies[best]


def _whole(op: OpSpec, layouts: Sequence[Layout], mesh: Mesh) -> Strategy | None:
    """A `top_k` on whole operands, as it runs on CPUs."""
    if op.primitive != "top_k" or not any(axes for layout in layouts for axes in layout):
        return None
    count = len(op.operands)
    whole = tuple(((),) * len(layout) for layout in layouts)
    return Strategy(whole[:count], whole[count:])


def _whole_along_written(op: OpSpec, layouts: Sequence[Layout], mesh: Mesh) -> Strategy | None:
    """An update of several elements along a cut dimension, at a place known at run time only: whole along all that it writes a part of.

    XLA writes single elements, and at places known when it compiles, on the device that has them (`HandleDynamicUpdateSlice`).
    """
    operand, update, *starts = op.operands
    wanted = layouts[-1]
    written = [d for d, (n, m) in enumerate(zip(operand.type.shape, update.type.shape, strict=True)) if n != m]
    if not any(wanted[d] and update.type.shape[d] > 1 and starts[d].maker not in CONSTANTS for d in written):
        return None
    whole = tuple(() if d in written else axes for d, axes in enumerate(wanted))
    return Strategy((whole, whole, *[()] * len(starts)), (whole,))


_OTHERS: Mapping[str, Callable[[OpSpec, Sequence[Layout], Mesh], Strategy | None]] = {
    "stablehlo.dynamic_update_slice": _whole_along_written,
    "stablehlo.sort": _whole,
}
"""Ops that XLA runs on whole operands, or on operands that are whole along some dimensions."""

WORKAROUNDS = frozenset((*AT_RISK, *_OTHERS))
"""Ops that may run otherwise than XLA's partitioner runs its ops."""


def _proposals(op: OpSpec, rule: OpShardingRule, layouts: Sequence[Layout], mesh: Mesh) -> Iterator[list[Axes]]:
    """Axes of every factor: those of one value, then those of the others that are free; with sums over devices and without."""
    count = len(op.operands)
    ordered = (*layouts[count:], *layouts[:count])
    mappings = (*rule.result_mappings, *rule.operand_mappings)
    factors = [to_factors(m, layout, rule.factor_sizes, mesh) for m, layout in zip(mappings, ordered, strict=True)]
    # Each device writes what lies with it of a window, wherever it begins.
    written = factors[0] if op.name == "stablehlo.scatter" else {}
    for first in factors:
        axes: list[Axes] = [()] * rule.num_factors
        taken: set[object] = set()
        for source in (first, *factors):
            for factor, cut in source.items():
                is_free = rule.factor_types[factor] is not FactorType.NEED_REPLICATION or factor in written
                if not axes[factor] and is_free and taken.isdisjoint(cut):
                    axes[factor] = cut
                    taken.update(cut)
        yield axes
        if any(axes[factor] for factor in rule.reduction):
            yield [() if factor in rule.reduction else cut for factor, cut in enumerate(axes)]


def _strategy(op: OpSpec, rule: OpShardingRule, axes: Sequence[Axes], mesh: Mesh) -> Strategy:
    sizes = rule.factor_sizes
    reads = tuple(from_factors(mapping, axes, sizes, mesh) for mapping in rule.operand_mappings)
    makes = tuple(from_factors(mapping, axes, sizes, mesh) for mapping in rule.result_mappings)
    summed = tuple(axis for factor in rule.reduction for axis in axes[factor])
    return Strategy(reads, makes, summed, tuple(_borders(op, reads[0], makes[0], mesh)))


def _borders(op: OpSpec, read: Sequence[Axes], made: Sequence[Axes], mesh: Mesh) -> Iterator[Move]:
    """What comes from the neighbours of the first operand's pieces."""
    shape = local_shape(op.operands[0].type.shape, read, mesh)
    if not math.prod(shape):
        return
    for window in _WINDOWS.get(op.name, lambda _: ())(op):
        d = window.dim
        ways = size_of(read[d], mesh)
        if ways == 1 or read[d] != made[window.to]:
            continue
        rest = [*shape]
        if op.name == "stablehlo.reduce_window" and is_cumulative(op):
            rest[d] = 1  # the total of each piece
            yield Move("all_gather", read[d], tuple(rest))
            continue
        around = halo(window, shape[d], local_shape(op.results[0].type.shape, made, mesh)[window.to], ways)
        for reach in (around.left, around.right):
            for hop in range(max(0, -(-reach // shape[d]))):
                rest[d] = min(shape[d], reach - hop * shape[d])
                yield Move("collective_permute", (), tuple(rest))


_WINDOWS: Mapping[str, Callable[[OpSpec], Sequence[Window]]] = {
    "stablehlo.convolution": windows_of_convolution,
    "stablehlo.pad": windows_of_padding,
    "stablehlo.reduce_window": windows_of_reduction,
}


def _bytes(op: OpSpec, run: Strategy, layouts: Sequence[Layout], mesh: Mesh) -> int:
    """Bytes that all that a strategy moves would have if elements had one byte."""
    count, shapes = len(op.operands), [type_.shape for type_ in op.types]
    choice = choice_of(run, shapes[:count], layouts[:count], shapes[count:], layouts[count:], mesh)
    steps = [move for value in (*choice.moves, *choice.sums) for move in value]
    return sum(received_bytes(move.kind, size_of(move.axes, mesh) if move.axes else mesh.size, math.prod(move.shape)) for move in steps)
