"""Constraints of the user's on values inside that a planner keeps, and that cost much of the step."""

from __future__ import annotations

from collections.abc import Iterator

from shardy_py.plan.checks.context import CheckContext
from shardy_py.plan.cost_analysis import seconds_text
from shardy_py.plan.findings import Finding

KIND = "costly-constraint"


def costly_constraint(context: CheckContext) -> Iterator[Finding]:
    """Constraints that together cost more than a tenth of a planner's step, with the lines that cost most."""
    search = context.plan.search
    if search is None or not search.constraint_prices:
        return
    together, *lines = search.constraint_prices
    without = search.objective_seconds - together.seconds
    named = "".join(f"; {line.path} as {line.spec} alone {seconds_text(line.seconds)}" for line in lines)
    step = seconds_text(search.objective_seconds)
    message = (
        f"constraints inside cost {seconds_text(together.seconds)} of the step of {step}: about {seconds_text(without)} without{named}"
    )
    fix = (
        'drop these lines, or plan without them: Planner(annotations="ignore"), or "hint", which starts from them; names of dimensions'
        " become None, which is whole, where no rules are in force"
    )
    yield Finding(KIND, message, location=lines[0].path if lines else "", fix=fix)
