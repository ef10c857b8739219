"""The figures that decide between finished plans: seconds, peak, and bytes received, read off their cost and memory analyses."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.plan.costing import analyse as cost_of
from shardy_py.plan.memory.analysis import analyse as memory_of
from shardy_py.plan.record import PlanRecord
from shardy_py.planner.options import Planner
from shardy_py.planner.propagated import Trial


@dataclass(frozen=True, eq=False)
class Candidate:
    """An assignment with the figures of its finished plan.

    Attributes:
        name: For people to read.
        assignment: Per variable of the model, the number of its strategy.
        plan: Its plan under `lowering="jit"`.
        run: The plan as it runs, of which the figures are; `plan` itself unless that is a region of local arrays.
        seconds: The objective.
        peak: Of one device.
        results: Of a plan that propagation gives, whether results that no step hands on are sharded as in the assignment.
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
    """Seconds of a call of a plan.

    Args:
        plan: The plan.
        planner: Says on which hardware, and how much of what may overlap does.
    """
    step = cost_of(plan, planner.hardware, planner.links).step_seconds
    assert step is not None
    return planner.objective(step)


def peak_of(plan: PlanRecord, planner: Planner) -> int:
    """The peak of a device in bytes.

    Args:
        plan: The plan.
        planner: Says on which hardware.
    """
    return memory_of(plan, planner.hardware).peak_memory_in_bytes


def fits(plan: PlanRecord, planner: Planner) -> bool:
    """Whether the peak of a plan is within the budget.

    Args:
        plan: The plan.
        planner: Says on which hardware, and what the budget is.
    """
    return planner.budget is None or planner.fits(peak_of(plan, planner))


def received_of(plan: PlanRecord, planner: Planner) -> int:
    """Bytes that a device receives in a call of a plan.

    Args:
        plan: The plan.
        planner: Says on which hardware.
    """
    return sum(each.bytes for each in cost_of(plan, planner.hardware, planner.links).collectives)
