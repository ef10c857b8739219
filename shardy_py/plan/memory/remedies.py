"""Remedies for a high peak: plans of variants of a function, whose memory is analysed as that of the plan itself."""

from __future__ import annotations

from collections.abc import Callable

from shardy_py.dialect.format import short_location
from shardy_py.ir.pieces import local_shape
from shardy_py.plan.checks.wording import GRAVE
from shardy_py.plan.collectives import format_bytes
from shardy_py.plan.donation import donatable
from shardy_py.plan.findings import Finding
from shardy_py.plan.memory.report import MemoryAnalysis, Relief
from shardy_py.plan.record import PlanRecord, Variant
from shardy_py.plan.values import PlannedValue

KIND = "smaller-peak"

MIN_SAVING = 0.05
"""A variant whose peak is lower by a smaller part is no remedy: estimates differ from compiled programs by as much."""

DOMINANT_SHARE = 0.5
"""Residuals dominate where they are this part of the peak."""

MAX_OPS = 50_000
"""Ops of a program from which on no variants are planned: each takes as long as the plan itself."""


def remedies(plan: PlanRecord, memory: MemoryAnalysis, analysed: Callable[[PlanRecord], MemoryAnalysis]) -> tuple[Finding, ...]:
    """Variants with a smaller peak, where the plan does not fit, or where residuals of scans are most of its peak; the best first."""
    peak, residuals = memory.peak_memory_in_bytes, _residual_bytes(plan, memory)
    dominated = residuals >= max(GRAVE, DOMINANT_SHARE * peak)
    if plan.variants is None or not (dominated or memory.fits is False) or sum(1 for _ in plan.program.walk()) > MAX_OPS:
        return ()
    smaller: list[tuple[int, Finding]] = []
    for variant in plan.variants.variants(plan, peak):
        after = analysed(variant.plan).peak_memory_in_bytes
        if after > (1 - MIN_SAVING) * peak:
            continue
        room = memory.hardware_bytes
        fits = "" if memory.fits is not False or room is None else ", which fits" if after <= room else ", which does not fit either"
        about = f"residuals of {_scans(variant)} are {format_bytes(residuals)} of {format_bytes(peak)}; " if variant.of_residuals else ""
        of = "" if variant.of_residuals else f" of {format_bytes(peak)}"
        message = f"{about}{variant.change} leaves {format_bytes(after)}{of}{fits}"
        severity = "warning" if memory.fits is False else "info"
        smaller.append((after, Finding(KIND, message, "", variant.location, severity, peak - after)))
    return tuple(finding for _, finding in sorted(smaller, key=lambda entry: entry[0]))


def relief(plan: PlanRecord, memory: MemoryAnalysis) -> Relief:
    """The bytes at the peak of a plan that checkpoints and further donation could free."""
    return Relief(_residual_bytes(plan, memory), sum(donatable(plan.program, plan.inputs, plan.outputs, plan.donation).values()))


def _scans(variant: Variant) -> str:
    where = short_location(variant.location)
    return f"the scan at {where}" if where else "scans"


def _residual_bytes(plan: PlanRecord, memory: MemoryAnalysis) -> int:
    """Bytes at the peak of arrays that loops fill, except types of both an argument and a result, such as stacked gradients."""
    ends = ({_local_type(plan, value) for value in values} for values in (plan.inputs, plan.outputs))
    gradients = set.intersection(*ends)
    return sum(part.bytes for part in memory.contributors if part.type and part.type not in gradients)


def _local_type(plan: PlanRecord, value: PlannedValue) -> str:
    shape = local_shape(value.type, value.sharding, plan.program.meshes)
    return f"{value.dtype}[{','.join(map(str, shape))}]"
