"""`Check`: what a step does on its mesh, in one text: likely mistakes, what moves and where, what it costs, whether it fits."""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass
from typing import Any

from shardy_py.cost.hardware import Hardware
from shardy_py.dialect.format import printable, sizes_text
from shardy_py.plan.checks.table import findings_of
from shardy_py.plan.cost_analysis import CostAnalysis, summary_rows
from shardy_py.plan.costing import analyse as cost_of
from shardy_py.plan.executed import remark_on
from shardy_py.plan.findings import Findings
from shardy_py.plan.memory.analysis import MemoryAnalysis
from shardy_py.plan.memory.analysis import analyse as memory_of
from shardy_py.plan.memory.analysis import summary_rows as memory_rows
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.report import Report, table
from shardy_py.view.text import findings_lines, moves_lines

MOVES = 12
"""Lines of what moves."""


@dataclass(frozen=True, repr=False)
class Check(Report):
    """What `sp.check` finds out about a step.

    Attributes:
        plan: The plan of the step as it is written; nothing about the step is changed.
        hardware: What cost and memory are for; None without.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> report = sp.check(jax.jit(jnp.tanh), jax.ShapeDtypeStruct((8, 8), jnp.float32), mesh={"data": 4}, hardware="v5e")
        >>> report.is_clean, report.memory.fits
        (True, True)
    """

    plan: PlanRecord
    hardware: str | Hardware | None = None

    @property
    def findings(self) -> Findings:
        """Likely mistakes: errors, warnings, notes."""
        return findings_of(self.plan)

    @functools.cached_property
    def cost(self) -> CostAnalysis:
        """As `Plan.cost_analysis`."""
        return cost_of(self.plan, self.hardware)

    @functools.cached_property
    def memory(self) -> MemoryAnalysis:
        """As `Plan.memory_analysis`."""
        return memory_of(self.plan, self.hardware)

    @property
    def is_clean(self) -> bool:
        """Whether there is no warning and no error, and the step fits the hardware's memory."""
        return self.memory.fits is not False and all(finding.severity == "info" for finding in self.findings)

    def as_text(self, limit: int = MOVES) -> str:
        """Findings, moves with their lines, cost and memory.

        Args:
            limit: Lines of what moves.
        """
        plan = self.plan
        lines = [f"check of {plan.name} on mesh {sizes_text(plan.mesh.shape)}"]
        lines += findings_lines(tuple(f for f in self.findings if f.severity != "info"), None, 140) or ["findings  none"]
        lines += moves_lines(plan, 3 * limit) or ["nothing moves between devices"]
        lines += [f"  {remark}"] if (remark := remark_on(plan)) else []
        rows = [*summary_rows(self.cost), *memory_rows(self.memory)]
        return printable("\n".join([*lines, *table("on each device", rows)]))

    def to_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, strings and numbers, with a version."""
        parts = {"cost": self.cost.to_dict(), "memory": self.memory.to_dict(), "findings": [asdict(f) for f in self.findings]}
        return {"format": "shardy_py.check", "version": 1, "name": self.plan.name, "is_clean": self.is_clean, **parts}
