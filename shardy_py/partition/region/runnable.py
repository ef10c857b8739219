"""The axes under which an equation can run on local arrays: every operand and result must have a layout."""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.dialect import FactorType, Mesh, OpShardingRule
from shardy_py.dialect.axis import Axes
from shardy_py.partition.region.layouts import Layout, layout, num_shards


def runnable(rule: OpShardingRule, axes: Sequence[Axes], mesh: Mesh, uneven: frozenset[int], exchanges: bool) -> tuple[Axes, ...]:
    """Trims the axes of every factor to those under which the equation can run.

    A device runs an equation on blocks of its operands, so a factor may be cut only where its blocks are blocks of every dimension that
    it is part of. Of a dimension with several factors a device has contiguous elements: a factor is cut only where all factors before it
    are cut into single elements, and no factor is cut unevenly.

    Example:
        >>> from shardy_py.dialect import AxisRef
        >>> reshape = OpShardingRule((16, 8), (((0, 1),),), (((0,), (1,)),))
        >>> runnable(reshape, [(), (AxisRef("x"),)], Mesh([("x", 2)]), frozenset(), False)
        ((), ())
    """
    left = list(axes)
    for factor, (factor_axes, size, kind) in enumerate(zip(axes, rule.factor_sizes, rule.factor_types)):
        if not factor_axes:
            continue
        if kind is FactorType.NEED_REPLICATION or (kind is FactorType.PERMUTATION and not exchanges):
            left[factor] = ()
        elif factor not in uneven:
            while size % num_shards(left[factor], mesh):
                left[factor] = left[factor][:-1]
    if rule.has_compound_dims:
        _keep_contiguous(rule, left, mesh)
    return tuple(left)


def _keep_contiguous(rule: OpShardingRule, left: list[Axes], mesh: Mesh) -> None:
    """Drops axes until every dimension with several factors lies in contiguous blocks."""
    compound = [dim for mapping in rule.mappings for dim in mapping if len(dim) > 1]
    changed = True
    while changed:
        changed = False
        for dim in compound:
            single = True
            for factor in dim:
                count, size = num_shards(left[factor], mesh), rule.factor_sizes[factor]
                if left[factor] and (not single or size % count):
                    left[factor] = left[factor][:-1] if single else ()
                    changed = True
                    count = num_shards(left[factor], mesh)
                single = single and count == size


def layouts_under(rule: OpShardingRule, axes: Sequence[Axes]) -> list[Layout]:
    """The layouts of operands, then of results, for `runnable` axes of factors."""
    layouts: dict[Sequence[Sequence[int]], Layout] = {}
    compound = rule.has_compound_dims
    for mapping in rule.mappings:
        if mapping not in layouts:
            dims = [sum([axes[f] for f in dim], ()) for dim in mapping] if compound else [axes[factor] for (factor,) in mapping]
            layouts[mapping] = layout(dims)
    return [layouts[mapping] for mapping in rule.mappings]
