"""The search of a planner on a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardy_py.plan.checks.specs import sharding_text
from shardy_py.plan.movements import format_bytes
from shardy_py.plan.record import PlanRecord

LISTED = 12
"""Inputs of an alternative that a page lists, of those that are sharded otherwise than in the plan."""

STATUS_TEXTS = {
    "optimal": "The gap that was required is reached.",
    "time_limit": "Time ran out before the gap that was required was reached; a better plan may exist.",
    "work_limit": "The search ended before the gap that was required was reached, with time left; the bound may be below any plan.",
    "template": "Nothing cheaper than a template was found.",
}


def search_data(plan: PlanRecord, numbers: Mapping[str, int]) -> dict[str, Any]:
    """The entry of a page's data: `search`, of a plan whose shardings were chosen."""
    search = plan.search
    if search is None:
        return {}
    own = {v.path: "P()" if v.sharding is None else sharding_text(v.sharding) for v in plan.inputs}
    alternatives: list[list[Any]] = []
    for alternative in search.alternatives:
        others = [[numbers[path], path, spec] for path, spec in alternative.inputs.items() if path in own and spec != own[path]]
        alternatives.append([alternative.name, alternative.objective_seconds, others[:LISTED], max(0, len(others) - LISTED)])
    budget = "" if search.budget_bytes is None else f" of {format_bytes(search.budget_bytes)}"
    return {
        "search": {
            "hardware": search.hardware,
            "seconds": search.objective_seconds,
            "bound": search.lower_bound_seconds if search.has_bound else None,
            "gap": f"{search.gap:.1%} gap" if search.has_bound else search.bound_text,
            "peak": f"{format_bytes(search.peak_bytes)}{budget}",
            "status": STATUS_TEXTS[search.status],
            "space": [[name, str(text)] for name, text in search.space.items()],
            "alternatives": alternatives,
        }
    }
