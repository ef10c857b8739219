"""Prices of one op under arrays of joint layouts.

Lists of axes are numbered, sets of them are bit masks, and an op's decision is made on arrays of both (`factor_axes`). Anything else is a
function of few arguments that take few values: it runs once per distinct row of these, and its results are broadcast (`Rows`).
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# Stubs of numpy 2.5 leave types of some functions open.

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardy_py.cost.compute import roofline_seconds, work
from shardy_py.cost.traffic import Access, traffic
from shardy_py.dialect import Mesh, OpShardingRule
from shardy_py.dialect.axis import num_shards
from shardy_py.ir import TensorType, Type
from shardy_py.partition.factor_axes import Array, AxisLists, Factors, Numbered, Rows, axis_lists, factor_axes
from shardy_py.partition.layouts import Layout, joined, local_shape, to_factors
from shardy_py.partition.op import CHEAP, FORWARDING, WHOLE, OpSpec
from shardy_py.partition.price import Machine, Move, piece_bytes
from shardy_py.partition.windows import Window, halo, is_cumulative, windows_of_convolution, windows_of_padding, windows_of_reduction


@dataclass(frozen=True, slots=True, eq=False)
class Reads:
    """Layouts in which an operand is read.

    Attributes:
        read: Per entry, the number of the layout in which it is read.
        moves: Numbers of one layout and of another, and the seconds of bringing it there, where that takes some.
    """

    domain: Sequence[Layout]
    own: Array
    targets: Sequence[Layout]
    read: Array
    moves: tuple[tuple[int, int, float], ...]


@dataclass(frozen=True, slots=True, eq=False)
class PriceTable:
    """Prices of one op under joint layouts.

    Attributes:
        reduction_seconds: The part of these that grows with the size of the partial sums that are reduced and brought into place: all but
            what the reduction of a single element takes.
        reads: Per operand; None of one that the op makes itself.
    """

    seconds: Array
    communication_seconds: Array
    reduction_seconds: Array
    reads: tuple[Reads | None, ...]


def price_table(op: OpSpec, domains: Sequence[Sequence[Layout]], index: Array, machine: Machine, memory: Sequence[Access]) -> PriceTable:
    """The prices of one op under joint layouts: of each value some layouts, and per joint layout its number there."""
    types, count = op.types, len(op.operands)
    if len(domains) != len(types) or len(index) != len(types):
        raise ValueError(f"{op.name} has {len(types)} values; there are domains of {len(domains)} and numbers of {len(index)}")
    runs = _runs(op, domains, index, machine)
    layouts = [numbered.items for numbered in runs.layouts]
    reads = tuple(
        None if tensor.maker else reads_of(tensor.type, domains[i], index[i], layouts[i], runs.numbers[i], machine)
        for i, tensor in enumerate(op.operands)
    )
    pieces = [_pieces(type_.shape, domain, run, machine.mesh) for type_, domain, run in zip(types, layouts, runs.numbers)]
    computed = work(op, pieces[:count], pieces[count:])
    accessed = traffic(memory, types, lambda i: piece_bytes(types[i], math.prod(pieces[i])))
    communicated, reductions = runs.seconds, np.zeros(index.shape[1])
    for i, tensor in enumerate(op.results, count):
        rows, axes = Rows(runs.numbers[i], index[i], runs.summed), axis_lists(machine.mesh).axes
        settled = rows.deal([machine.settle(tensor.type, layouts[i][a], domains[i][b], axes(mask)) for a, b, mask in rows.distinct()])
        single = rows.deal([machine.settle(TensorType((), tensor.type.dtype), (), (), axes(mask)) for _, _, mask in rows.distinct()])
        communicated = communicated + settled
        reductions = reductions + np.where(runs.summed, np.maximum(settled - single, 0.0), 0.0)
    return PriceTable(roofline_seconds(computed, accessed, machine.hardware) + communicated, communicated, reductions, reads)


def reads_of(type_: Type, domain: Sequence[Layout], own: Array, targets: Sequence[Layout], read: Array, machine: Machine) -> Reads:
    """A value that lies in some layouts and is read in others, with the moves that entries need: each may be a search."""
    pairs = Rows(own, read).distinct()
    moves = [(a, b, seconds) for a, b in pairs if (seconds := machine.settle(type_, domain[a], targets[b])) > 0]
    return Reads(domain, own, targets, read, tuple(moves))


@dataclass(frozen=True, slots=True, eq=False)
class _Runs:
    """How an op runs under joint layouts: layouts of its values by number, axes summed over, and seconds of collectives inside."""

    layouts: Sequence[Numbered[Layout]]
    numbers: Array
    summed: Array
    seconds: Array


def _runs(op: OpSpec, domains: Sequence[Sequence[Layout]], index: Array, machine: Machine) -> _Runs:
    """Constants keep their layout, and ops that pass operands on take the layouts of their results."""
    mesh, lists, layouts = machine.mesh, axis_lists(machine.mesh), [Numbered[Layout]() for _ in op.types]
    count, zeros, rule = len(op.operands), np.zeros(index.shape[1], np.int64), op.rule
    if op.name in FORWARDING or op.name in CHEAP:
        ends = [i + count if op.name in FORWARDING and i < count else i for i in range(len(op.types))]
        columns = [np.array([numbered.number(at) for at in domains[i]])[index[i]] for numbered, i in zip(layouts, ends)]
        return _Runs(layouts, np.array(columns).reshape(index.shape), zeros, zeros * 0.0)
    if rule is None or op.name in WHOLE:
        whole = [numbered.number(((),) * len(type_.shape)) for numbered, type_ in zip(layouts, op.types)]
        return _Runs(layouts, np.array(whole)[:, None] + zeros, zeros, zeros * 0.0)
    tensors: list[Factors] = []
    for mapping, domain, own in zip(rule.mappings, domains, index):
        dealt = [to_factors(mapping, layout, rule.factor_sizes, mesh) for layout in domain]
        tensors.append({factor: np.array([lists.number(axes[factor]) for axes in dealt])[own] for factor in dealt[0]})
    axes, summed = factor_axes(op.name, rule, tensors[:count], tensors[count:], lists)
    numbers: Array = np.zeros(index.shape, np.int64)
    for i, mapping in enumerate(rule.mappings):
        rows = Rows(*(np.broadcast_to(_joined(rule, dim, axes, lists), zeros.shape) for dim in mapping), numbers[i])
        dims = lists.lists.items
        numbers[i] = rows.deal([layouts[i].number(tuple(dims[number] for number in row[:-1])) for row in rows.distinct()])
    seconds = zeros * 0.0
    if (fetched := _shifts if op.name in SHIFTS else _halos if op.name in WINDOWS else None) is not None:
        rows = Rows(*numbers)
        run = ([numbered.items[number] for numbered, number in zip(layouts, row)] for row in rows.distinct())
        seconds = rows.deal([machine.collectives([*fetched(op, each, mesh)], op.results[0].type.dtype) for each in run])
    return _Runs(layouts, numbers, summed + zeros, seconds)


def _joined(rule: OpShardingRule, factors: Sequence[int], axes: Sequence[Array], lists: AxisLists) -> Array:
    """Numbers of the axes of one dimension."""
    if len(factors) == 1:
        return axes[factors[0]]
    sizes = [rule.factor_sizes[factor] for factor in factors]
    return lists.call(lambda *cuts: joined(cuts, sizes, lists.mesh), [axes[factor] for factor in factors])


def _pieces(shape: Sequence[int], domain: Sequence[Layout], own: Array, mesh: Mesh) -> tuple[Array, ...]:
    """The shape of the largest piece of a value."""
    return tuple(np.array([local_shape(shape, layout, mesh) for layout in domain], float).reshape(len(domain), len(shape))[own].T)


SHIFTS = frozenset(("stablehlo.slice", "stablehlo.concatenate"))
"""Ops that fetch a part of their piece from neighbours where the dimension that they cut or extend is sharded."""


def _shifts(op: OpSpec, run: Sequence[Layout], mesh: Mesh) -> Iterator[Move]:
    """The collectives of an op of `SHIFTS`: at most an operand's piece, and at most the result's, comes from a neighbour."""
    assert op.rule is not None
    mappings, result = op.rule.mappings, len(op.operands)
    if any(axes and factor in op.rule.permutation for dim, axes in zip(mappings[result], run[result]) for factor in dim):
        *pieces, piece = (math.prod(local_shape(type_.shape, layout, mesh)) for type_, layout in zip(op.types, run))
        yield from (Move("collective_permute", (), min(own, piece)) for own in pieces)


WINDOWS: Mapping[str, Callable[[OpSpec], Sequence[Window]]] = {
    "stablehlo.convolution": windows_of_convolution,
    "stablehlo.pad": windows_of_padding,
    "stablehlo.reduce_window": windows_of_reduction,
}
"""Op -> its windows along dimensions."""


def _halos(op: OpSpec, run: Sequence[Layout], mesh: Mesh) -> Iterator[Move]:
    """The collectives that fetch halos of windows from the neighbours of the first operand's pieces."""
    operand, result = run[0], run[len(op.operands)]
    shape = local_shape(op.operands[0].type.shape, operand, mesh)
    if not math.prod(shape):
        return
    for window in WINDOWS[op.name](op):
        d = window.dim
        pieces = num_shards(operand[d], mesh)
        if pieces == 1 or operand[d] != result[window.to]:
            continue
        rest = [*shape]
        if op.name == "stablehlo.reduce_window" and is_cumulative(op):
            rest[d] = 1  # the total of each piece
            yield Move("all_gather", operand[d], math.prod(rest))
            continue
        around = halo(window, shape[d], local_shape(op.results[0].type.shape, result, mesh)[window.to], pieces)
        for reach in (around.left, around.right):
            for hop in range(max(0, -(-reach // shape[d]))):
                rest[d] = min(shape[d], reach - hop * shape[d])
                yield Move("collective_permute", (), math.prod(rest))
