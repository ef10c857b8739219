"""The error for a memory budget that no plan fits: the least that was found, its largest arrays, and remedies."""

from __future__ import annotations

from shardy_py.plan.memory.analysis import analyse as memory_of
from shardy_py.plan.movements import format_bytes
from shardy_py.plan.record import PlanRecord
from shardy_py.planner.errors import PlannerInfeasible
from shardy_py.planner.options import Planner

LISTED = 5
"""Arrays that the error names."""


def infeasible(plan: PlanRecord, planner: Planner, *remedies: str) -> PlannerInfeasible:
    """The error for a budget that nothing fits.

    Args:
        plan: The plan with the least peak, which is over the budget.
        planner: The options.
        remedies: Those to name first.
    """
    memory, budget = memory_of(plan, planner.hardware), planner.budget or 0
    least, peak, relief = memory.peak_memory_in_bytes, memory.peak, memory.relief
    largest = memory.contributors[:LISTED]
    place = f" at {peak.location}" if peak is not None and peak.location else ""
    listed = ", ".join(f"{c.title} {format_bytes(c.bytes)}" + (f" ({c.location})" if c.location else "") for c in largest)
    fixes = list(remedies)
    if relief is not None and relief.donation_bytes:
        fixes.append(f"donate what results could replace, {format_bytes(relief.donation_bytes)} (donate_argnums)")
    if relief is not None and relief.residual_bytes:
        fixes.append(f"recompute residuals of scans, {format_bytes(relief.residual_bytes)} (jax.checkpoint)")
    fixes.append(f"use more devices than {plan.mesh.size}")
    return PlannerInfeasible(
        f"no plan fits {format_bytes(budget)} a device: the least peak found is {format_bytes(least)}{place}",
        minimum_bytes=least,
        budget_bytes=budget,
        contributors=[(c.name, c.bytes) for c in largest],
        where=f"Planner(memory_bytes=...), {plan.name} on {plan.mesh}",
        why=f"the largest arrays there are {listed}",
        fix=", or ".join(fixes),
    )
