"""The differences of two plans as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from shardy_py.plan.checks.accept import paths_as_one
from shardy_py.plan.movements import format_bytes

if TYPE_CHECKING:
    from shardy_py.plan.diff import PlanDiff, ReshardChange, ValueChange

_SIGNS = {"changed": "~", "added": "+", "removed": "-"}


def diff_text(diff: PlanDiff, limit: int | None = None) -> str:
    """Sections of inputs, outputs, intermediates, collectives, reshards and findings; those without a difference are left out.

    Args:
        diff: The differences.
        limit: The most lines of values of each kind and of reshards; None for all.
    """
    before, after = diff.names
    if not diff:
        return f"no difference between the plans of {before} and {after}" if before != after else f"no difference: plan of {after}"
    lines = [f"from the plan of {before} to the plan of {after}" if before != after else f"changes of the plan of {after}"]
    if diff.meshes[0] != diff.meshes[1]:
        lines.append(f"mesh  {diff.meshes[0]} -> {diff.meshes[1]}")
    for title, kind in (("inputs", "input"), ("outputs", "output")):
        lines += _section(title, _named([change for change in diff.values if change.kind == kind]), limit)
    lines += _section("values", _intermediates([change for change in diff.values if change.kind == "intermediate"]), limit)
    lines += _collectives(diff)
    lines += _section("reshards", _reshards(diff.reshards), limit)
    found = [*(("-", f) for f in diff.gone_findings), *(("+", f) for f in diff.new_findings)]
    lines += _section("findings", [f"  {sign} {finding}" for sign, finding in found], None)
    return "\n".join(lines)


def alike_layers(changes: Iterable[ValueChange]) -> list[list[ValueChange]]:
    """Changes that differ only in numbers of the path together, in order of the first of each.

    Args:
        changes: Those of inputs or outputs.
    """
    groups: dict[tuple[str, ...], list[ValueChange]] = {}
    for c in changes:
        groups.setdefault((c.sign, re.sub(r"\d+", "#", c.path), c.before, c.after), []).append(c)
    return list(groups.values())


def alike_values(changes: Iterable[ValueChange]) -> list[list[ValueChange]]:
    """Equal changes on one source line together, those of the most bytes first.

    Args:
        changes: Those of intermediates.
    """
    groups: dict[tuple[str, ...], list[ValueChange]] = {}
    for c in changes:
        groups.setdefault((c.sign, c.location, c.module, c.primitive, c.before, c.after), []).append(c)
    return sorted(groups.values(), key=lambda group: -len(group) * max(group[0].bytes_before, group[0].bytes_after))


def alike_reshards(changes: Iterable[ReshardChange]) -> list[list[ReshardChange]]:
    """Changes that differ in nothing but the value together, those of the most bytes first.

    Args:
        changes: Those of reshards.
    """
    groups: dict[tuple[str | int, ...], list[ReshardChange]] = {}
    for c in changes:
        groups.setdefault((c.sign, c.location, c.reason, c.before, c.after, c.bytes_before, c.bytes_after), []).append(c)
    return sorted(groups.values(), key=lambda group: -len(group) * max(group[0].bytes_before, group[0].bytes_after))


def _section(title: str, lines: Sequence[str], limit: int | None) -> list[str]:
    shown = list(lines if limit is None else lines[:limit])
    left = len(lines) - len(shown)
    return [title, *shown, *([f"  ... and {left} more"] if left else [])] if lines else []


def _to(before: str, after: str) -> str:
    return f"{before} -> {after}" if before and after else before or after


def _named(changes: Sequence[ValueChange]) -> list[str]:
    rows = [(group[0], paths_as_one([c.path for c in group])) for group in alike_layers(changes)]
    width = max((len(path) for _, path in rows), default=0)
    return [f"  {_SIGNS[c.sign]} {path:<{width}}  {_to(c.before, c.after)}" for c, path in rows]


def _intermediates(changes: Sequence[ValueChange]) -> list[str]:
    """Equal changes on one source line share a line; the largest first."""
    rows = []
    for group in alike_values(changes):
        c = group[0]
        name = c.path if len(group) == 1 else f"{c.path} and {len(group) - 1} more"
        place = c.location.rpartition("/")[2]
        rows.append((_SIGNS[c.sign], place, c.primitive, name, _to(c.before, c.after)))
    return _table(rows)


def _collectives(diff: PlanDiff) -> list[str]:
    if not diff.collectives:
        return []
    rows = [
        (
            "~" if c.count_before and c.count_after else "+" if c.count_after else "-",
            f"{c.kind}({c.axes})",
            f"{c.count_before} -> {c.count_after}",
            f"{format_bytes(c.bytes_before)} -> {format_bytes(c.bytes_after)}",
        )
        for c in diff.collectives
    ]
    rows.append(("", "all of them", "", " -> ".join(map(format_bytes, diff.bytes))))
    return _section("collectives, bytes per device and call", _table(rows), None)


def _reshards(changes: Sequence[ReshardChange]) -> list[str]:
    lines = []
    for group in alike_reshards(changes):
        c = group[0]
        name = c.value if len(group) == 1 else f"{c.value} and {len(group) - 1} more"
        sizes = [format_bytes(size) for size, text in ((c.bytes_before, c.before), (c.bytes_after, c.after)) if text]
        place = c.location.rpartition("/")[2]
        moved = " -> ".join(dict.fromkeys(sizes))
        if c.before == c.after:
            lines.append("  ".join(part for part in (f"  {_SIGNS[c.sign]} {name} {c.after}", moved, place, c.reason) if part))
            continue
        head = f"  {_SIGNS[c.sign]} {name} {c.before or c.after}"
        lines.append("  ".join(part for part in (head, moved, place, c.reason) if part))
        if c.sign == "changed":
            lines[-1] += f"\n    now {c.after}"
    return lines


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths) if width).rstrip() for row in rows]
