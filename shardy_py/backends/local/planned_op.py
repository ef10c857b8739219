"""The op of a plan that an equation is, and the axes that a planner's model runs it along."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shardy_py.dialect import Mesh, OpShardingRule
from shardy_py.dialect.axis import Axes
from shardy_py.partition.region.layouts import Layout, dim_axes
from shardy_py.partition.strategy import axes_of_factors


class PlannedOp(NamedTuple):
    """An op and the layouts that were planned for its values."""

    name: str
    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]

    def axes(self, rule: OpShardingRule, shapes: Sequence[tuple[int, ...]], mesh: Mesh) -> list[Axes]:
        """The axes of every factor, as `partition/strategy` decides between the planned layouts."""
        operands, results = list(map(dim_axes, self.operands)), list(map(dim_axes, self.results))
        return axes_of_factors(self.name, rule, shapes, operands, results, mesh)[0]
