"""A memory analysis as text, and as a table for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from shardy_py.plan.movements import format_bytes

if TYPE_CHECKING:
    from shardy_py.plan.memory_analysis import Contributor, MemoryAnalysis


def summary_rows(memory: MemoryAnalysis) -> list[tuple[str, str]]:
    """What and how much."""
    rows = [("arguments", format_bytes(memory.argument_size_in_bytes)), ("results", format_bytes(memory.output_size_in_bytes))]
    if memory.alias_size_in_bytes:
        rows.append(("  of them in donated arguments", format_bytes(memory.alias_size_in_bytes)))
    rows.append(("temporaries", format_bytes(memory.temp_size_in_bytes)))
    rows.append(("peak", format_bytes(memory.peak_memory_in_bytes)))
    if memory.peak is not None and memory.temp_size_in_bytes:
        where = memory.peak.location.rpartition("/")[2]
        rows.append(("  at", ", ".join(filter(None, (memory.peak.primitive, where, f"step {memory.peak_step} of {len(memory.steps)}")))))
    room = memory.headroom_in_bytes
    if room is not None:
        told = f"{format_bytes(room)} left" if room >= 0 else f"{format_bytes(-room)} too much"
        rows.append(("fits" if room >= 0 else "does not fit", f"{format_bytes(memory.hardware_bytes or 0)} of {memory.hardware}: {told}"))
    return rows


def contributor_rows(memory: MemoryAnalysis, limit: int) -> list[tuple[str, ...]]:
    """Bytes, role, name, place of the largest contributors."""
    rows = [_row(part) for part in memory.contributors[:limit]]
    rest = memory.contributors[limit:]
    if rest:
        rows.append((format_bytes(sum(part.bytes for part in rest)), "", f"{len(rest)} more", ""))
    return rows


def _row(part: Contributor) -> tuple[str, ...]:
    many = f" x{part.count}" if part.count > 1 else ""
    return format_bytes(part.bytes), part.role, part.title + many, part.location.rpartition("/")[2]


def memory_text(memory: MemoryAnalysis, limit: int) -> str:
    """See `MemoryAnalysis.as_text`."""
    rows = summary_rows(memory)
    width = max(len(name) for name, _ in rows)
    lines = [_title(memory), *(f"  {name.ljust(width)}  {value}" for name, value in rows)]
    parts = contributor_rows(memory, limit)
    if parts:
        widths = [max(map(len, column)) for column in zip(*parts)]
        lines.append("at the peak")
        for size, *cells in parts:
            told = "  ".join(cell.ljust(w) for cell, w in zip(cells, widths[1:]))
            lines.append(f"  {size.rjust(widths[0])}  {told}".rstrip())
    if memory.findings:
        lines += ["what leaves less", *(f"  {finding.message}" for finding in memory.findings)]
    return "\n".join(lines)


def _title(memory: MemoryAnalysis) -> str:
    return f"memory of {memory.name} per device, as compiled for {_COMPILED_FOR[memory.compiler]}"


_COMPILED_FOR = {"cpu": "a cpu", "accelerator": "an accelerator"}


def memory_html(memory: MemoryAnalysis, limit: int = 12) -> str:
    """The figures as a table, and the contributors to be folded out."""
    rows = "".join(f"<tr><th style='text-align:left'>{escape(a.strip())}</th><td>{escape(b)}</td></tr>" for a, b in summary_rows(memory))
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in contributor_rows(memory, limit))
    head = escape(_title(memory))
    return f"<div><b>{head}</b><table>{rows}</table><details><summary>at the peak</summary><table>{body}</table></details></div>"
