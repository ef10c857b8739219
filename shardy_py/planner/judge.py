"""The figures that decide between finished plans: seconds, peak, and bytes received, read off their cost and memory analyses."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.cost.collectives import collective_seconds
from shardy_py.cost.links import lay_out, levels_of
from shardy_py.plan.collectives import axes_of
from shardy_py.plan.costing import analyse as cost_of
from shardy_py.plan.memory.analysis import analyse as memory_of
from shardy_py.plan.record import PlanRecord
from shardy_py.planner.options import Planner
from shardy_py.planner.propagated import Trial

SENT_SHARE = 0.02
"""The part of the gap that a plan which sends less may cost more: at most a few microseconds of a step of 30 ms."""

MEMORY_SHARE = 0.2
"""The part of the gap that a region may cost more than the cheapest if it takes half of its memory or less: a budget may allow
parameters to lie whole, at tens of gigabytes, to spare a thousandth of the step."""

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

    @property
    def trial(self) -> Trial:
        """Its shardings of arguments and results."""
        return Trial(self.name, self.assignment, self.results)


def objective(plan: PlanRecord, planner: Planner) -> float:
    """Seconds of a call of a plan."""
    step = cost_of(plan, planner.hardware, planner.links).step_seconds
    assert step is not None
    return planner.objective(step)


def peak_of(plan: PlanRecord, planner: Planner) -> int:
    """The peak of a device in bytes."""
    return memory_of(plan, planner.hardware).peak_memory_in_bytes


def fits(plan: PlanRecord, planner: Planner) -> bool:
    """Whether the peak of a plan is within the budget."""
    return planner.budget is None or planner.fits(peak_of(plan, planner))


def latency_of(plan: PlanRecord, planner: Planner) -> tuple[int, float]:
    """The number of collectives in a call of a plan, and what they take however little they move."""
    sizes = dict(plan.mesh.shape)
    layout = lay_out(sizes, planner.machine, planner.links)
    collectives = [each.collective for each in cost_of(plan, planner.hardware, planner.links).collectives]
    seconds = (c.runs * collective_seconds(c.kind, TINY, levels_of(axes_of(c, sizes), layout, sizes)) for c in collectives)
    return sum(c.runs for c in collectives), sum(seconds)


def received_of(plan: PlanRecord, planner: Planner) -> int:
    """Bytes that a device receives in a call of a plan."""
    return sum(each.bytes for each in cost_of(plan, planner.hardware, planner.links).collectives)


def preferred(best: Candidate, other: Candidate, planner: Planner) -> Candidate:
    """The cheaper plan; within the gap the other if it takes half of the memory, or takes as long and receives less."""
    more = other.seconds - best.seconds
    takes_less = more <= MEMORY_SHARE * planner.gap * best.seconds and other.peak <= best.peak / 2
    is_equal = more <= SENT_SHARE * planner.gap * best.seconds
    if more < 0 or takes_less or (is_equal and received_of(other.run, planner) < received_of(best.run, planner)):
        return other
    return best
