"""Strategies of ops: the axes along which an op runs, by the layouts of its operands and results."""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.dialect import Mesh
from shardy_py.partition.layouts import Layout
from shardy_py.partition.op import CHEAP, OpSpec
from shardy_py.partition.strategy import Strategy, strategy
from shardy_py.partition.workarounds import workaround
from shardy_py.rules.traits import CONSTRAINTS

FORWARDING = CONSTRAINTS | {"stablehlo.optimization_barrier", "sdy.propagation_barrier"}
"""Ops each of whose results is an operand, brought to the layout of the result."""


def strategy_of(op: OpSpec, layouts: Sequence[Layout], mesh: Mesh) -> Strategy:
    """The strategy of an op: forwarding ops run in the layout of their result, constants as they are, at-risk ops by workaround."""
    operands, results = tuple(layouts[: len(op.operands)]), tuple(layouts[len(op.operands) :])
    if op.name in FORWARDING:
        return Strategy(results, results)
    if op.name in CHEAP:
        return Strategy(operands, results)
    shapes = [type_.shape for type_ in op.types]
    return workaround(op, layouts, mesh) or strategy(op.name, op.rule, shapes, layouts, len(op.operands), mesh)
