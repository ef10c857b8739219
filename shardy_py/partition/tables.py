"""Prices of one op under arrays of joint layouts.

Lists of axes are numbered, sets of them are bit masks, and an op's decision is made on arrays of both (`factor_axes`). Anything else is a
function of few arguments that take few values: it runs once per distinct row of these, and its results are broadcast (`_Rows`).
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# Stubs of numpy 2.5 leave types of some functions open.

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from shardy_py.cost.compute import PRODUCTS, common_axes, roofline_seconds, run_shapes, work
from shardy_py.cost.traffic import Access, traffic
from shardy_py.dialect import Mesh, OpShardingRule
from shardy_py.dialect.axis import Axes, num_shards
from shardy_py.ir import TensorType
from shardy_py.partition.factor_axes import Exact, Factors, factor_axes
from shardy_py.partition.layouts import Layout, joined, local_shape, to_factors
from shardy_py.partition.mispartitioned import AT_RISK
from shardy_py.partition.op import CHEAP, OpSpec
from shardy_py.partition.policies import FORWARDING, strategy_of
from shardy_py.partition.price import NO_COMMUNICATION, Machine, piece_bytes
from shardy_py.partition.routes import Move, settled
from shardy_py.partition.strategy import SHIFTS, WHOLE, shifts
from shardy_py.partition.workarounds import HANDLERS, borders, is_at_risk, proposed_axes, received_elements

T = TypeVar("T")

Array = Any
"""A numpy array with an entry per joint layout, or one number for all of them."""


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
        move_received: The same in bytes that a device receives; -1 where no joint layout has both.
    """

    seconds: Array
    communication_seconds: Array
    reduction_seconds: Array
    received: Array
    reads: Array
    read_layouts: tuple[tuple[Layout, ...], ...]
    makes: Array
    make_layouts: tuple[tuple[Layout, ...], ...]
    move_seconds: tuple[Array, ...]
    move_received: tuple[Array, ...]


def price_table(op: OpSpec, candidates: Candidates, machine: Machine, memory: Sequence[Access]) -> PriceTable:
    """The prices of one op under joint layouts; each equals that of `price`."""
    index, domains, mesh = np.asarray(candidates.index, np.int64), candidates.domains, machine.mesh
    types, count = op.types, len(op.operands)
    if len(domains) != len(types) or len(index) != len(types):
        raise ValueError(f"{op.name} has {len(types)} values; there are domains of {len(domains)} and numbers of {len(index)}")
    decider = _Decider(op, domains, mesh)
    runs = decider.decide(index)
    move_seconds: list[Array] = []
    move_received: list[Array] = []
    for i, tensor in enumerate(op.operands):
        read_in = decider.layouts[i].items
        seconds, received = np.full((len(domains[i]), len(read_in)), np.nan), np.full((len(domains[i]), len(read_in)), -1)
        for own, read in _Rows(index[i], runs.numbers[i]).distinct():
            cost = NO_COMMUNICATION if tensor.maker else machine.reshard(tensor.type, domains[i][own], read_in[read])
            seconds[own, read], received[own, read] = cost.seconds, cost.received
        move_seconds.append(seconds)
        move_received.append(received)
    pieces = [_pieces(type_.shape, layouts.items, run, mesh) for type_, layouts, run in zip(types, decider.layouts, runs.numbers)]
    operands = pieces[:count]
    if op.name in PRODUCTS:
        operands = run_shapes(op, operands, decider.cut(runs))
    computed = work(op, operands, pieces[count:])
    accessed = traffic(memory, lambda i: piece_bytes(types[i], math.prod(pieces[i])))
    inside = [machine.collectives(steps, op.results[0].type.dtype) if steps else NO_COMMUNICATION for steps in decider.inside.items]
    seconds = np.array([cost.seconds for cost in inside])[runs.inside]
    received = np.array([cost.received for cost in inside])[runs.inside]
    reductions: Array = np.zeros(index.shape[1])
    for i, tensor in enumerate(op.results, count):
        rows = _Rows(runs.numbers[i], index[i], runs.summed)
        makes, targets, axes = decider.layouts[i].items, domains[i], decider.lists.exact.axes
        costs = [machine.settle(tensor.type, makes[a], targets[b], axes(mask)) for a, b, mask in rows.distinct()]
        settled_seconds = rows.deal([cost.seconds for cost in costs])
        seconds = seconds + settled_seconds
        single = [machine.settle(TensorType((), tensor.type.dtype), (), (), axes(mask)).seconds for _, _, mask in rows.distinct()]
        reductions = reductions + np.where(runs.summed, np.maximum(settled_seconds - rows.deal(single), 0.0), 0.0)
        received = received + rows.deal([cost.received for cost in costs])
    communicated = seconds + np.zeros(index.shape[1])
    seconds = roofline_seconds(computed, accessed, machine.hardware) + communicated
    layouts = tuple(tuple(each.items) for each in decider.layouts)
    return PriceTable(
        seconds,
        communicated,
        reductions,
        received,
        runs.numbers[:count],
        layouts[:count],
        runs.numbers[count:],
        layouts[count:],
        tuple(move_seconds),
        tuple(move_received),
    )


class _Rows:
    """The distinct rows of some columns of non-negative numbers."""

    def __init__(self, *columns: Array) -> None:
        self.columns = columns
        key: Array = np.zeros(len(columns[0]), np.int64)
        width = 1
        for column in columns:
            more = int(column.max(initial=0)) + 1
            if width * more >= 1 << 62:
                key = np.unique(key, return_inverse=True)[1]
                width = int(key.max(initial=0)) + 1
            key = key * more + column
            width *= more
        if width <= 4 * len(key) + 1024:
            numbers = np.full(width, -1)
            numbers[key] = np.arange(len(key))
            (present,) = np.nonzero(numbers >= 0)
            self.first: Array = numbers[present]
            numbers[present] = np.arange(len(present))
            self.number: Array = numbers[key]
        else:
            _, self.first, self.number = np.unique(key, return_index=True, return_inverse=True)

    def distinct(self) -> Iterator[tuple[int, ...]]:
        """The distinct rows."""
        return zip(*(column[self.first].tolist() for column in self.columns))

    def deal(self, values: Sequence[float]) -> Array:
        """Broadcasts one value per distinct row to all rows."""
        return np.array(values)[self.number] if len(values) else self.number


class _Numbered(Generic[T]):
    """Numbers items in the order of their arrival."""

    def __init__(self, *items: T) -> None:
        self.items = list(items)
        self.numbers = {item: i for i, item in enumerate(items)}

    def number(self, item: T) -> int:
        """The number of an item."""
        number = self.numbers.setdefault(item, len(self.items))
        if number == len(self.items):
            self.items.append(item)
        return number


class _Lists:
    """Numbers of lists of parts of axes, as `AxisLists`."""

    none = 0

    def __init__(self, mesh: Mesh) -> None:
        self.exact = Exact(mesh)
        self.devices = mesh.size
        self.lists = _Numbered[Axes](())
        self.masks: Array = np.zeros(1, np.int64)
        self.sizes: Array = np.ones(1, np.int64)

    def number(self, axes: Axes) -> int:
        """The number of a list."""
        number = self.lists.number(axes)
        if number == len(self.masks):
            self.masks = np.append(self.masks, self.exact.mask(axes))
            self.sizes = np.append(self.sizes, self.exact.size(axes))
        return number

    def call(self, function: Callable[..., Axes], lists: Sequence[Array], *numbers: Array) -> Array:
        """Applies a function of lists and numbers."""
        columns = np.broadcast_arrays(*map(np.atleast_1d, (*lists, *numbers)))
        rows, count, items = _Rows(*columns), len(lists), self.lists.items
        return rows.deal([self.number(function(*(items[i] for i in row[:count]), *row[count:])) for row in rows.distinct()])

    def mask(self, axes: Array) -> Array:
        """See `AxisLists`."""
        return self.masks[axes]

    def size(self, axes: Array) -> Array:
        """See `AxisLists`."""
        return self.sizes[axes]

    def devices_of(self, mask: Array) -> Array:
        """See `AxisLists`."""
        devices = 1
        for i, part in enumerate(self.exact.parts):
            devices = devices * np.where(mask >> i & 1, part.size_in(self.exact.mesh), 1)
        return devices

    def until(self, axes: Array, mask: Array) -> Array:
        """See `AxisLists`."""
        return self.call(self.exact.until, [axes], mask)

    def common(self, first: Array, second: Array) -> Array:
        """See `AxisLists`."""
        return self.call(self.exact.common, [first, second])

    def spare(self, size: Array, used: Array) -> Array:
        """See `AxisLists`."""
        return self.call(self.exact.spare, [], size, used)

    def same(self, first: Array, second: Array) -> Array:
        """See `AxisLists`."""
        return first == second

    def where(self, condition: Array, first: Array, second: Array) -> Array:
        """See `AxisLists`."""
        return np.where(condition, first, second)  # pyright: ignore[reportUnknownVariableType]

    def any(self, condition: Array) -> bool:
        """See `AxisLists`."""
        return bool(np.any(condition))


@functools.lru_cache(64)
def _lists(mesh: Mesh) -> _Lists:
    return _Lists(mesh)


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

    def __init__(self, op: OpSpec, domains: Sequence[Sequence[Layout]], mesh: Mesh) -> None:
        self.op = op
        self.domains = domains
        self.mesh = mesh
        self.lists = _lists(mesh)
        self.layouts = [_Numbered[Layout]() for _ in op.types]
        self.inside = _Numbered[tuple[Move, ...]](())

    def decide(self, index: Array) -> _Runs:
        """Strategies for joint layouts: on arrays, or one by one for ops that run as their operands lie."""
        op, count = self.op, index.shape[1]
        if op.name in FORWARDING or op.name in CHEAP:
            return self.one_by_one(index)
        at_risk = self.at_risk(index) if op.name in AT_RISK and op.rule is not None else np.zeros(count, bool)
        runs = _Runs(np.zeros((len(op.types), count), np.int64), np.zeros(count, np.int64), np.zeros(count, np.int64))
        for where, run in ((at_risk, self.apart), (~at_risk, self.handled if op.name in HANDLERS else self.by_xla)):
            if where.any():
                runs.set(where, run(index[:, where]))
        return runs

    def at_risk(self, index: Array) -> Array:
        """Whether XLA may get the op wrong."""
        columns: list[Array] = []
        cuts: list[Sequence[tuple[int, ...]]] = []
        for domain, own in zip(self.domains, index):
            numbered = _Numbered[tuple[int, ...]]()
            columns.append(np.array([numbered.number(tuple(num_shards(dim, self.mesh) for dim in layout)) for layout in domain])[own])
            cuts.append(numbered.items)
        rows = _Rows(*columns)
        return rows.deal([is_at_risk(self.op, [cut[i] for cut, i in zip(cuts, row)]) for row in rows.distinct()]).astype(bool)

    def one_by_one(self, index: Array) -> _Runs:
        """Strategies decided for each distinct joint layout by itself."""
        rows = _Rows(*index)
        strategies = [strategy_of(self.op, [domain[i] for domain, i in zip(self.domains, row)], self.mesh) for row in rows.distinct()]
        numbers = [rows.deal([layouts.number((*one.reads, *one.makes)[i]) for one in strategies]) for i, layouts in enumerate(self.layouts)]
        return _Runs(
            np.array(numbers),
            rows.deal([self.lists.exact.mask(one.summed) for one in strategies]),
            rows.deal([self.inside.number(one.inside) for one in strategies]),
        )

    def handled(self, index: Array) -> _Runs:
        """The strategies of an op that XLA has a handler for."""
        if self.op.name == "stablehlo.sort" and self.op.primitive != "top_k":
            return self.by_xla(index)
        return self.one_by_one(index)

    def by_xla(self, index: Array) -> _Runs:
        """The strategies of XLA's partitioner."""
        op, count = self.op, len(self.op.operands)
        if op.rule is None or op.name in WHOLE:
            whole = [layouts.number(((),) * len(type_.shape)) for layouts, type_ in zip(self.layouts, op.types)]
            zeros: Array = np.zeros(index.shape[1], np.int64)
            return _Runs(np.array(whole)[:, None] + zeros, zeros, zeros)
        tensors, shapes = self.factors(op.rule, index), [type_.shape for type_ in op.types]
        axes, summed = factor_axes(op.name, op.rule, shapes[:count], tensors[:count], tensors[count:], self.lists)
        runs = self.with_axes(op.rule, axes, summed, index.shape[1])
        if op.name in SHIFTS:
            shifted = functools.reduce(np.logical_or, (self.lists.mask(axes[f]) != 0 for f in op.rule.permutation), np.zeros(1, bool))
            rows = _Rows(*runs.numbers, np.broadcast_to(shifted.astype(np.int64), index.shape[1:]))
            steps: list[tuple[Move, ...]] = []
            for *numbers, moves in rows.distinct():
                run = [layouts.items[number] for layouts, number in zip(self.layouts, numbers)]
                steps.append(shifts(shapes[:count], shapes[count], run[:count], run[count], self.mesh) if moves else ())
            runs.inside = rows.deal([self.inside.number(one) for one in steps])
        return runs

    def apart(self, index: Array) -> _Runs:
        """The strategies of workarounds: the proposal that moves the fewest bytes, as in `workaround`."""
        op, rule, count, mesh, size = self.op, self.op.rule, len(self.op.operands), self.mesh, index.shape[1]
        assert rule is not None
        best, least, most = None, np.zeros(0), np.zeros(0)
        for axes in proposed_axes(op, rule, self.factors(rule, index), self.lists):
            summed: Array = functools.reduce(np.bitwise_or, (self.lists.mask(axes[f]) for f in rule.reduction), np.zeros(1, np.int64))
            runs = self.with_axes(rule, axes, summed, size)
            rows = _Rows(runs.numbers[0], runs.numbers[count])
            reads, makes = self.layouts[0].items, self.layouts[count].items
            steps = [tuple(borders(op, reads[read], makes[make], mesh)) for read, make in rows.distinct()]
            runs.inside = rows.deal([self.inside.number(one) for one in steps])
            received = np.array([received_elements(one, mesh) for one in self.inside.items])[runs.inside]
            for i, type_ in enumerate(op.types):
                ends = (index[i], runs.numbers[i]) if i < count else (runs.numbers[i], index[i])
                rows, own, run = _Rows(*ends, runs.summed * (i >= count)), self.domains[i], self.layouts[i].items
                source, target = (own, run) if i < count else (run, own)
                received = received + rows.deal(
                    [
                        received_elements(settled(type_.shape, source[a], target[b], self.lists.exact.axes(mask), mesh), mesh)
                        for a, b, mask in rows.distinct()
                    ]
                )
            devices = functools.reduce(np.multiply, map(self.lists.size, axes), np.ones(size, np.int64))
            if best is None:
                best, least, most = runs, received, devices
            else:
                better = (received < least) | ((received == least) & (devices > most))
                best.set(better, runs.at(better))
                least, most = np.where(better, received, least), np.where(better, devices, most)
        assert best is not None
        return best

    def factors(self, rule: OpShardingRule, index: Array) -> list[Factors[Array]]:
        """Per operand and result, numbers of the axes of its factors."""
        tensors: list[Factors[Array]] = []
        for mapping, domain, own in zip(rule.mappings, self.domains, index):
            dealt = [to_factors(mapping, layout, rule.factor_sizes, self.mesh) for layout in domain]
            tensors.append({factor: np.array([self.lists.number(axes[factor]) for axes in dealt])[own] for factor in dealt[0]})
        return tensors

    def with_axes(self, rule: OpShardingRule, axes: Sequence[Array], summed: Array, count: int) -> _Runs:
        """Strategies in which factors have some axes."""
        numbers: Array = np.zeros((len(rule.mappings), count), np.int64)
        for i, (mapping, layouts) in enumerate(zip(rule.mappings, self.layouts)):
            rows = _Rows(*(np.broadcast_to(self.joined(rule, dim, axes), (count,)) for dim in mapping), numbers[i])
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
        exact = self.lists.exact
        layouts, numbers = [each.items for each in self.layouts], runs.numbers
        used = np.array([exact.mask(tuple(axis for dim in layout for axis in dim)) for layout in layouts[2]], np.int64)[numbers[2]]

        def common(lhs: Axes, rhs: Axes, mask: int) -> Axes:
            return common_axes(lhs, rhs, {axis.name for axis in exact.axes(mask)})

        def cut(i: int, j: int) -> Array:
            sides = [np.array([self.lists.number(layout[d]) for layout in layouts[t]], np.int64)[numbers[t]] for t, d in ((0, i), (1, j))]
            return self.lists.size(self.lists.call(common, sides, used))

        return cut


def _pieces(shape: Sequence[int], domain: Sequence[Layout], own: Array, mesh: Mesh) -> tuple[Array, ...]:
    """The shape of the largest piece of a value."""
    return tuple(np.array([local_shape(shape, layout, mesh) for layout in domain], float).reshape(len(domain), len(shape))[own].T)
