"""Memory and cost on a page: figures for its header, the series and shares of its charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shardy_py.dialect.format import short_location
from shardy_py.plan import costing
from shardy_py.plan.collectives import format_bytes
from shardy_py.plan.cost_analysis import CostAnalysis, Share, count_text, seconds_text
from shardy_py.plan.memory import analysis as memory_analysis
from shardy_py.plan.record import PlanRecord

if TYPE_CHECKING:
    from shardy_py.cost.hardware import Hardware
    from shardy_py.plan.memory.report import MemoryAnalysis

POINTS = 1200
"""Limit of the points of the curve of live memory; of steps that share one the largest counts."""

LISTED = 12
"""Entries of the lists of buffers at the peak, and of modules and lines that take time."""


def costs(plan: PlanRecord, hardware: str | Hardware | None, numbers: Mapping[str, int]) -> dict[str, Any]:
    """Entries of a page's data: `figures`, `memory`, and with hardware `time`."""
    analysis = costing.analyse(plan, hardware)
    memory = memory_analysis.analyse(plan, hardware)
    charts: dict[str, Any] = {"figures": _figures(analysis, memory), "memory": _memory(memory, numbers)}
    if analysis.hardware is not None:
        charts["time"] = {"modules": _shares(analysis.by_module), "lines": _shares(analysis.by_line), "ops": _shares(analysis.by_op)}
    return charts


def _figures(analysis: CostAnalysis, memory: MemoryAnalysis) -> list[list[str]]:
    figures = [["operations", f"{count_text(analysis.flops)}FLOP" if analysis.flops >= 1e3 else f"{analysis.flops:.0f} FLOP"]]
    if analysis.hardware is not None and analysis.step_seconds is not None:
        figures.append([f"time on {analysis.hardware.name}", span_text(analysis.step_seconds.low, analysis.step_seconds.high)])
    if analysis.fed_bytes:
        time = f", {seconds_text(analysis.feeding_seconds)}" if analysis.feeding_seconds else ""
        figures.append(["fed by the host", format_bytes(analysis.fed_bytes) + time])
    if memory.headroom_in_bytes is not None:
        room = memory.headroom_in_bytes
        text = f"{format_bytes(room)} left" if room >= 0 else f"{format_bytes(-room)} too little"
        figures.append([f"room on {memory.hardware}", text])
    return figures


def span_text(low: float, high: float) -> str:
    """A range of seconds, short.

    Example:
        >>> span_text(0.001, 0.0025), span_text(0.0005, 2), span_text(1, 1)
        ('1–2.5 ms', '500 us–2 s', '1 s')
    """
    first, last = seconds_text(low), seconds_text(high)
    if first == last:
        return last
    return f"{first.partition(' ')[0] if first.partition(' ')[2] == last.partition(' ')[2] else first}–{last}"


def _memory(memory: MemoryAnalysis, numbers: Mapping[str, int]) -> dict[str, Any]:
    at, heights = thinned(memory.series)
    peak = memory.peak
    text = "" if peak is None else " at ".join(part for part in (peak.primitive, short_location(peak.location)) if part)
    top = [
        [
            -1 if part.role == "temporary" else numbers.get(part.name, -1),
            part.title + (f" × {part.count}" if part.count > 1 else ""),
            part.bytes,
            short_location(part.location) if part.role == "temporary" else part.role,
        ]
        for part in memory.contributors[:LISTED]
    ]
    rest = memory.contributors[LISTED:]
    if rest:
        top.append([-1, f"{len(rest)} more", sum(part.bytes for part in rest), ""])
    return {
        "at": at,
        "bytes": heights,
        "end": len(memory.series),
        "peak": memory.peak_memory_in_bytes,
        "peak_at": memory.peak_step,
        "where": text,
        "top": top,
    }


def thinned(series: Sequence[int]) -> tuple[list[int], list[int]]:
    """The points at which a curve changes; neighbours share a point, the highest of them, where there are too many.

    Example:
        >>> thinned([5, 5, 7, 6])
        ([0, 2, 3], [5, 7, 6])
    """
    wide = -(-len(series) // POINTS)
    at: list[int] = []
    heights: list[int] = []
    for start in range(0, len(series), max(1, wide)):
        height = max(series[start : start + wide])
        if not heights or heights[-1] != height:
            at.append(start)
            heights.append(height)
    return at, heights


def _shares(shares: Sequence[Share]) -> list[list[Any]]:
    """Name, seconds of computing and of communication."""
    return [[s.name, s.compute_seconds or 0.0, s.communication_seconds or 0.0] for s in shares[:LISTED] if s.seconds]
