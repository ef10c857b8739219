"""Reasons why values lack axes, for the values of a plan that a reader opens first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from shardy_py.plan.explain import explain
from shardy_py.plan.explanation import KINDS, Missing
from shardy_py.plan.record import PlanRecord

if TYPE_CHECKING:
    from shardy_py.plan.values import PlannedValue

MOST = 200
"""Of that many values a page says it: a search through the program for each axis that one lacks takes milliseconds."""

_NOTHING = frozenset(("absent", "unrelated"))
"""Kinds that name nothing that is in the way."""

_ORDER = {kind: n for n, kind in enumerate(KINDS)}


def absences(plan: PlanRecord, with_findings: Iterable[int], sizes: Sequence[int]) -> list[list[int | str]]:
    """The obstacles of axes that values do not have: of those with findings, and of inputs and outputs, the largest first.

    Returns:
        Rows `[number of the value, axis, why, what to do]`, one per axis that no dimension has and that something keeps away from one; of
        several dimensions the reason that says most. No rows where the plan keeps no record of its propagation.
    """
    if not plan.propagation.recorded:
        return []
    axes = [axis.name for axis in plan.mesh.axes if axis.size > 1]
    rows: list[list[int | str]] = []
    for number in values_to_explain(plan, with_findings, sizes):
        value = plan.values[number]
        there = set() if value.sharding is None else {axis.name for dim in value.sharding.dims for axis in dim.axes}
        for axis in axes:
            if axis not in there:
                rows += ([number, axis, why.message, why.fix] for why in _best(plan, value, axis))
    return rows


def values_to_explain(plan: PlanRecord, with_findings: Iterable[int], sizes: Sequence[int], most: int = MOST) -> list[int]:
    """The numbers of the values whose missing axes a page explains, in order."""
    count, outputs = len(plan.values), len(plan.outputs)
    ends = [*range(len(plan.inputs)), *range(count - outputs, count)]
    ends.sort(key=lambda number: -sizes[number])
    chosen = dict.fromkeys((*sorted(set(with_findings)), *ends))
    return sorted([number for number in chosen if plan.values[number].shape][:most])


def _best(plan: PlanRecord, value: PlannedValue, axis: str) -> list[Missing]:
    missing = [why for why in explain(plan, value, axis, None).missing if why.kind not in _NOTHING]
    return sorted(missing, key=lambda why: _ORDER[why.kind])[:1]
