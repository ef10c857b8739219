"""Strategies of XLA's partitioner: the axes that an op runs under, and the collectives inside of it.

Most ops run as their result is sharded: operands are brought to it. A reduction runs as its operand is sharded, and its result is brought
to where it is wanted. A gather runs as its operand is sharded along the indexed dimensions, and a scatter as its result is: indices and
updates are brought to axes that are left. A matrix product adds up partial results over axes that cut a summed dimension of both sides in
the same way; all other axes are those of the result. Where these are summed over, they are those of the side, or as many pieces along axes
that are free (xla/service/spmd/dot_handler.cc). No reduce-scatters are made: an all-reduce, and a slice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shardy_py.dialect import Mesh, OpShardingRule
from shardy_py.dialect.axis import Axes
from shardy_py.partition.factor_axes import Exact, factor_axes
from shardy_py.partition.layouts import Layout, from_factors, local_shape, to_factors
from shardy_py.partition.routes import Move

SHIFTS = frozenset(("stablehlo.slice", "stablehlo.concatenate", "stablehlo.pad"))
"""Ops that fetch a part of their piece from neighbours where the dimension that they cut or extend is sharded."""
WHOLE = frozenset(("stablehlo.fft",))
"""Ops that run on whole operands."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Strategy:
    """The layouts that an op runs in, whatever it costs to bring values there and back.

    Attributes:
        summed: Axes over which results are added up.
        inside: The collectives of the op itself, which fetch parts of its pieces from neighbours.
    """

    reads: tuple[Layout, ...]
    makes: tuple[Layout, ...]
    summed: Axes = ()
    inside: tuple[Move, ...] = ()


def strategy(
    name: str, rule: OpShardingRule | None, shapes: Sequence[Shape], layouts: Sequence[Layout], count: int, mesh: Mesh
) -> Strategy:
    """The layouts in which an op reads and makes values; without a rule it runs on whole operands."""
    if rule is None or name in WHOLE:
        whole = tuple(((),) * len(shape) for shape in shapes)
        return Strategy(whole[:count], whole[count:])
    sizes = rule.factor_sizes
    axes, summed = axes_of_factors(name, rule, shapes[:count], layouts[:count], layouts[count:], mesh)
    reads = tuple(from_factors(mapping, axes, sizes, mesh) for mapping in rule.operand_mappings)
    makes = tuple(from_factors(mapping, axes, sizes, mesh) for mapping in rule.result_mappings)
    shifted = name in SHIFTS and any(axes[factor] for factor in rule.permutation)
    inside = shifts(shapes[:count], shapes[count], reads, makes[0], mesh) if shifted else ()
    return Strategy(reads, makes, summed, inside)


def axes_of_factors(
    name: str, rule: OpShardingRule, shapes: Sequence[Shape], layouts: Sequence[Layout], result_layouts: Sequence[Layout], mesh: Mesh
) -> tuple[list[Axes], Axes]:
    """The axes of every factor of an op, and the axes over which its results are summed."""
    exact = Exact(mesh)
    operands = [to_factors(m, layout, rule.factor_sizes, mesh) for m, layout in zip(rule.operand_mappings, layouts)]
    results = [to_factors(m, layout, rule.factor_sizes, mesh) for m, layout in zip(rule.result_mappings, result_layouts)]
    axes, summed = factor_axes(name, rule, shapes, operands, results, exact)
    return axes, exact.axes(summed)


def shifts(shapes: Sequence[Shape], result: Shape, reads: Sequence[Layout], makes: Layout, mesh: Mesh) -> tuple[Move, ...]:
    """The collectives of an op of `SHIFTS`: at most an operand's piece, and at most the result's, comes from a neighbour."""
    piece = local_shape(result, makes, mesh)
    pieces = (local_shape(shape, read, mesh) for shape, read in zip(shapes, reads) if shape)
    return tuple(Move("collective_permute", (), min(own, piece, key=math.prod)) for own in pieces)
