"""Strategies of ops: the axes along which an op runs, by the layouts of its operands and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardy_py.dialect import Mesh, OpShardingRule
from shardy_py.ir import Op, Type
from shardy_py.partition.layouts import Layout, layout_of
from shardy_py.partition.op import CHEAP, OpSpec
from shardy_py.partition.strategy import Strategy, strategy
from shardy_py.partition.workarounds import workaround, workaround_of
from shardy_py.rules import rule_of
from shardy_py.rules.traits import CONSTRAINTS

FORWARDING = CONSTRAINTS | {"stablehlo.optimization_barrier", "sdy.propagation_barrier"}
"""Ops each of whose results is an operand, brought to the layout of the result."""


StrategyCache = dict[tuple[str, OpShardingRule | None, tuple[Layout, ...], tuple[Type, ...], Mesh], Strategy]
"""Name, rule, layouts and types of an op, and its mesh -> its strategy."""


def xla_of(op: Op, mesh: Mesh, meshes: Mapping[str, Mesh], cache: StrategyCache, *, manual: bool = False) -> Strategy:
    """As `strategy_of`, of an op of a program.

    Args:
        cache: Filled with strategies; building an `OpSpec` of every op, to look it up, would cost more than most strategies.
    """
    instead = None if manual else workaround_of(op, mesh, meshes)
    if instead is not None:
        return instead
    values = (*op.operands, *op.results)
    layouts = tuple([layout_of(v.sharding, v.type.rank, mesh) for v in values])
    rule, types = rule_of(op), tuple([v.type for v in values])
    key = (op.name, rule, layouts, types, mesh)
    if key not in cache:
        cache[key] = strategy(op.name, rule, [type_.shape for type_ in types], layouts, len(op.operands), mesh)
    return cache[key]


def strategy_of(op: OpSpec, layouts: Sequence[Layout], mesh: Mesh) -> Strategy:
    """The strategy of an op: forwarding ops run in the layout of their result, constants as they are, at-risk ops by workaround."""
    operands, results = tuple(layouts[: len(op.operands)]), tuple(layouts[len(op.operands) :])
    if op.name in FORWARDING:
        return Strategy(results, results)
    if op.name in CHEAP:
        return Strategy(operands, results)
    shapes = [type_.shape for type_ in op.types]
    return workaround(op, layouts, mesh) or strategy(op.name, op.rule, shapes, layouts, len(op.operands), mesh)
