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
from shardy_py.dialect import Mesh, OpShardingRule
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
        tensors = self.factors(op.rule, index)
        axes, summed = factor_axes(op.name, op.rule, tensors[:count], tensors[count:], self.lists)
        runs = self.with_axes(op.rule, axes, summed, index.shape[1])
        if op.name in SHIFTS or op.name in WINDOWS:
            shifted = functools.reduce(np.logical_or, (self.lists.mask(axes[f]) != 0 for f in op.rule.permutation), np.zeros(1, bool))
            rows = Rows(*runs.numbers, np.broadcast_to(shifted.astype(np.int64), index.shape[1:]))
            steps: list[tuple[Move, ...]] = []
            for *numbers, moves in rows.distinct():
                run = [layouts.items[number] for layouts, number in zip(self.layouts, numbers)]
                neighbours = _shifts if op.name in SHIFTS else _halos
                steps.append(tuple(neighbours(op, run, self.mesh)) if moves or op.name in WINDOWS else ())
            runs.inside = rows.deal([self.inside.number(one) for one in steps])
        return runs

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


def _shifts(op: OpSpec, run: Sequence[Layout], mesh: Mesh) -> Iterator[Move]:
    """The collectives of an op of `SHIFTS`: at most an operand's piece, and at most the result's, comes from a neighbour."""
    *pieces, piece = (math.prod(local_shape(type_.shape, layout, mesh)) for type_, layout in zip(op.types, run))
    return (Move("collective_permute", (), min(own, piece)) for own, tensor in zip(pieces, op.operands) if tensor.type.rank)


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
