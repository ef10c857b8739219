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
from shardy_py.ir import Op, Value
from shardy_py.partition.layouts import Axes, Layout, all_axes, from_factors, layout_of, local_shape, size_of, to_factors
from shardy_py.partition.mispartitioned import as_sharded, is_mispartitioned
from shardy_py.partition.routes import Move, moves
from shardy_py.partition.strategy import Choice
from shardy_py.partition.variables import variable_sharding
from shardy_py.partition.windows import Window, halo, is_cumulative, windows_of_convolution, windows_of_padding, windows_of_reduction
from shardy_py.rules import rule_for


def stand_in(op: Op, mesh: Mesh, meshes: Mapping[str, Mesh]) -> Choice | None:
    """How an op runs that XLA's partitioner is not left with, or runs on whole operands; None of others.

    Args:
        op: With final shardings.
        mesh: Its mesh.
        meshes: Those of the program.
    """
    if not is_mispartitioned(op, as_sharded(meshes)):
        if op.name == "stablehlo.sort" and op.primitive == "top_k":
            return _whole(op, mesh)
        return _whole_along_written(op, mesh) if op.name == "stablehlo.dynamic_update_slice" else None
    rule = op.rule if op.rule_known else rule_for(op)
    if rule is None:
        return None
    proposals = list(_proposals(op, rule, mesh))
    choices = [_choice(op, rule, axes, mesh) for axes in proposals]
    parts = [size_of((axis for given in axes for axis in given), mesh) for axes in proposals]
    # The least to compute of what moves as little; then as the results lie.
    best = min(range(len(choices)), key=lambda i: (_bytes(choices[i], mesh), -parts[i]))
    return choices[best]


def _whole(op: Op, mesh: Mesh) -> Choice | None:
    """An op on whole operands, as `top_k` runs on CPUs."""
    values = (*op.operands, *op.results)
    layouts = [layout_of(v.sharding, v.type.rank, mesh) for v in values]
    whole = [((),) * v.type.rank for v in values]
    if layouts == whole:
        return None
    count = len(op.operands)
    steps = [moves(v.type.shape, a, b, mesh) for v, a, b in zip(op.operands, layouts, whole)]
    after = [moves(v.type.shape, a, b, mesh) for v, a, b in zip(op.results, whole[count:], layouts[count:])]
    return Choice(tuple(whole[:count]), tuple(whole[count:]), tuple(steps), tuple(after))


def _whole_along_written(op: Op, mesh: Mesh) -> Choice | None:
    """An update of several elements along a cut dimension, at a place known at run time only: whole along all that it writes a part of.

    XLA writes single elements, and at places known when it compiles, on the device that has them (`HandleDynamicUpdateSlice`).
    """
    operand, update, *starts = op.operands
    shape, wanted = operand.type.shape, layout_of(op.result.sharding, operand.type.rank, mesh)
    written = [d for d, (n, m) in enumerate(zip(shape, update.type.shape, strict=True)) if n != m]
    if not any(wanted[d] and update.type.shape[d] > 1 and not _is_constant(starts[d]) for d in written):
        return None
    whole = tuple(() if d in written else axes for d, axes in enumerate(wanted))
    reads: tuple[Layout, ...] = (whole, whole, *[()] * len(starts))
    layouts = [layout_of(v.sharding, v.type.rank, mesh) for v in op.operands]
    steps = [moves(v.type.shape, layout, read, mesh) for v, layout, read in zip(op.operands, layouts, reads, strict=True)]
    return Choice(reads, (whole,), tuple(steps), (moves(shape, whole, wanted, mesh),))


def _is_constant(value: Value) -> bool:
    return value.defining_op is not None and value.defining_op.name in ("sdy.constant", "stablehlo.constant")


def _proposals(op: Op, rule: OpShardingRule, mesh: Mesh) -> Iterator[list[Axes]]:
    """Axes of every factor: those of one value, then those of the others that are free; with sums over devices and without."""
    values = (*op.results, *op.operands)
    mappings = (*rule.result_mappings, *rule.operand_mappings)
    layouts = [layout_of(variable_sharding(v), v.type.rank, mesh) for v in values]
    found = [to_factors(m, layout, rule.factor_sizes, mesh) for m, layout in zip(mappings, layouts, strict=True)]
    # Each device writes what lies with it of a window, wherever it begins.
    written = found[0] if op.name == "stablehlo.scatter" else {}
    for first in range(len(values)):
        axes: list[Axes] = [()] * rule.num_factors
        taken: set[object] = set()
        for source in (found[first], *found):
            for factor, given in source.items():
                is_free = rule.factor_types[factor] is not FactorType.NEED_REPLICATION or factor in written
                if not axes[factor] and is_free and taken.isdisjoint(given):
                    axes[factor] = given
                    taken.update(given)
        yield axes
        if any(axes[factor] for factor in rule.reduction):
            yield [() if factor in rule.reduction else given for factor, given in enumerate(axes)]


def _choice(op: Op, rule: OpShardingRule, axes: Sequence[Axes], mesh: Mesh) -> Choice:
    sizes = rule.factor_sizes
    reads = tuple(from_factors(mapping, axes, sizes, mesh) for mapping in rule.operand_mappings)
    made = tuple(from_factors(mapping, axes, sizes, mesh) for mapping in rule.result_mappings)
    brought = []
    for v, read in zip(op.operands, reads, strict=True):
        brought.append(moves(v.type.shape, layout_of(v.sharding, v.type.rank, mesh), read, mesh))
    summed = tuple(axis for factor in rule.reduction for axis in axes[factor])
    inside = tuple(_borders(op, reads[0], made[0], mesh))
    sums = []
    for v, layout in zip(op.results, made, strict=True):
        wanted = layout_of(v.sharding, v.type.rank, mesh)
        after = moves(v.type.shape, layout, wanted, mesh)
        scatters = not after and set(summed) <= set(all_axes(wanted))
        adding = (Move("all_reduce", summed, local_shape(v.type.shape, layout, mesh), scatters),) if summed else ()
        sums.append((*inside, *adding, *after))
        inside = ()
    return Choice(reads, made, tuple(brought), tuple(sums))


def _borders(op: Op, read: Sequence[Axes], made: Sequence[Axes], mesh: Mesh) -> Iterator[Move]:
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


_WINDOWS: Mapping[str, Callable[[Op], Sequence[Window]]] = {
    "stablehlo.convolution": windows_of_convolution,
    "stablehlo.pad": windows_of_padding,
    "stablehlo.reduce_window": windows_of_reduction,
}


def _bytes(choice: Choice, mesh: Mesh) -> int:
    steps = [move for value in (*choice.moves, *choice.sums) for move in value]
    return sum(received_bytes(move.kind, size_of(move.axes, mesh) if move.axes else mesh.size, math.prod(move.shape)) for move in steps)
