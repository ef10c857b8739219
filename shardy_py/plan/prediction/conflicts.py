"""Conflicts between the shardings of an op, whose propagation then depends on the order in which ops are visited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardy_py.dialect import AxisRef, Mesh, OpShardingRule, TensorSharding
from shardy_py.dialect.axis import Axes
from shardy_py.ir import Op
from shardy_py.partition.layouts import Layout, layout_of, mesh_of, to_factors

ConflictCache = dict[tuple[OpShardingRule, tuple[TensorSharding | None, ...]], bool]
"""Rule and shardings -> whether they conflict."""


def conflicts(op: Op, meshes: Mapping[str, Mesh], cache: ConflictCache) -> bool:
    """Whether the shardings of an op's operands and results conflict."""
    rule = op.rule
    assert rule is not None
    values = (*op.operands, *op.results)
    key = (rule, tuple([v.sharding for v in values]))
    if key not in cache:
        mesh = mesh_of([v.sharding for v in values], meshes)
        layouts = [] if mesh is None else [layout_of(v.sharding, v.type.rank, mesh) for v in values]
        cache[key] = mesh is not None and conflict(rule, layouts, mesh)
    return cache[key]


def conflict(rule: OpShardingRule, layouts: Sequence[Layout], mesh: Mesh) -> bool:
    """Whether tensors of an op disagree on the axes of a factor, or have one axis on different factors.

    A tensor with fewer axes than another does not disagree: propagation can add the missing ones.
    """
    most: dict[int, Axes] = {}
    factor_of: dict[AxisRef, int] = {}
    for mapping, layout in zip((*rule.operand_mappings, *rule.result_mappings), layouts):
        for factor, axes in to_factors(mapping, layout, rule.factor_sizes, mesh).items():
            longest = most.get(factor, ())
            if any(a != b for a, b in zip(axes, longest)):
                return True
            if len(axes) > len(longest):
                most[factor] = axes
            if any(factor_of.setdefault(axis, factor) != factor for axis in axes):
                return True
    return False
