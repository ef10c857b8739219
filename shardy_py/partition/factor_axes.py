"""The axes of every factor under which XLA's partitioner runs an op, of one joint layout or of arrays of them.

The decision is written once, over `AxisLists`: `Exact` has lists of axes as tuples, `tables` has arrays of numbers of lists. So nothing
here branches on a decision except by `where` and `any`. Sets of axes are bit masks in both.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, TypeVar

from shardy_py.cost.compute import PRODUCTS
from shardy_py.dialect import AxisRef, Mesh, OpShardingRule
from shardy_py.dialect.axis import Axes, num_shards
from shardy_py.partition.layouts import parts

REDUCTIONS = frozenset(("stablehlo.reduce",))
"""Ops that run as their operand is sharded."""

INDEXED = frozenset(("stablehlo.gather", "stablehlo.scatter"))
"""Ops that read or write where indices say: on each device only what lies in its piece of the operand."""

L = TypeVar("L")

Factors = Mapping[int, L]
"""Factor -> its axes in one tensor."""


class AxisLists(Protocol[L]):
    """Operations on lists of parts of axes, scalar or on arrays; numbers, sets and conditions are of the same kind."""

    @property
    def devices(self) -> int:
        """Size of the mesh."""
        ...

    @property
    def none(self) -> L:
        """The empty list."""
        ...

    def mask(self, axes: L) -> int:
        """The set of the parts of a list."""
        ...

    def size(self, axes: L) -> int:
        """The number of devices along a list."""
        ...

    def devices_of(self, mask: int) -> int:
        """The number of devices along the parts of a set."""
        ...

    def until(self, axes: L, mask: int) -> L:
        """The parts of a list before the first that is in a set."""
        ...

    def common(self, first: L, second: L) -> L:
        """The parts that two lists begin with."""
        ...

    def spare(self, size: int, used: int) -> L:
        """The first parts in mesh order outside of a set with `size` devices along them; the empty list where there are none."""
        ...

    def same(self, first: L, second: L) -> bool:
        """Whether two lists are equal."""
        ...

    def where(self, condition: bool, first: L, second: L) -> L:
        """The first list where a condition holds, else the second."""
        ...

    def any(self, condition: bool) -> bool:
        """Whether a condition holds anywhere."""
        ...


class Exact:
    """Lists of parts of the axes of a mesh, as tuples."""

    none: Axes = ()

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.devices = mesh.size
        self.parts, self.bits = _numbered(mesh)

    def mask(self, axes: Axes) -> int:
        """See `AxisLists`."""
        bits = self.bits
        mask = 0
        for axis in axes:
            mask |= bits[axis]
        return mask

    def size(self, axes: Axes) -> int:
        """See `AxisLists`."""
        return num_shards(axes, self.mesh)

    def axes(self, mask: int) -> Axes:
        """The parts of a set in mesh order."""
        return tuple(part for part in self.parts if self.bits[part] & mask) if mask else ()

    def devices_of(self, mask: int) -> int:
        """See `AxisLists`."""
        return num_shards(self.axes(mask), self.mesh)

    def until(self, axes: Axes, mask: int) -> Axes:
        """See `AxisLists`."""
        for i, axis in enumerate(axes):
            if self.bits[axis] & mask:
                return axes[:i]
        return axes

    def common(self, first: Axes, second: Axes) -> Axes:
        """See `AxisLists`."""
        for i, (a, b) in enumerate(zip(first, second)):
            if a != b:
                return first[:i]
        return first[: min(len(first), len(second))]

    def spare(self, size: int, used: int) -> Axes:
        """See `AxisLists`."""
        free = [part for part in self.parts if not self.bits[part] & used]
        for count in range(1, len(free) + 1):
            if num_shards(free[:count], self.mesh) == size:
                return tuple(free[:count])
        return ()

    def same(self, first: Axes, second: Axes) -> bool:
        """See `AxisLists`."""
        return first == second

    def where(self, condition: bool, first: Axes, second: Axes) -> Axes:
        """See `AxisLists`."""
        return first if condition else second

    def any(self, condition: bool) -> bool:
        """See `AxisLists`."""
        return condition


@functools.cache
def _numbered(mesh: Mesh) -> tuple[Axes, Mapping[AxisRef, int]]:
    """The parts of a mesh in its order, and the bit of each in a mask."""
    numbered = tuple(part for axis in mesh.axes for part in parts(AxisRef(axis.name), mesh))
    return numbered, {part: 1 << i for i, part in enumerate(numbered)}


def factor_axes(
    name: str,
    rule: OpShardingRule,
    shapes: Sequence[Sequence[int]],
    operands: Sequence[Factors[L]],
    results: Sequence[Factors[L]],
    lists: AxisLists[L],
) -> tuple[list[L], int]:
    """The axes of every factor, and the set of those over which results are added up."""
    if name in PRODUCTS:
        return _product_axes(rule, shapes, operands, results[0], lists)
    if name in INDEXED:
        return _indexed_axes(rule, operands, results[0], lists)
    axes: list[L] = [lists.none] * rule.num_factors
    summed = 0
    runs_cut = [factor for factor in range(rule.num_factors) if factor not in rule.need_replication]
    sources = operands if name in REDUCTIONS else results
    for factor in runs_cut:
        if factor in rule.reduction:
            for tensor in operands[:1] if name in REDUCTIONS else reversed(operands):  # a reduction brings all to its first operand
                if factor in tensor:
                    axes[factor] = lists.where(lists.mask(tensor[factor]) != 0, tensor[factor], axes[factor])
            axes[factor] = lists.until(axes[factor], summed)  # operands may lie along the same axes in different dimensions
            summed = summed | lists.mask(axes[factor])
        else:
            axes[factor] = next((tensor[factor] for tensor in sources if factor in tensor), lists.none)
    if name not in REDUCTIONS and lists.any(summed != 0):
        # A result cannot be sharded along the axes that it is a sum over.
        for factor in runs_cut:
            if factor not in rule.reduction:
                axes[factor] = lists.until(axes[factor], summed)
    return axes, summed


def _indexed_axes(rule: OpShardingRule, operands: Sequence[Factors[L]], result: Factors[L], lists: AxisLists[L]) -> tuple[list[L], int]:
    """The axes of a gather, which adds up over the axes that its operand is indexed along, or of a scatter, over those of its updates.

    Where the operand, or the result of a scatter, has the axes that indices are cut by, these are cut by axes that are free, into as many
    pieces as there are (GroupShardingOnReplicatedDim in hlo_sharding_util.cc).
    """
    operand, indices, *updates = operands
    axes: list[L] = [lists.none] * rule.num_factors
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
        own = result.get(factor, lists.none)
        for tensor in updates:
            own = lists.where(lists.mask(own) != 0, own, tensor.get(factor, lists.none))
        size, left = lists.size(own), lists.devices // lists.devices_of(used)
        free = lists.spare(size * (size <= left) + left * (size > left), used)
        axes[factor] = lists.where((lists.mask(own) & used) != 0, free, own)
        used = used | lists.mask(axes[factor])
        if factor in rule.reduction:
            summed = summed | lists.mask(axes[factor])
    return axes, summed


def _product_axes(
    rule: OpShardingRule, shapes: Sequence[Sequence[int]], operands: Sequence[Factors[L]], result: Factors[L], lists: AxisLists[L]
) -> tuple[list[L], int]:
    lhs, rhs = operands
    axes: list[L] = [lists.none] * rule.num_factors
    both = [factor for factor in rule.reduction if factor in lhs and factor in rhs]
    matching = _matching(rule, shapes, both, lhs, rhs, result, lists)
    summed = _union(matching, matching, lists)
    for factor, cut in result.items():
        axes[factor] = cut
        clashes = (lists.mask(cut) & summed) != 0
        if lists.any(clashes):
            side = lhs.get(factor, rhs.get(factor, lists.none))
            used = summed | _union(result, [other for other in result if other != factor], lists)
            side_fits = (lists.mask(side) != 0) & ((used & lists.mask(side)) == 0)
            free = lists.spare(lists.size(cut), used | _union(lhs, lhs, lists) | _union(rhs, rhs, lists))
            shared = lists.common(lists.until(cut, summed), side)
            instead = lists.where(lists.mask(shared) != 0, shared, lists.where(side_fits, side, free))
            axes[factor] = lists.where(clashes, instead, cut)
    none_match = summed == 0
    for factor, cut in matching.items():
        axes[factor] = lists.where(none_match, lists.none, cut)
    if lists.any(none_match):
        one_sided = _one_sided(rule, shapes, lhs, rhs, axes, result, lists)
        for factor, cut in one_sided.items():
            cut = lists.where(none_match, cut, lists.none)
            summed = summed | lists.mask(cut)
            if factor in both:
                axes[factor] = lists.where(none_match, cut, axes[factor])
    return axes, summed


def _union(tensor: Factors[L], factors: Collection[int], lists: AxisLists[L]) -> int:
    """The set of axes of some factors of a tensor."""
    mask = 0
    for factor in factors:
        mask = mask | lists.mask(tensor[factor])
    return mask


def _pieces(sizes: Sequence[int], dims: Sequence[Sequence[L]], lists: AxisLists[L]) -> int:
    """Elements of the largest piece where each dimension is cut by some lists."""
    return math.prod(-(-size // math.prod(map(lists.size, dim))) for size, dim in zip(sizes, dims, strict=True))


def _matching(
    rule: OpShardingRule,
    shapes: Sequence[Sequence[int]],
    both: Sequence[int],
    lhs: Factors[L],
    rhs: Factors[L],
    result: Factors[L],
    lists: AxisLists[L],
) -> dict[int, L]:
    """Axes of the summed dimensions that both sides are cut by into as many pieces; none of a dimension that they are not.

    Where these are along other axes, one side changes places: that whose axes the result has, or else the smaller one
    (PartitionDotGroupOnContracting in dot_handler.cc).
    """
    match = {factor: lists.where(lists.same(lhs[factor], rhs[factor]), lhs[factor], lists.none) for factor in both}
    used = _union(result, result, lists)
    for factor in both:
        a, b = lhs[factor], rhs[factor]
        differ = (lists.size(a) == lists.size(b)) & (lists.mask(a) != 0) & (lists.same(a, b) == 0)
        if not lists.any(differ):
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
        match[factor] = lists.where(takes_a, a, lists.where(takes_b, b, match[factor]))
    return match


def _one_sided(
    rule: OpShardingRule,
    shapes: Sequence[Sequence[int]],
    lhs: Factors[L],
    rhs: Factors[L],
    axes: Sequence[L],
    result: Factors[L],
    lists: AxisLists[L],
) -> dict[int, L]:
    """Axes on the summed dimensions of one side, where adding up the result is less than gathering the side; none elsewhere.

    The other side must be whole, and all devices must have a part in it (should_partition_contracting_dim in dot_handler.cc). Where the
    result has the axes, the side is brought to as many pieces along axes that are free.
    """
    used = _union(result, result, lists)
    result_piece = _pieces([rule.factor_sizes[f] for f in result], [[axes[f]] for f in result], lists)
    contracted: dict[int, L] = dict.fromkeys(rule.reduction, lists.none)
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
                    whole = whole & lists.same(axes[factor], side[factor])
        if not lists.any(whole):
            continue
        cut_factors = sum((lists.mask(own[factor]) != 0) * 1 for factor in factors)
        cuts: dict[int, L] = {}
        for factor in factors:
            moves_away = (cut_factors == 1) & ((lists.mask(own[factor]) & used) != 0)
            cuts[factor] = own[factor]
            if lists.any(moves_away):
                free = lists.spare(lists.size(own[factor]), used | _union(lhs, lhs, lists) | _union(rhs, rhs, lists))
                cuts[factor] = lists.where(moves_away, free, own[factor])
        mask = _union(cuts, cuts, lists)
        dims = [[axes[dim[0]] if dim[0] in result else lists.none] for dim in rule.operand_mappings[i]]
        pays = _pieces(shapes[i], dims, lists) > result_piece
        busy = lists.devices_of(mask | used) == lists.devices
        takes = whole & (mask != 0) & ((mask & used) == 0) & busy & pays
        for factor in factors:
            contracted[factor] = lists.where(takes, cuts[factor], contracted[factor])
        is_open = is_open & (takes == 0)
    return contracted
