"""The axes of every factor under which an op runs, for arrays of joint layouts.

Lists of axes are numbered, sets of them are bit masks, and the decision is made on arrays of both: so nothing here branches on a decision
except by `where` and `any`.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# Stubs of numpy 2.5 leave types of some functions open.

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from shardy_py.cost.compute import PRODUCTS
from shardy_py.dialect import AxisRef, Mesh, OpShardingRule
from shardy_py.dialect.axis import Axes, num_shards
from shardy_py.partition.layouts import Layout, parts, to_factors

REDUCTIONS = frozenset(("stablehlo.reduce",))
"""Ops that run as their operand is sharded."""

INDEXED = frozenset(("stablehlo.gather", "stablehlo.scatter"))
"""Ops that read or write where indices say: on each device only what lies in its piece of the operand."""

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
        self.sizes: Array = np.ones(1, np.int64)

    def number(self, axes: Axes) -> int:
        """The number of a list."""
        number = self.lists.number(axes)
        if number == len(self.masks):
            self.masks = np.append(self.masks, self.set_of(axes))
            self.sizes = np.append(self.sizes, num_shards(axes, self.mesh))
        return number

    def set_of(self, axes: Iterable[AxisRef]) -> int:
        """The set of some parts."""
        return sum({self.bits[axis] for axis in axes})

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

    def size(self, axes: Array) -> Array:
        """The number of devices along a list."""
        return self.sizes[axes]

    def devices_of(self, mask: Array) -> Array:
        """The number of devices along the parts of a set."""
        return functools.reduce(np.multiply, (np.where(mask & bit, part.size_in(self.mesh), 1) for part, bit in self.bits.items()), 1)

    def until(self, axes: Array, mask: Array) -> Array:
        """The parts of a list before the first that is in a set."""

        def until(axes: Axes, mask: int) -> Axes:
            return axes[: next((i for i, axis in enumerate(axes) if self.bits[axis] & mask), len(axes))]

        return self.call(until, [axes], mask)

    def common(self, first: Array, second: Array) -> Array:
        """The parts that two lists begin with."""

        def common(first: Axes, second: Axes) -> Axes:
            return first[: next((i for i, (a, b) in enumerate(zip(first, second)) if a != b), min(len(first), len(second)))]

        return self.call(common, [first, second])

    def spare(self, size: Array, used: Array) -> Array:
        """The first parts in mesh order outside of a set with `size` devices along them; the empty list where there are none."""

        def spare(size: int, used: int) -> Axes:
            free = [part for part, bit in self.bits.items() if not bit & used]
            return tuple(next((free[:n] for n in range(1, len(free) + 1) if num_shards(free[:n], self.mesh) == size), ()))

        return self.call(spare, [], size, used)


@functools.lru_cache(64)
def axis_lists(mesh: Mesh, whole: bool = False) -> AxisLists:
    """The lists of a mesh, made once; a region's are of whole axes, which it may not cut inside of another region."""
    return AxisLists(mesh, whole)


def axes_of_factors(name: str, rule: OpShardingRule, shapes: Sequence[Sequence[int]], layouts: Sequence[Layout], mesh: Mesh) -> list[Axes]:
    """The axes of every factor of an op of a region under one joint layout of its operands and results."""
    lists, count = axis_lists(mesh, whole=True), len(rule.operand_mappings)
    dealt = (to_factors(mapping, layout, rule.factor_sizes, mesh) for mapping, layout in zip(rule.mappings, layouts))
    tensors = [{factor: lists.number(axes) for factor, axes in each.items()} for each in dealt]
    axes, _ = factor_axes(name, rule, shapes, tensors[:count], tensors[count:], lists)
    return [lists.lists.items[np.asarray(each).item()] for each in axes]


def factor_axes(
    name: str,
    rule: OpShardingRule,
    shapes: Sequence[Sequence[int]],
    operands: Sequence[Factors],
    results: Sequence[Factors],
    lists: AxisLists,
) -> tuple[list[Array], Array]:
    """The axes of every factor, and the set of those over which results are added up."""
    if name in PRODUCTS:
        return _product_axes(rule, shapes, operands, results[0], lists)
    if name in INDEXED:
        return _indexed_axes(rule, operands, results[0], lists)
    axes: list[Array] = [0] * rule.num_factors
    summed = 0
    runs_cut = [factor for factor in range(rule.num_factors) if factor not in rule.need_replication]
    sources = operands if name in REDUCTIONS else results
    for factor in runs_cut:
        if factor in rule.reduction:
            for tensor in operands[:1] if name in REDUCTIONS else reversed(operands):  # a reduction brings all to its first operand
                if factor in tensor:
                    axes[factor] = np.where(lists.mask(tensor[factor]) != 0, tensor[factor], axes[factor])
            axes[factor] = lists.until(axes[factor], summed)  # operands may lie along the same axes in different dimensions
            summed = summed | lists.mask(axes[factor])
        else:
            axes[factor] = next((tensor[factor] for tensor in sources if factor in tensor), 0)
    if name not in REDUCTIONS and np.any(summed != 0):
        # A result cannot be sharded along the axes that it is a sum over.
        for factor in runs_cut:
            if factor not in rule.reduction:
                axes[factor] = lists.until(axes[factor], summed)
    return axes, summed


def _indexed_axes(rule: OpShardingRule, operands: Sequence[Factors], result: Factors, lists: AxisLists) -> tuple[list[Array], Array]:
    """The axes of a gather, which adds up over the axes that its operand is indexed along, or of a scatter, over those of its updates.

    Where the operand, or the result of a scatter, has the axes that indices are cut by, these are cut by axes that are free, into as many
    pieces as there are (GroupShardingOnReplicatedDim in hlo_sharding_util.cc).
    """
    operand, indices, *updates = operands
    axes: list[Array] = [0] * rule.num_factors
    summed = 0
    for factor in operand:
        if factor not in rule.need_replication and factor not in indices:
            axes[factor] = operand[factor] if factor in rule.reduction else result[factor]
            if factor in rule.reduction:
                axes[factor] = lists.until(axes[factor], summed)
                summed = summed | lists.mask(axes[factor])
    used = summed
    for factor in result:
        if factor in operand and factor not in indices and factor not in rule.need_replication:
            axes[factor] = lists.until(axes[factor], summed)
            used = used | lists.mask(axes[factor])
    for factor in indices:
        if factor in rule.need_replication:
            continue
        own = result.get(factor, 0)
        for tensor in updates:
            own = np.where(lists.mask(own) != 0, own, tensor.get(factor, 0))
        size, left = lists.size(own), lists.mesh.size // lists.devices_of(used)
        free = lists.spare(size * (size <= left) + left * (size > left), used)
        axes[factor] = np.where((lists.mask(own) & used) != 0, free, own)
        used = used | lists.mask(axes[factor])
        if factor in rule.reduction:
            summed = summed | lists.mask(axes[factor])
    return axes, summed


def _product_axes(
    rule: OpShardingRule, shapes: Sequence[Sequence[int]], operands: Sequence[Factors], result: Factors, lists: AxisLists
) -> tuple[list[Array], Array]:
    lhs, rhs = operands
    axes: list[Array] = [0] * rule.num_factors
    both = [factor for factor in rule.reduction if factor in lhs and factor in rhs]
    matching = _matching(rule, shapes, both, lhs, rhs, result, lists)
    summed = _union(matching, matching, lists)
    for factor, cut in result.items():
        axes[factor] = cut
        clashes = (lists.mask(cut) & summed) != 0
        if np.any(clashes):
            side = lhs.get(factor, rhs.get(factor, 0))
            used = summed | _union(result, [other for other in result if other != factor], lists)
            side_fits = (lists.mask(side) != 0) & ((used & lists.mask(side)) == 0)
            free = lists.spare(lists.size(cut), used | _union(lhs, lhs, lists) | _union(rhs, rhs, lists))
            shared = lists.common(lists.until(cut, summed), side)
            instead = np.where(lists.mask(shared) != 0, shared, np.where(side_fits, side, free))
            axes[factor] = np.where(clashes, instead, cut)
    none_match = summed == 0
    for factor, cut in matching.items():
        axes[factor] = np.where(none_match, 0, cut)
    if np.any(none_match):
        one_sided = _one_sided(rule, shapes, lhs, rhs, axes, result, lists)
        for factor, cut in one_sided.items():
            cut = np.where(none_match, cut, 0)
            summed = summed | lists.mask(cut)
            if factor in both:
                axes[factor] = np.where(none_match, cut, axes[factor])
    return axes, summed


def _union(tensor: Factors, factors: Collection[int], lists: AxisLists) -> int:
    """The set of axes of some factors of a tensor."""
    mask = 0
    for factor in factors:
        mask = mask | lists.mask(tensor[factor])
    return mask


def _pieces(sizes: Sequence[int], dims: Sequence[Sequence[Array]], lists: AxisLists) -> int:
    """Elements of the largest piece where each dimension is cut by some lists."""
    return math.prod(-(-size // math.prod(map(lists.size, dim))) for size, dim in zip(sizes, dims, strict=True))


def _matching(
    rule: OpShardingRule,
    shapes: Sequence[Sequence[int]],
    both: Sequence[int],
    lhs: Factors,
    rhs: Factors,
    result: Factors,
    lists: AxisLists,
) -> dict[int, Array]:
    """Axes of the summed dimensions that both sides are cut by into as many pieces; none of a dimension that they are not.

    Where these are along other axes, one side changes places: that whose axes the result has, or else the smaller one
    (PartitionDotGroupOnContracting in dot_handler.cc).
    """
    match = {factor: np.where(lhs[factor] == rhs[factor], lhs[factor], 0) for factor in both}
    used = _union(result, result, lists)
    for factor in both:
        a, b = lhs[factor], rhs[factor]
        differ = (lists.size(a) == lists.size(b)) & (lists.mask(a) != 0) & (a != b)
        if not np.any(differ):
            continue
        lhs_piece, rhs_piece = (
            _pieces(shape, [[side[f] for f in dim] for dim in mapping], lists)
            for shape, side, mapping in zip(shapes, (lhs, rhs), rule.operand_mappings, strict=True)
        )
        matched = _union(match, match, lists)
        a_mask, b_mask = lists.mask(a), lists.mask(b)
        a_fits = ((_union(rhs, [f for f in rhs if f != factor], lists) | matched) & a_mask) == 0
        b_fits = ((_union(lhs, [f for f in lhs if f != factor], lists) | matched) & b_mask) == 0
        a_is_used, b_is_used = (used & a_mask) != 0, (used & b_mask) != 0
        a_first = (a_is_used < b_is_used) | ((a_is_used == b_is_used) & (lhs_piece >= rhs_piece))
        takes_a = differ & a_fits & (a_first | (b_fits == 0))
        takes_b = differ & b_fits & (takes_a == 0)
        match[factor] = np.where(takes_a, a, np.where(takes_b, b, match[factor]))
    return match


def _one_sided(
    rule: OpShardingRule,
    shapes: Sequence[Sequence[int]],
    lhs: Factors,
    rhs: Factors,
    axes: Sequence[Array],
    result: Factors,
    lists: AxisLists,
) -> dict[int, Array]:
    """Axes on the summed dimensions of one side, where adding up the result is less than gathering the side; none elsewhere.

    The other side must be whole, and all devices must have a part in it (should_partition_contracting_dim in dot_handler.cc). Where the
    result has the axes, the side is brought to as many pieces along axes that are free.
    """
    used = _union(result, result, lists)
    result_piece = _pieces([rule.factor_sizes[f] for f in result], [[axes[f]] for f in result], lists)
    contracted: dict[int, Array] = dict.fromkeys(rule.reduction, 0)
    is_open = True
    for i, (own, other) in enumerate(((lhs, rhs), (rhs, lhs))):
        factors = [factor for factor in rule.reduction if factor in own]
        whole = is_open
        for factor in rule.reduction:
            if factor in other:  # axes that the result has are gathered first
                whole = whole & ((lists.mask(other[factor]) | used) == used)
        for side in (own, other):
            for factor in side:
                if factor in result:
                    whole = whole & (axes[factor] == side[factor])
        if not np.any(whole):
            continue
        cut_factors = sum((lists.mask(own[factor]) != 0) * 1 for factor in factors)
        cuts: dict[int, Array] = {}
        for factor in factors:
            moves_away = (cut_factors == 1) & ((lists.mask(own[factor]) & used) != 0)
            cuts[factor] = own[factor]
            if np.any(moves_away):
                free = lists.spare(lists.size(own[factor]), used | _union(lhs, lhs, lists) | _union(rhs, rhs, lists))
                cuts[factor] = np.where(moves_away, free, own[factor])
        mask = _union(cuts, cuts, lists)
        dims = [[axes[dim[0]] if dim[0] in result else 0] for dim in rule.operand_mappings[i]]
        pays = _pieces(shapes[i], dims, lists) > result_piece
        busy = lists.devices_of(mask | used) == lists.mesh.size
        takes = whole & (mask != 0) & ((mask & used) == 0) & busy & pays
        for factor in factors:
            contracted[factor] = np.where(takes, cuts[factor], contracted[factor])
        is_open = is_open & (takes == 0)
    return contracted
