"""A plan as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from shardy_py.plan.values import PlannedValue, typed

if TYPE_CHECKING:
    from shardy_py.plan.findings import Finding
    from shardy_py.plan.plan import Plan
    from shardy_py.plan.reshards import Reshard


NOTES_SHOWN = 3
"""Of notes of one kind, that many are listed; warnings and errors always are."""

RESHARDS_SHOWN = 20
"""That many lines of reshards are shown, those that move the most bytes."""


def plan_text(plan: Plan, *, values: bool = True) -> str:
    """Inputs and outputs by path, intermediates by source line, reshards, findings; no timings, so that equal plans are equal texts."""
    axes = ", ".join(f"{name}={size}" for name, size in plan.mesh.shape.items())
    lines = [f"plan of {plan.name} on mesh {axes}"]
    lines += _table("inputs", plan.inputs)
    lines += _table("outputs", plan.outputs)
    if values:
        lines += _by_line([value for value in plan.values if value.kind == "intermediate" and value.shape])
    if plan.reshards:
        lines += ["reshards", *_reshards(plan.reshards)]
    if plan.findings:
        lines += ["findings", *_findings(plan.findings)]
    return "\n".join(lines)


def _reshards(reshards: Sequence[Reshard]) -> list[str]:
    """Those that move the most bytes first; those that differ in nothing but the value share a line."""
    groups: dict[str, list[Reshard]] = {}
    for reshard in reshards:
        groups.setdefault(reshard.text("_"), []).append(reshard)
    ordered = sorted(groups.values(), key=lambda group: -len(group) * group[0].bytes_per_device * (group[0].trips or 1))
    lines: list[str] = []
    for group in ordered[:RESHARDS_SHOWN]:
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        lines.append("  " + group[0].text(group[0].value + more))
    left = sum(map(len, ordered[RESHARDS_SHOWN:]))
    return [*lines, f"  ... and {left} more reshards"] if left else lines


def _findings(findings: Sequence[Finding]) -> list[str]:
    lines = [f"  {finding}" for finding in findings if finding.severity != "info"]
    notes: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.severity == "info":
            notes.setdefault(finding.kind, []).append(finding)
    for kind, group in notes.items():
        lines += [f"  {finding}" for finding in group[:NOTES_SHOWN]]
        if len(group) > NOTES_SHOWN:
            lines.append(f"  ... and {len(group) - NOTES_SHOWN} more notes of kind {kind}")
    return lines


def _table(title: str, values: Sequence[PlannedValue]) -> list[str]:
    width = max((len(value.path) for value in values), default=0)
    return [title, *(f"  {value.path:<{width}}  {typed(value.type, value.sharding)}" for value in values)]


def _by_line(values: Iterable[PlannedValue]) -> list[str]:
    """Groups of equal primitives and types per source line; lines in order of file and number, values in program order."""
    groups: dict[tuple[str, int], dict[tuple[str, str], int]] = {}
    for value in values:
        file, _, line = value.location.rpartition(":")
        place = (file, int(line)) if line.isdigit() else ("", 0)
        counts = groups.setdefault(place, {})
        key = (value.primitive, typed(value.type, value.sharding))
        counts[key] = counts.get(key, 0) + 1
    lines = ["values"] if groups else []
    for (file, line), counts in sorted(groups.items()):
        lines.append(f"  {file.rpartition('/')[2]}:{line}" if file else "  (no source line)")
        width = max(len(primitive) for primitive, _ in counts)
        lines += [f"    {primitive:<{width}}  {text}" + (f"  x{n}" if n > 1 else "") for (primitive, text), n in counts.items()]
    return lines
