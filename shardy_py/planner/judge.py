"""The figures that decide between finished plans: seconds, peak, and bytes received, read off their cost and memory analyses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardy_py.cost.collectives import collective_seconds
from shardy_py.cost.hardware import lay_out
from shardy_py.cost.links import levels_of
from shardy_py.plan.collectives import axes_of
from shardy_py.plan.costing import analyse as cost_of
from shardy_py.plan.memory.analysis import analyse as memory_of
from shardy_py.plan.record import PlanRecord
from shardy_py.planner.options import Planner

EQUAL = 0.05
"""The part of the gap that a plan may cost more than the cheapest if it takes less memory: a budget may allow parameters to lie whole, at
tens of gigabytes, to spare a thousandth of the step."""

TINY = 1e-9
"""Bytes that take no time."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """An assignment with the figures of its finished plan.

    Attributes:
        run: The plan as it runs, of which the figures are; `plan` itself unless that is a region of local arrays.
    """

    name: str
    assignment: tuple[int, ...]
    plan: PlanRecord
    run: PlanRecord
    seconds: float
    peak: int
    results: bool = False


def objective(plan: PlanRecord, planner: Planner) -> float:
    """Seconds of a call of a plan."""
    step = cost_of(plan, planner.hardware, planner.links).step_seconds
    assert step is not None
    return planner.objective(step)


def peak_of(plan: PlanRecord, planner: Planner) -> int:
    """The peak of a device in bytes."""
    return memory_of(plan, planner.hardware).peak_memory_in_bytes


def latency_of(plan: PlanRecord, planner: Planner) -> tuple[int, float]:
    """The number of collectives in a call of a plan, and what they take however little they move."""
    sizes = dict(plan.mesh.shape)
    layout = lay_out(sizes, planner.machine, {**plan.lattices, **(planner.links or {})})
    collectives = [each.collective for each in cost_of(plan, planner.hardware, planner.links).collectives]
    seconds = (c.runs * collective_seconds(c.kind, TINY, levels_of(axes_of(c, sizes), layout, sizes)) for c in collectives)
    return sum(c.runs for c in collectives), sum(seconds)


def preferred(candidates: Sequence[Candidate], planner: Planner) -> Candidate:
    """The cheapest plan; of those that take as long the one with the lowest peak, the first of equals."""
    most = (1 + EQUAL * planner.gap) * min(each.seconds for each in candidates)
    return min((each for each in candidates if each.seconds <= most), key=lambda each: each.peak)
