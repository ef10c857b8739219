"""The axes of every factor under which an op runs, for arrays of joint layouts.

Lists of axes are numbered, sets of them are bit masks, and the decision is made on arrays of both: so nothing here branches on a decision
except by `where` and `any`.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# Stubs of numpy 2.5 leave types of some functions open.

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from shardy_py.dialect import AxisRef, Mesh, OpShardingRule
from shardy_py.dialect.axis import Axes
from shardy_py.partition.layouts import Layout, parts, to_factors

REDUCTIONS = frozenset(("stablehlo.reduce",))
"""Ops that run as their operand is sharded."""

SCATTER = "stablehlo.scatter"

INDEXED = frozenset(("stablehlo.gather", SCATTER))
"""Ops that read or write where indices say: on each device, only within its piece of the operand."""

T = TypeVar("T")

Array = Any
"""A numpy array with an entry per joint layout, or one number for all of them."""

Factors = Mapping[int, Array]
"""Factor -> numbers of its axes in one tensor."""


class Rows:
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


class Numbered(Generic[T]):
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


class AxisLists:
    """Numbers of lists of parts of the axes of a mesh, or of whole axes; 0 is the empty list."""

    def __init__(self, mesh: Mesh, whole: bool) -> None:
        self.mesh = mesh
        axes = (AxisRef(axis.name) for axis in mesh.axes if axis.size > 1)
        every = axes if whole else (part for axis in axes for part in parts(axis, mesh))
        self.bits = {part: 1 << i for i, part in enumerate(every)}
        self.lists = Numbered[Axes](())
        self.masks: Array = np.zeros(1, np.int64)

    def number(self, axes: Axes) -> int:
        """The number of a list."""
        number = self.lists.number(axes)
        if number == len(self.masks):
            self.masks = np.append(self.masks, sum({self.bits[axis] for axis in axes}))
        return number

    def axes(self, mask: int) -> Axes:
        """The parts of a set in mesh order."""
        return tuple(part for part, bit in self.bits.items() if bit & mask)

    def call(self, function: Callable[..., Axes], lists: Sequence[Array], *numbers: Array) -> Array:
        """Applies a function of lists and numbers, once for each distinct row of them."""
        columns = np.broadcast_arrays(*map(np.atleast_1d, (*lists, *numbers)))
        rows, count, items = Rows(*columns), len(lists), self.lists.items
        return rows.deal([self.number(function(*(items[i] for i in row[:count]), *row[count:])) for row in rows.distinct()])

    def mask(self, axes: Array) -> Array:
        """The set of the parts of a list."""
        return self.masks[axes]

    def without(self, axes: Array, mask: Array) -> Array:
        """The parts of a list that are not in a set."""

        def without(axes: Axes, mask: int) -> Axes:
            return tuple(axis for axis in axes if not self.bits[axis] & mask)

        return self.call(without, [axes], mask) if np.any(self.mask(axes) & mask) else axes


@functools.lru_cache(64)
def axis_lists(mesh: Mesh, whole: bool = False) -> AxisLists:
    """The lists of a mesh, made once; a region's are of whole axes, which it may not cut inside of another region."""
    return AxisLists(mesh, whole)


def axes_of_factors(name: str, rule: OpShardingRule, layouts: Sequence[Layout], mesh: Mesh) -> list[Axes]:
    """The axes of every factor of an op of a region under one joint layout of its operands and results."""
    lists, count = axis_lists(mesh, whole=True), len(rule.operand_mappings)
    dealt = (to_factors(mapping, layout, rule.factor_sizes, mesh) for mapping, layout in zip(rule.mappings, layouts))
    tensors = [{factor: lists.number(axes) for factor, axes in each.items()} for each in dealt]
    axes, _ = factor_axes(name, rule, tensors[:count], tensors[count:], lists)
    return [lists.lists.items[np.asarray(each).item()] for each in axes]


def factor_axes(
    name: str, rule: OpShardingRule, operands: Sequence[Factors], results: Sequence[Factors], lists: AxisLists
) -> tuple[list[Array], Array]:
    """The axes of every factor, and the set of those over which results are added up.

    A factor that is summed is cut as the first operand is where all operands are cut along it, up to the axes of results, which stay cut by
    them; where all agree, sums are scattered along these too. Updates of a scatter are brought to the pieces of its result, and a reduction
    runs as its operand is cut. Other factors have the axes of results.
    """
    axes: list[Array] = [0] * rule.num_factors
    summed: Array = 0
    reads, ends = (operands[:1], operands) if name in REDUCTIONS else (operands, results)
    used = functools.reduce(np.bitwise_or, (lists.mask(axes) for result in results for axes in result.values()), 0)
    for factor in rule.reduction:
        first, *others = [tensor[factor] for tensor in reads if factor in tensor] or [0]
        if name == SCATTER:
            cut = lists.without(np.where(lists.mask(first) != 0, first, others[-1] if others else 0), used)
        else:
            agree = functools.reduce(np.logical_and, (each == first for each in others), True)
            all_cut = functools.reduce(np.logical_and, (lists.mask(each) != 0 for each in others), True)
            cut = np.where(agree, first, lists.without(first, used) * all_cut)
        axes[factor] = lists.without(cut, summed)  # operands may lie along the same axes in different dimensions
        summed = summed | lists.mask(axes[factor])
    for factor in range(rule.num_factors):
        if factor not in rule.reduction and factor not in rule.need_replication:
            cut = next((tensor[factor] for tensor in ends if factor in tensor), 0)
            axes[factor] = cut if name in REDUCTIONS else lists.without(cut, summed)
    return axes, summed
