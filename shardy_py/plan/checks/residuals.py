"""Finds scans whose residuals are most of the memory of a call."""

from __future__ import annotations

from collections.abc import Iterator

from shardy_py.passes.dataflow import WHILE
from shardy_py.plan.checks.context import CheckContext
from shardy_py.plan.findings import Finding
from shardy_py.plan.memory import analysis as memory_analysis

LARGE = 1 << 30
"""1 GiB: stacks of scans from which a memory analysis and plans of variants run; both take longer than all checks."""


def smaller_peak(context: CheckContext) -> Iterator[Finding]:
    """Changes that would lower the peak, for plans whose scans stack up `LARGE` bytes and more.

    Where it should fit, which is not known here, `plan.memory_analysis(hardware).findings` has more to say.
    """
    stacked = 0
    for op, manual in context.ops:
        if op.name == WHILE and op.primitive == "scan" and not manual:
            stacked += sum(context.local(value.type, value.sharding) for value in op.results)
    if stacked >= LARGE:
        yield from memory_analysis.analyse(context.plan).findings
