"""Strategies of ops that XLA's partitioner may get wrong, and that run in regions (`mispartitioned`, `backends/xla_workarounds`).

Such an op runs under the axes of one of its operands or results, completed by those of the others, whichever moves the fewest bytes.
Along a dimension with windows or shifts it fetches halos from its neighbours. Ops with handlers of their own in XLA are here too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from shardy_py.cost.collectives import received_bytes
from shardy_py.dialect import FactorType, Mesh, OpShardingRule
from shardy_py.dialect.axis import Axes, num_shards
from shardy_py.partition.factor_axes import AxisLists, Exact, Factors
from shardy_py.partition.layouts import Layout, from_factors, local_shape, to_factors
from shardy_py.partition.mispartitioned import AT_RISK, is_mispartitioned
from shardy_py.partition.op import OpSpec
from shardy_py.partition.routes import Move, moves, settled
from shardy_py.partition.strategy import Strategy
from shardy_py.partition.windows import Window, halo, is_cumulative, windows_of_convolution, windows_of_padding, windows_of_reduction
from shardy_py.rules.traits import CONSTANTS

L = TypeVar("L")


def workaround(op: OpSpec, layouts: Sequence[Layout], mesh: Mesh) -> Strategy | None:
    """The strategy of an op that runs in a region, or that XLA has a handler for; None of others."""
    if op.name not in WORKAROUNDS:
        return None
    cuts = [tuple(num_shards(dim, mesh) for dim in layout) for layout in layouts]
    if not is_at_risk(op, cuts):
        handler = HANDLERS.get(op.name)
        return None if handler is None else handler(op, layouts, mesh)
    return None if op.rule is None else with_halos(op, op.rule, layouts, mesh)


def with_halos(op: OpSpec, rule: OpShardingRule, layouts: Sequence[Layout], mesh: Mesh) -> Strategy:
    """The strategy of an op in a region, along windows and shifts too, that moves the fewest bytes."""
    count, shapes = len(op.operands), [type_.shape for type_ in op.types]
    own = [to_factors(m, layout, rule.factor_sizes, mesh) for m, layout in zip(rule.mappings, layouts, strict=True)]
    strategies: list[Strategy] = []
    ranks: list[tuple[int, int]] = []
    for axes in proposed_axes(op, rule, own, Exact(mesh)):
        run = _strategy(op, rule, axes, mesh)
        operand_moves = [moves(*ends, mesh) for ends in zip(shapes, layouts, run.reads)]
        result_moves = [settled(*ends, run.summed, mesh) for ends in zip(shapes[count:], run.makes, layouts[count:])]
        received = sum(received_elements(steps, mesh) for steps in (run.inside, *operand_moves, *result_moves))
        # Of the strategies that move the least, the one with the least to compute; then the layouts of the results.
        ranks.append((received, -num_shards((axis for cut in axes for axis in cut), mesh)))
        strategies.append(run)
    return strategies[ranks.index(min(ranks))]


def is_at_risk(op: OpSpec, cuts: Sequence[tuple[int, ...]]) -> bool:
    """Whether XLA may get an op wrong."""
    return op.name in AT_RISK and is_mispartitioned(op, lambda tensor: cuts[tensor.number])  # pyright: ignore[reportUnknownLambdaType]


def _whole(op: OpSpec, layouts: Sequence[Layout], mesh: Mesh) -> Strategy | None:
    """A `top_k` on whole operands, as it runs on CPUs."""
    if op.primitive != "top_k" or not any(axes for layout in layouts for axes in layout):
        return None
    count = len(op.operands)
    whole = tuple(((),) * len(layout) for layout in layouts)
    return Strategy(whole[:count], whole[count:])


def _whole_along_written(op: OpSpec, layouts: Sequence[Layout], mesh: Mesh) -> Strategy | None:
    """An update of several elements along a sharded dimension at a dynamic index: replicated along all dimensions that it writes partly.

    XLA writes single elements, and updates at constant indices, on the device that has them (`HandleDynamicUpdateSlice`).
    """
    operand, update, *starts = op.operands
    result = layouts[-1]
    written = [d for d, (n, m) in enumerate(zip(operand.type.shape, update.type.shape, strict=True)) if n != m]
    if not any(result[d] and update.type.shape[d] > 1 and starts[d].maker not in CONSTANTS for d in written):
        return None
    whole = tuple(() if d in written else axes for d, axes in enumerate(result))
    return Strategy((whole, whole, *[()] * len(starts)), (whole,))


def _joined_aside(op: OpSpec, layouts: Sequence[Layout], mesh: Mesh) -> Strategy | None:
    """A concatenation along a dimension that is cut: it runs cut along another dimension, which the number of pieces divides.

    None where there is no such dimension, and of a rotation, which XLA handles in another way.
    """
    dim: int = op.attributes["dimension"]
    shape, result = op.result.type.shape, layouts[-1]
    if op.rotates or not result[dim]:
        return None
    pieces = num_shards(result[dim], mesh)
    fit = [d for d, axes in enumerate(result) if d != dim and shape[d] % (num_shards(axes, mesh) * pieces) == 0]
    other = next((d for d in fit if not result[d]), next(iter(fit), None))
    if other is None:
        return None
    moved: dict[int, Axes] = {dim: (), other: (*result[other], *result[dim])}
    aside = tuple(moved.get(d, axes) for d, axes in enumerate(result))
    return Strategy((aside,) * len(op.operands), (aside,))


HANDLERS: Mapping[str, Callable[[OpSpec, Sequence[Layout], Mesh], Strategy | None]] = {
    "stablehlo.concatenate": _joined_aside,
    "stablehlo.dynamic_update_slice": _whole_along_written,
    "stablehlo.sort": _whole,
}
"""Op -> how XLA's own handler for it runs it; None where that is as it runs others."""

WORKAROUNDS = frozenset((*AT_RISK, *HANDLERS))
"""Ops that may run otherwise than XLA's partitioner runs its ops."""


def proposed_axes(op: OpSpec, rule: OpShardingRule, tensors: Sequence[Factors[L]], lists: AxisLists[L]) -> Iterator[list[L]]:
    """Proposals of axes for every factor: those of one tensor, completed by free ones of the others; with sums over devices and without."""
    count = len(op.operands)
    ordered = [*tensors[count:], *tensors[:count]]
    # Each device writes its own part of a window, wherever the window begins.
    written: Factors[L] = ordered[0] if op.name == "stablehlo.scatter" else {}
    for first in ordered:
        axes, used = [lists.none] * rule.num_factors, 0
        for source in (first, *ordered):
            for factor, cut in source.items():
                if rule.factor_types[factor] is not FactorType.NEED_REPLICATION or factor in written:
                    mask = lists.mask(cut)
                    fits = (lists.mask(axes[factor]) == 0) & ((used & mask) == 0)
                    axes[factor] = lists.where(fits, cut, axes[factor])
                    used = used | mask * fits
        yield axes
        if any(lists.any(lists.mask(axes[factor]) != 0) for factor in rule.reduction):
            yield [lists.none if factor in rule.reduction else cut for factor, cut in enumerate(axes)]


def received_elements(steps: Sequence[Move], mesh: Mesh) -> int:
    """Bytes that a device receives in some collectives if elements have one byte."""
    return sum(received_bytes(step.kind, num_shards(step.axes, mesh) if step.axes else mesh.size, step.elements) for step in steps)


def _strategy(op: OpSpec, rule: OpShardingRule, axes: Sequence[Axes], mesh: Mesh) -> Strategy:
    sizes = rule.factor_sizes
    reads = tuple(from_factors(mapping, axes, sizes, mesh) for mapping in rule.operand_mappings)
    makes = tuple(from_factors(mapping, axes, sizes, mesh) for mapping in rule.result_mappings)
    summed = tuple(axis for factor in rule.reduction for axis in axes[factor])
    return Strategy(reads, makes, summed, tuple(borders(op, reads[0], makes[0], mesh)))


def borders(op: OpSpec, operand: Layout, result: Layout, mesh: Mesh) -> Iterator[Move]:
    """The collectives that fetch halos of windows from the neighbours of the first operand's pieces."""
    shape = local_shape(op.operands[0].type.shape, operand, mesh)
    if not math.prod(shape):
        return
    for window in WINDOWS.get(op.name, lambda _: ())(op):
        d = window.dim
        pieces = num_shards(operand[d], mesh)
        if pieces == 1 or operand[d] != result[window.to]:
            continue
        rest = [*shape]
        if op.name == "stablehlo.reduce_window" and is_cumulative(op):
            rest[d] = 1  # the total of each piece
            yield Move("all_gather", operand[d], tuple(rest))
            continue
        around = halo(window, shape[d], local_shape(op.results[0].type.shape, result, mesh)[window.to], pieces)
        for reach in (around.left, around.right):
            for hop in range(max(0, -(-reach // shape[d]))):
                rest[d] = min(shape[d], reach - hop * shape[d])
                yield Move("collective_permute", (), tuple(rest))


WINDOWS: Mapping[str, Callable[[OpSpec], Sequence[Window]]] = {
    "stablehlo.convolution": windows_of_convolution,
    "stablehlo.pad": windows_of_padding,
    "stablehlo.reduce_window": windows_of_reduction,
}
"""Op -> its windows along dimensions."""
