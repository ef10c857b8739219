"""Under which axes XLA's partitioner runs an op, and what it has to move for that.

Most ops run as their result is sharded: operands are brought to it. A reduction runs as its operand is sharded, and its result is brought
to where it is wanted. A matrix product adds up partial results over axes that cut a summed dimension of both sides in the same way; all
other axes are those of the result. Where these are summed over, they are those of the side, or as many pieces along axes that are free
(xla/service/spmd/dot_handler.cc). No reduce-scatters are made: an all-reduce, and a slice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shardy_py.dialect import AxisRef, Mesh, OpShardingRule
from shardy_py.partition.layouts import Axes, Layout, all_axes, from_factors, local_elements, local_shape, parts, size_of, to_factors
from shardy_py.partition.routes import Move, moves

DOTS = frozenset(("stablehlo.dot", "stablehlo.dot_general", "stablehlo.convolution"))
REDUCTIONS = frozenset(("stablehlo.reduce",))
SHIFTS = frozenset(("stablehlo.slice", "stablehlo.concatenate", "stablehlo.pad"))
"""Ops that fetch a part of their piece from neighbours where the dimension that they cut or extend is sharded."""
WHOLE = frozenset(("stablehlo.fft",))
"""Ops that run on whole operands."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """How one op runs.

    Attributes:
        operands: The layout in which each operand is read.
        results: The layout in which each result is made.
        moves: What brings each operand there.
        sums: What each result needs before it is complete and in its layout.
    """

    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]
    moves: tuple[tuple[Move, ...], ...]
    sums: tuple[tuple[Move, ...], ...]


def choose(
    name: str,
    rule: OpShardingRule | None,
    shapes: Sequence[Shape],
    layouts: Sequence[Layout],
    results: Sequence[Shape],
    wanted: Sequence[Layout],
    mesh: Mesh,
) -> Choice:
    """How an op runs.

    Args:
        name: The op.
        rule: Its rule; without one it runs on whole operands.
        shapes: Global shapes of operands.
        layouts: Layouts of operands.
        results: Global shapes of results.
        wanted: Layouts of results.
        mesh: The mesh.
    """
    axes: list[Axes] = []
    if rule is None or name in WHOLE:
        reads = tuple(((),) * len(shape) for shape in shapes)
        made: Sequence[Layout] = [((),) * len(shape) for shape in results]
        summed: Axes = ()
    else:
        axes, summed = _axes(name, rule, shapes, layouts, wanted, mesh)
        sizes = rule.factor_sizes
        reads = tuple(from_factors(mapping, axes, sizes, mesh) for mapping in rule.operand_mappings)
        made = [from_factors(mapping, axes, sizes, mesh) for mapping in rule.result_mappings]
    brought = tuple(moves(shape, layout, read, mesh) for shape, layout, read in zip(shapes, layouts, reads))
    shifts: tuple[Move, ...] = ()
    if rule is not None and name in SHIFTS and any(axes[factor] for factor in rule.permutation):
        # At most an operand's piece comes from a neighbour, at most the result's.
        piece = local_shape(results[0], made[0], mesh)
        pieces = [local_shape(shape, read, mesh) for shape, read in zip(shapes, reads) if shape]
        shifts = tuple(Move("collective_permute", (), min(own, piece, key=math.prod)) for own in pieces)
    sums: list[tuple[Move, ...]] = []
    for shape, layout, target in zip(results, made, wanted):
        after = moves(shape, layout, target, mesh)
        scatters = not after and set(summed) <= set(all_axes(target))
        adding = (Move("all_reduce", summed, local_shape(shape, layout, mesh), scatters),) if summed else ()
        sums.append((*shifts, *adding, *after))
    return Choice(reads, tuple(made), brought, tuple(sums))


def _axes(
    name: str, rule: OpShardingRule, shapes: Sequence[Shape], layouts: Sequence[Layout], wanted: Sequence[Layout], mesh: Mesh
) -> tuple[list[Axes], Axes]:
    """The axes of every factor, and those over which results are added up."""
    sizes = rule.factor_sizes
    operands = [to_factors(m, layout, sizes, mesh) for m, layout in zip(rule.operand_mappings, layouts)]
    results = [to_factors(m, layout, sizes, mesh) for m, layout in zip(rule.result_mappings, wanted)]
    axes: list[Axes] = [()] * rule.num_factors
    if name in DOTS:
        return _product_axes(rule, shapes, operands, results[0], mesh)
    summed: list[AxisRef] = []
    kept = set(range(rule.num_factors)) - set(rule.need_replication)
    sources = operands if name in REDUCTIONS else results
    for factor in sorted(kept):
        if factor in rule.reduction:
            axes[factor] = next((found[factor] for found in operands if found.get(factor)), ())
            summed += axes[factor]
        else:
            axes[factor] = next((found[factor] for found in sources if factor in found), ())
    if summed and name not in REDUCTIONS:
        # A result cannot be cut by what it is a sum over.
        for factor in kept - set(rule.reduction):
            axes[factor] = _until(axes[factor], summed)
    return axes, tuple(summed)


def _product_axes(
    rule: OpShardingRule, shapes: Sequence[Shape], operands: Sequence[dict[int, Axes]], result: dict[int, Axes], mesh: Mesh
) -> tuple[list[Axes], Axes]:
    lhs, rhs = operands
    axes: list[Axes] = [()] * rule.num_factors
    both = [factor for factor in rule.reduction if factor in lhs and factor in rhs]
    same = _matching(rule, shapes, both, lhs, rhs, result, mesh)
    summed = [axis for cut in same.values() for axis in cut]
    for factor, cut in result.items():
        if set(cut) & set(summed):
            has = lhs.get(factor, rhs.get(factor, ()))
            taken = {*summed, *(axis for other in result if other != factor for axis in result[other])}
            other_axes = has if has and not taken.intersection(has) else _spare(cut, taken, lhs, rhs, mesh)
            axes[factor] = _common(_until(cut, summed), has) or other_axes
        else:
            axes[factor] = cut
    if not summed:
        source = _one_sided(rule, shapes, lhs, rhs, axes, result, mesh)
        summed = [axis for cut in source.values() for axis in cut]
        for factor in both:
            axes[factor] = source.get(factor, ())
    else:
        for factor, cut in same.items():
            axes[factor] = cut
    return axes, tuple(summed)


def _matching(
    rule: OpShardingRule,
    shapes: Sequence[Shape],
    both: Sequence[int],
    lhs: dict[int, Axes],
    rhs: dict[int, Axes],
    result: dict[int, Axes],
    mesh: Mesh,
) -> dict[int, Axes]:
    """Axes of the summed dimensions that both sides are cut by into as many pieces.

    Where these are along other axes, one side changes places: that whose axes the result has, or else the smaller one
    (PartitionDotGroupOnContracting in dot_handler.cc).
    """
    found = {factor: lhs[factor] for factor in both if lhs[factor] == rhs[factor]}
    used = {axis for cut in result.values() for axis in cut}
    pieces = [
        local_elements(shape, tuple(tuple(a for f in fs for a in side.get(f, ())) for fs in mapping), mesh)
        for shape, side, mapping in zip(shapes, (lhs, rhs), rule.operand_mappings)
    ]
    for factor in both:
        a, b = lhs[factor], rhs[factor]
        if a == b or not a or size_of(a, mesh) != size_of(b, mesh):
            continue
        for cut, other in sorted(
            ((a, rhs), (b, lhs)), key=lambda way: (bool(used.intersection(way[0])), pieces[1 if way[1] is lhs else 0] * -1)
        ):
            taken = {axis for f, axes in other.items() if f != factor for axis in axes}
            if not taken.intersection(cut) and not {axis for axes in found.values() for axis in axes}.intersection(cut):
                found[factor] = cut
                break
    return found


def _spare(cut: Axes, taken: set[AxisRef], lhs: dict[int, Axes], rhs: dict[int, Axes], mesh: Mesh) -> Axes:
    """As many pieces along axes that nothing is cut by, in place of axes that the result is summed over; none where there are not as many.

    Each device computes the pieces of others then, which change places afterwards.
    """
    used = {*taken, *(axis for side in (lhs, rhs) for axes in side.values() for axis in axes)}
    free = [part for axis in mesh.axes for part in parts(AxisRef(axis.name), mesh) if part not in used]
    size = size_of(cut, mesh)
    for count in range(1, len(free) + 1):
        if size_of(free[:count], mesh) == size:
            return tuple(free[:count])
    return ()


def _one_sided(
    rule: OpShardingRule,
    shapes: Sequence[Shape],
    lhs: dict[int, Axes],
    rhs: dict[int, Axes],
    axes: Sequence[Axes],
    result: dict[int, Axes],
    mesh: Mesh,
) -> dict[int, Axes]:
    """Axes on the summed dimensions of one side, where adding up the result is less than gathering the side; none elsewhere.

    The other side must be whole, and all devices must have a part in it (should_partition_contracting_dim in dot_handler.cc). Where the
    result has the axes, the side is brought to as many pieces along axes that are free.
    """
    used = {axis for cut in result.values() for axis in cut}
    out = local_elements([rule.factor_sizes[f] for f in result], [axes[f] for f in result], mesh)
    for i, (own, other) in enumerate(((lhs, rhs), (rhs, lhs))):
        contracted = {factor: own[factor] for factor in rule.reduction if own.get(factor)}
        if not contracted or any(set(other.get(factor, ())) - used for factor in rule.reduction):  # what the result has is gathered first
            continue
        if len(contracted) == 1 and used.intersection(*contracted.values()):
            ((factor, cut),) = contracted.items()
            contracted = {factor: _spare(cut, used, lhs, rhs, mesh)}
        parts_of = [axis for cut in contracted.values() for axis in cut]
        if not parts_of or used.intersection(parts_of):
            continue
        if size_of([*parts_of, *used], mesh) != mesh.size or any(axes[f] != own[f] for f in own if f in result):
            continue
        if any(axes[f] != other[f] for f in other if f in result):
            continue
        elements = local_elements(shapes[i], tuple((axes[m[0]] if m[0] in result else ()) for m in rule.operand_mappings[i]), mesh)
        if elements > out:
            return contracted
    return {}


def _until(axes: Axes, taken: Sequence[AxisRef]) -> Axes:
    """The axes before the first of those that are taken."""
    for i, axis in enumerate(axes):
        if axis in taken:
            return axes[:i]
    return axes


def _common(first: Axes, second: Axes) -> Axes:
    """What both begin with."""
    for i, (a, b) in enumerate(zip(first, second)):
        if a != b:
            return first[:i]
    return first[: min(len(first), len(second))]
