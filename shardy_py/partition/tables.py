"""Prices of one op under arrays of joint layouts.

Lists of axes are numbered, sets of them are bit masks, and an op's decision is made on arrays of both (`factor_axes`). Anything else is a
function of few arguments that take few values: it runs once per distinct row of these, and its results are broadcast (`Rows`).
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# Stubs of numpy 2.5 leave types of some functions open.

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardy_py.cost.compute import PRODUCTS, common_axes, roofline_seconds, run_shapes, work
from shardy_py.cost.traffic import Access, traffic
from shardy_py.dialect import FactorType, Mesh, OpShardingRule
from shardy_py.dialect.axis import Axes, num_shards
from shardy_py.ir import TensorType
from shardy_py.partition.factor_axes import Array, Factors, Numbered, Rows, axis_lists, factor_axes
from shardy_py.partition.layouts import Layout, joined, local_shape, to_factors
from shardy_py.partition.op import CHEAP, FORWARDING, WHOLE, OpSpec
from shardy_py.partition.price import Machine, Move, piece_bytes
from shardy_py.partition.windows import Window, halo, is_cumulative, windows_of_convolution, windows_of_padding, windows_of_reduction


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Joint layouts of an op's operands and results: each value's domain, and per joint layout its number there."""

    domains: tuple[tuple[Layout, ...], ...]
    index: Array


@dataclass(frozen=True, slots=True, eq=False)
class PriceTable:
    """Prices of one op under joint layouts.

    Attributes:
        reduction_seconds: The part of these that grows with the size of the partial sums that are reduced and brought into place: all but
            what the reduction of a single element takes.
        reads: Per operand and joint layout, the number in `read_layouts` of the layout in which the operand is read.
        move_seconds: Per operand, seconds by the number of the layout in which it lies and of that in which it is read; NaN where no
            joint layout has both.
    """

    seconds: Array
    communication_seconds: Array
    reduction_seconds: Array
    reads: Array
    read_layouts: tuple[tuple[Layout, ...], ...]
    move_seconds: tuple[Array, ...]


def price_table(op: OpSpec, candidates: Candidates, machine: Machine, memory: Sequence[Access]) -> PriceTable:
    """The prices of one op under joint layouts."""
    index, domains, mesh = np.asarray(candidates.index, np.int64), candidates.domains, machine.mesh
    types, count = op.types, len(op.operands)
    if len(domains) != len(types) or len(index) != len(types):
        raise ValueError(f"{op.name} has {len(types)} values; there are domains of {len(domains)} and numbers of {len(index)}")
    decider = _Decider(op, domains, machine)
    runs = decider.decide(index)
    move_seconds: list[Array] = []
    for i, tensor in enumerate(op.operands):
        read_in = decider.layouts[i].items
        seconds = np.full((len(domains[i]), len(read_in)), np.nan)
        for own, read in Rows(index[i], runs.numbers[i]).distinct():
            seconds[own, read] = 0.0 if tensor.maker else machine.reshard(tensor.type, domains[i][own], read_in[read]).seconds
        move_seconds.append(seconds)
    pieces = [_pieces(type_.shape, layouts.items, run, mesh) for type_, layouts, run in zip(types, decider.layouts, runs.numbers)]
    operands = pieces[:count]
    if op.name in PRODUCTS:
        operands = run_shapes(op, operands, decider.cut(runs))
    computed = work(op, operands, pieces[count:])
    accessed = traffic(memory, lambda i: piece_bytes(types[i], math.prod(pieces[i])))
    seconds = np.array([machine.collectives(steps, op.results[0].type.dtype).seconds if steps else 0.0 for steps in decider.inside.items])
    seconds = seconds[runs.inside]
    reductions: Array = np.zeros(index.shape[1])
    for i, tensor in enumerate(op.results, count):
        rows = Rows(runs.numbers[i], index[i], runs.summed)
        makes, targets, axes = decider.layouts[i].items, domains[i], decider.lists.axes
        costs = [machine.settle(tensor.type, makes[a], targets[b], axes(mask)).seconds for a, b, mask in rows.distinct()]
        settled_seconds = rows.deal(costs)
        seconds = seconds + settled_seconds
        single = [machine.settle(TensorType((), tensor.type.dtype), (), (), axes(mask)).seconds for _, _, mask in rows.distinct()]
        reductions = reductions + np.where(runs.summed, np.maximum(settled_seconds - rows.deal(single), 0.0), 0.0)
    communicated = seconds + np.zeros(index.shape[1])
    seconds = roofline_seconds(computed, accessed, machine.hardware) + communicated
    read_layouts = tuple(tuple(each.items) for each in decider.layouts[:count])
    return PriceTable(seconds, communicated, reductions, runs.numbers[:count], read_layouts, tuple(move_seconds))


@dataclass(slots=True, eq=False)
class _Runs:
    """The strategies of one op under joint layouts, with layouts and collectives as numbers."""

    numbers: Array
    summed: Array
    inside: Array

    def at(self, where: Array) -> _Runs:
        """The strategies of some joint layouts."""
        return _Runs(self.numbers[:, where], self.summed[where], self.inside[where])

    def set(self, where: Array, other: _Runs) -> None:
        """Takes over the strategies of some joint layouts."""
        self.numbers[:, where], self.summed[where], self.inside[where] = other.numbers, other.summed, other.inside


class _Decider:
    """Decides the strategies of one op under joint layouts."""

    def __init__(self, op: OpSpec, domains: Sequence[Sequence[Layout]], machine: Machine) -> None:
        self.op = op
        self.domains = domains
        self.machine = machine
        self.mesh = machine.mesh
        self.lists = axis_lists(machine.mesh)
        self.layouts = [Numbered[Layout]() for _ in op.types]
        self.inside = Numbered[tuple[Move, ...]](())

    def decide(self, index: Array) -> _Runs:
        """Strategies for joint layouts: constants keep their layout, and ops that pass operands on take the layouts of their results."""
        op, count, zeros = self.op, len(self.op.operands), np.zeros(index.shape[1], np.int64)
        if op.name in FORWARDING or op.name in CHEAP:
            ends = [i + count if op.name in FORWARDING and i < count else i for i in range(len(op.types))]
            columns = [np.array([layouts.number(at) for at in self.domains[i]])[index[i]] for layouts, i in zip(self.layouts, ends)]
            return _Runs(np.array(columns).reshape(index.shape), zeros, zeros)
        if op.rule is None or op.name in WHOLE:
            whole = [layouts.number(((),) * len(type_.shape)) for layouts, type_ in zip(self.layouts, op.types)]
            return _Runs(np.array(whole)[:, None] + zeros, zeros, zeros)
        runs = self.along_factors(op.rule, index)
        if op.name in WINDOWS and (slid := self.slides(WINDOWS[op.name](op), index)).any():
            runs.set(slid, self.along_windows(op.rule, index[:, slid]))
        return runs

    def slides(self, windows: Sequence[Window], index: Array) -> Array:
        """Whether windows slide along a dimension that is cut in the first operand or in the first result."""
        count, slid = len(self.op.operands), np.zeros(index.shape[1], bool)
        for i, dims in ((0, [window.dim for window in windows]), (count, [window.to for window in windows])):
            slid |= np.array([any(layout[d] for d in dims) for layout in self.domains[i]])[index[i]]
        return slid

    def along_factors(self, rule: OpShardingRule, index: Array) -> _Runs:
        """The strategies along the axes that `factor_axes` decides on."""
        op, count = self.op, len(self.op.operands)
        tensors, shapes = self.factors(rule, index), [type_.shape for type_ in op.types]
        axes, summed = factor_axes(op.name, rule, tensors[:count], tensors[count:], self.lists)
        runs = self.with_axes(rule, axes, summed, index.shape[1])
        if op.name in SHIFTS:
            shifted = functools.reduce(np.logical_or, (self.lists.mask(axes[f]) != 0 for f in rule.permutation), np.zeros(1, bool))
            rows = Rows(*runs.numbers, np.broadcast_to(shifted.astype(np.int64), index.shape[1:]))
            steps: list[tuple[Move, ...]] = []
            for *numbers, moves in rows.distinct():
                run = [layouts.items[number] for layouts, number in zip(self.layouts, numbers)]
                steps.append(_shifts(shapes[:count], shapes[count], run[:count], run[count], self.mesh) if moves else ())
            runs.inside = rows.deal([self.inside.number(one) for one in steps])
        return runs

    def along_windows(self, rule: OpShardingRule, index: Array) -> _Runs:
        """The strategies of an op that fetches halos: under the proposal with which a device receives the fewest bytes."""
        op, machine, size = self.op, self.machine, index.shape[1]
        count, dtype = len(op.operands), op.results[0].type.dtype
        best, least, most = None, np.zeros(0), np.zeros(0)
        for axes in self.proposals(rule, self.factors(rule, index)):
            summed: Array = functools.reduce(np.bitwise_or, (self.lists.mask(axes[f]) for f in rule.reduction), np.zeros(1, np.int64))
            runs = self.with_axes(rule, axes, summed, size)
            rows = Rows(runs.numbers[0], runs.numbers[count])
            reads, makes = self.layouts[0].items, self.layouts[count].items
            steps = [tuple(_halos(op, reads[read], makes[make], self.mesh)) for read, make in rows.distinct()]
            runs.inside = rows.deal([self.inside.number(one) for one in steps])
            received = np.array([machine.collectives(one, dtype).received for one in self.inside.items])[runs.inside]
            for i, type_ in enumerate(op.types):
                ends = (index[i], runs.numbers[i]) if i < count else (runs.numbers[i], index[i])
                rows, own, run = Rows(*ends, runs.summed * (i >= count)), self.domains[i], self.layouts[i].items
                source, target = (own, run) if i < count else (run, own)
                costs = [machine.settle(type_, source[a], target[b], self.lists.axes(mask)) for a, b, mask in rows.distinct()]
                received = received + rows.deal([cost.received for cost in costs])
            # Of the strategies that move the least, the one with the least to compute; then the layouts of the results.
            devices = functools.reduce(np.multiply, map(self.lists.size, axes), np.ones(size, np.int64))
            if best is None:
                best, least, most = runs, received, devices
            else:
                better = (received < least) | ((received == least) & (devices > most))
                best.set(better, runs.at(better))
                least, most = np.where(better, received, least), np.where(better, devices, most)
        assert best is not None
        return best

    def proposals(self, rule: OpShardingRule, tensors: Sequence[Factors]) -> Iterator[list[Array]]:
        """Axes for every factor: those of one tensor, completed by free ones of the others; with sums over devices and without."""
        count, lists = len(self.op.operands), self.lists
        ordered = [*tensors[count:], *tensors[:count]]
        for first in ordered:
            axes: list[Array] = [0] * rule.num_factors
            used: Array = 0
            for source in (first, *ordered):
                for factor, cut in source.items():
                    if rule.factor_types[factor] is not FactorType.NEED_REPLICATION:
                        mask = lists.mask(cut)
                        fits = (lists.mask(axes[factor]) == 0) & ((used & mask) == 0)
                        axes[factor] = np.where(fits, cut, axes[factor])
                        used = used | mask * fits
            yield axes
            if any(np.any(lists.mask(axes[factor]) != 0) for factor in rule.reduction):
                yield [0 if factor in rule.reduction else cut for factor, cut in enumerate(axes)]

    def factors(self, rule: OpShardingRule, index: Array) -> list[Factors]:
        """Per operand and result, numbers of the axes of its factors."""
        tensors: list[Factors] = []
        for mapping, domain, own in zip(rule.mappings, self.domains, index):
            dealt = [to_factors(mapping, layout, rule.factor_sizes, self.mesh) for layout in domain]
            tensors.append({factor: np.array([self.lists.number(axes[factor]) for axes in dealt])[own] for factor in dealt[0]})
        return tensors

    def with_axes(self, rule: OpShardingRule, axes: Sequence[Array], summed: Array, count: int) -> _Runs:
        """Strategies in which factors have some axes."""
        numbers: Array = np.zeros((len(rule.mappings), count), np.int64)
        for i, (mapping, layouts) in enumerate(zip(rule.mappings, self.layouts)):
            rows = Rows(*(np.broadcast_to(self.joined(rule, dim, axes), (count,)) for dim in mapping), numbers[i])
            dims = self.lists.lists.items
            numbers[i] = rows.deal([layouts.number(tuple(dims[number] for number in row[:-1])) for row in rows.distinct()])
        return _Runs(numbers, summed + np.zeros(count, np.int64), np.zeros(count, np.int64))

    def joined(self, rule: OpShardingRule, factors: Sequence[int], axes: Sequence[Array]) -> Array:
        """Numbers of the axes of one dimension."""
        if len(factors) == 1:
            return axes[factors[0]]
        sizes = [rule.factor_sizes[factor] for factor in factors]
        return self.lists.call(lambda *cuts: joined(cuts, sizes, self.mesh), [axes[factor] for factor in factors])

    def cut(self, runs: _Runs) -> Callable[[int, int], Array]:
        """The number of parts of a contracted dimension, for `run_shapes`."""
        layouts, numbers = [each.items for each in self.layouts], runs.numbers
        used = np.array([self.lists.set_of(axis for dim in layout for axis in dim) for layout in layouts[2]], np.int64)[numbers[2]]

        def common(lhs: Axes, rhs: Axes, mask: int) -> Axes:
            return common_axes(lhs, rhs, {axis.name for axis in self.lists.axes(mask)})

        def cut(i: int, j: int) -> Array:
            sides = [np.array([self.lists.number(layout[d]) for layout in layouts[t]], np.int64)[numbers[t]] for t, d in ((0, i), (1, j))]
            return self.lists.size(self.lists.call(common, sides, used))

        return cut


def _pieces(shape: Sequence[int], domain: Sequence[Layout], own: Array, mesh: Mesh) -> tuple[Array, ...]:
    """The shape of the largest piece of a value."""
    return tuple(np.array([local_shape(shape, layout, mesh) for layout in domain], float).reshape(len(domain), len(shape))[own].T)


SHIFTS = frozenset(("stablehlo.slice", "stablehlo.concatenate"))
"""Ops that fetch a part of their piece from neighbours where the dimension that they cut or extend is sharded."""


def _shifts(
    shapes: Sequence[tuple[int, ...]], result: tuple[int, ...], reads: Sequence[Layout], makes: Layout, mesh: Mesh
) -> tuple[Move, ...]:
    """The collectives of an op of `SHIFTS`: at most an operand's piece, and at most the result's, comes from a neighbour."""
    piece = local_shape(result, makes, mesh)
    pieces = (local_shape(shape, read, mesh) for shape, read in zip(shapes, reads) if shape)
    return tuple(Move("collective_permute", (), min(math.prod(own), math.prod(piece))) for own in pieces)


WINDOWS: Mapping[str, Callable[[OpSpec], Sequence[Window]]] = {
    "stablehlo.convolution": windows_of_convolution,
    "stablehlo.pad": windows_of_padding,
    "stablehlo.reduce_window": windows_of_reduction,
}
"""Op -> its windows along dimensions."""


def _halos(op: OpSpec, operand: Layout, result: Layout, mesh: Mesh) -> Iterator[Move]:
    """The collectives that fetch halos of windows from the neighbours of the first operand's pieces."""
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
