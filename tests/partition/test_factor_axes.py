"""The axes under which ops run, by the layouts of their operands and results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest

from shardy_py.dialect import AxisRef, Mesh, OpShardingRule
from shardy_py.dialect.axis import Axes
from shardy_py.partition.factor_axes import axes_of_factors, axis_lists, factor_axes
from shardy_py.partition.layouts import Layout, from_factors, parts, to_factors
from shardy_py.rules.builder import Signature
from shardy_py.rules.contraction import dot_general

SQUARE = Mesh([("x", 4), ("y", 4)])
X, Y = (AxisRef("x", 1, 2), AxisRef("x", 2, 2)), (AxisRef("y", 1, 2), AxisRef("y", 2, 2))
PRODUCT = dot_general(
    Signature(
        ((96, 96), (96, 96)),
        ((96, 96),),
        {
            "lhs_batching_dimensions": (),
            "rhs_batching_dimensions": (),
            "lhs_contracting_dimensions": (1,),
            "rhs_contracting_dimensions": (0,),
        },
    )
)


class Run(NamedTuple):
    """The layouts in which an op reads and makes values, and the axes over which results are added up."""

    reads: tuple[Layout, ...]
    makes: tuple[Layout, ...]
    summed: Axes


def strategy(name: str, rule: OpShardingRule, layouts: Sequence[Layout], mesh: Mesh) -> Run:
    lists, count = axis_lists(mesh), len(rule.operand_mappings)
    dealt = [to_factors(mapping, layout, rule.factor_sizes, mesh) for mapping, layout in zip(rule.mappings, layouts)]
    tensors = [{factor: lists.number(axes) for factor, axes in each.items()} for each in dealt]
    numbers, summed = factor_axes(name, rule, tensors[:count], tensors[count:], lists)
    axes = [lists.lists.items[np.asarray(number).item()] for number in numbers]
    reads, makes = (
        tuple(from_factors(mapping, axes, rule.factor_sizes, mesh) for mapping in mappings)
        for mappings in (rule.operand_mappings, rule.result_mappings)
    )
    return Run(reads, makes, lists.axes(np.asarray(summed).item()))


@pytest.mark.parametrize(
    ("lhs", "rhs", "wanted", "reads", "made", "summed"),
    [
        (((), X), (X, ()), (Y, ()), ((Y, X), (X, ())), (Y, ()), X),
        (((), X), (X, ()), (X, ()), (((), X), (X, ())), ((), ()), X),
        ((Y, X), ((), ()), (Y, ()), ((Y, ()), ((), ())), (Y, ()), ()),
        (((), X), (Y, ()), ((), ()), (((), X), (X, ())), ((), ()), X),
    ],
    ids=["both sides", "both sides and the result", "one side", "different axes"],
)
def test_products(lhs: Layout, rhs: Layout, wanted: Layout, reads: tuple[Layout, ...], made: Layout, summed: Axes) -> None:
    run = strategy("stablehlo.dot_general", PRODUCT, (lhs, rhs, wanted), SQUARE)
    assert run == (reads, (made,), summed)


def test_a_region_inside_of_another_does_not_cut_its_axes() -> None:
    whole, mesh = (AxisRef("x"),), Mesh([("x", 4)])
    layouts = [((), whole), (whole, ()), ((), ())]
    axes = axes_of_factors("stablehlo.dot_general", PRODUCT, layouts, mesh)
    assert [axes[factor] for factor in PRODUCT.reduction] == [whole]


ALONG_X, ALONG_Y, BOTH = (AxisRef("x"),), (AxisRef("y"),), (AxisRef("x"), AxisRef("y"))


@pytest.mark.parametrize(
    ("indices", "table", "cut", "summed"),
    [(ALONG_Y, ALONG_X, ALONG_Y, ALONG_X), (ALONG_X, ALONG_X, (), ALONG_X), (BOTH, ALONG_Y, ALONG_X, ALONG_Y)],
    ids=["apart", "whole", "rest"],
)
def test_indices_are_cut_by_axes_that_the_table_leaves(indices: Axes, table: Axes, cut: Axes, summed: Axes) -> None:
    mesh = Mesh([("x", 4), ("y", 2)])
    table_at, indices_at, moved_to = split(mesh, table, ()), split(mesh, indices, ()), split(mesh, cut, ())
    factors = "{i=16, j=32, k=64, l=1}"
    rule = OpShardingRule.parse(f"#sdy.op_sharding_rule<([k, j], [i, l])->([i, j]) {factors} reduction={{k}} need_replication={{l}}>")
    run = strategy("stablehlo.gather", rule, (table_at, indices_at, indices_at), mesh)
    assert run == ((table_at, moved_to), (moved_to,), table_at[0])

    rule = OpShardingRule.parse(
        f"#sdy.op_sharding_rule<([k, j], [i, l], [i, j])->([k, j]) {factors} reduction={{i}} need_replication={{l}}>"
    )
    run = strategy("stablehlo.scatter", rule, (table_at, indices_at, indices_at, table_at), mesh)
    assert run == ((table_at, moved_to, moved_to), (table_at,), moved_to[0])


def split(mesh: Mesh, *dims: Axes) -> Layout:
    """A layout in parts of prime size, as strategies have them."""
    return tuple(tuple(part for axis in dim for part in parts(axis, mesh)) for dim in dims)
