"""A cost analysis as text, as plain data, and as a table for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from typing import TYPE_CHECKING, Any

from shardy_py.plan.movements import format_bytes

if TYPE_CHECKING:
    from shardy_py.cost.links import Level
    from shardy_py.plan.cost_analysis import CollectiveCost, CostAnalysis, Range, Share

FORMAT = "shardy_py.cost"
VERSION = 1

Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
"""Title, heads of columns, rows."""


def seconds_text(seconds: float) -> str:
    """Seconds in a unit that suits them.

    Example:
        >>> seconds_text(0.00125), seconds_text(3e-6), seconds_text(75.0), seconds_text(0)
        ('1.25 ms', '3 us', '75 s', '0 s')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{_short(seconds / scale)} {unit}"
    return f"{_short(seconds / 1e-9)} ns" if seconds > 0 else "0 s"


def count_text(count: float) -> str:
    """A number of operations with a unit.

    Example:
        >>> count_text(989.4e12), count_text(12)
        ('989 T', '12')
    """
    for unit, scale in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= scale:
            return f"{_short(count / scale)} {unit}"
    return _short(count)


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def summary_rows(cost: CostAnalysis) -> list[tuple[str, str]]:
    """What and how much."""
    rows = [
        ("operations", f"{count_text(cost.flops)}FLOP" if cost.flops >= 1e3 else f"{count_text(cost.flops)} FLOP"),
        ("memory traffic", format_bytes(int(cost.bytes_accessed))),
        ("communicated", format_bytes(cost.communicated_bytes)),
    ]
    compute, communication, exposed, step = cost.compute_seconds, cost.communication_seconds, cost.exposed_seconds, cost.step_seconds
    if cost.hardware is not None and compute is not None and communication is not None and exposed is not None and step is not None:
        rows += [("compute", seconds_text(compute)), ("communication", seconds_text(communication))]
        rows += [("  of it exposed", str(exposed)), ("step", str(step))]
        peak = max(cost.hardware.flops.values()) if not cost.flops else _peak(cost)
        if step.high and peak:
            low, high = cost.flops / peak / step.high, cost.flops / peak / max(step.low, 1e-30)
            rows.append(("share of peak", f"{low:.0%}" if f"{low:.0%}" == f"{high:.0%}" else f"{low:.0%} to {high:.0%}"))
    return rows


def _peak(cost: CostAnalysis) -> float:
    """The peak rate of bfloat16, by which utilization is told."""
    assert cost.hardware is not None
    return cost.hardware.matrix_flops("bfloat16")


def remarks(cost: CostAnalysis) -> list[str]:
    """What the reader should know of the figures."""
    found = []
    if not cost.exact:
        found.append("a loop has no trip count that is known: what is in it counts once")
    if cost.unknown:
        found.append(f"no formula for {', '.join(cost.unknown)}: operations in it are missing")
    return found


def layout_text(cost: CostAnalysis) -> str:
    """How the axes lie on links: `data=16 on dcn, model=8 on nvlink`."""
    return ", ".join(
        f"{axis}={size} on {' and '.join(_level(level, alone=len(cost.links[axis]) == 1) for level in cost.links[axis])}"
        for axis, size in cost.mesh.shape.items()
        if cost.links.get(axis)
    )


def _level(level: Level, alone: bool) -> str:
    links = level.links
    dims = f" {'x'.join(map(str, links.dims))}" if len(links.dims) > 1 else ""
    return f"{links.name}{dims}" if alone else f"{links.name} ({level.size})"


def tables(cost: CostAnalysis, limit: int) -> list[Table]:
    """By axis, by collective, by op, by module where there are any, by source line."""
    timed = cost.hardware is not None
    found: list[Table] = []
    if cost.by_axis:
        heads = ("axes", "received", *(("time",) if timed else ()))
        rows = [(s.name, format_bytes(s.communicated_bytes), *((seconds_text(s.seconds),) if timed else ())) for s in cost.by_axis]
        found.append(("by mesh axis", heads, rows))
        found.append(("collectives", *_collectives(cost, limit)))
    shares: list[tuple[str, Sequence[Share]]] = [("by op", cost.by_op)]
    if any(share.name for share in cost.by_module):
        shares.append(("by module", cost.by_module))
    shares.append(("by source line", cost.by_line))
    for title, parts in shares:
        heads = ("", "FLOP", "memory", "received", *(("compute", "communication") if timed else ()))
        rows = [_share(share, timed) for share in parts[:limit]]
        if len(parts) > limit:
            rows.append((f"... and {len(parts) - limit} more", *("",) * (len(heads) - 1)))
        found.append((title, heads, rows))
    return found


def _collectives(cost: CostAnalysis, limit: int) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    timed = cost.hardware is not None
    ordered = sorted(cost.collectives, key=lambda c: (-(c.seconds or 0.0), -c.bytes))
    rows = [_collective(c, timed) for c in ordered[:limit]]
    heads = ("collective", "value", "received", "trips", *(("time",) if timed else ()), "where", "for")
    if len(ordered) > limit:
        rows.append((f"... and {len(ordered) - limit} more", *("",) * (len(heads) - 1)))
    return heads, rows


def _collective(cost: CollectiveCost, timed: bool) -> tuple[str, ...]:
    c = cost.collective
    return (
        f"{c.kind}({','.join(c.axes)})",
        c.value,
        format_bytes(cost.bytes),
        "unknown" if c.trips is None else str(c.trips),
        *((seconds_text(cost.seconds or 0.0),) if timed else ()),
        _where(c.location),
        c.primitive,
    )


def _share(share: Share, timed: bool) -> tuple[str, ...]:
    times = (seconds_text(share.compute_seconds or 0.0), seconds_text(share.communication_seconds or 0.0)) if timed else ()
    name = _where(share.name) or "(none)"
    return (name, count_text(share.flops), format_bytes(int(share.bytes_accessed)), format_bytes(share.communicated_bytes), *times)


def _where(location: str) -> str:
    """A file without its directories; modules as they are."""
    return location.rpartition("/")[2] if location.startswith("/") else location


def cost_text(cost: CostAnalysis, limit: int) -> str:
    """See `CostAnalysis.as_text`."""
    axes = ", ".join(f"{name}={size}" for name, size in cost.mesh.shape.items())
    lines = [f"cost of {cost.name} per device, on mesh {axes}" + ("" if cost.hardware is None else f" of {cost.hardware.name}")]
    if cost.hardware is not None and cost.links:
        lines.append(f"  {layout_text(cost)}")
    rows = summary_rows(cost)
    width = max(len(name) for name, _ in rows)
    lines += [f"  {name.ljust(width)}  {value}" for name, value in rows]
    lines += [f"  note: {remark}" for remark in remarks(cost)]
    for title, heads, cells in tables(cost, limit):
        lines.append(title)
        lines += [f"  {line}" for line in _columns([heads, *cells])]
    return "\n".join(lines)


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows)]
    right = [i for i, head in enumerate(rows[0]) if head in ("FLOP", "memory", "received", "trips", "time", "compute", "communication")]
    return [
        "  ".join(cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths)) if w).rstrip()
        for row in rows
    ]


def cost_html(cost: CostAnalysis, limit: int = 12) -> str:
    """A table of totals and the tables of `as_text`, to be folded out."""
    axes = ", ".join(f"{name}={size}" for name, size in cost.mesh.shape.items())
    head = f"cost of {cost.name} per device, on mesh {axes}" + ("" if cost.hardware is None else f" of {cost.hardware.name}")
    rows = "".join(f"<tr><th style='text-align:left'>{escape(a.strip())}</th><td>{escape(b)}</td></tr>" for a, b in summary_rows(cost))
    notes = "".join(f"<p>{escape(remark)}</p>" for remark in remarks(cost))
    parts = [f"<div><b>{escape(head)}</b><table>{rows}</table>{notes}"]
    for title, heads, cells in tables(cost, limit):
        header = "".join(f"<th style='text-align:left'>{escape(cell)}</th>" for cell in heads)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in cells)
        parts.append(f"<details><summary>{escape(title)}</summary><table><tr>{header}</tr>{body}</table></details>")
    return "".join(parts) + "</div>"


def cost_dict(cost: CostAnalysis) -> dict[str, Any]:
    """See `CostAnalysis.to_dict`."""
    machine = cost.hardware
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": cost.name,
        "mesh": dict(cost.mesh.shape),
        "hardware": None if machine is None else asdict(machine) | {"flops": dict(machine.flops), "sources": dict(machine.sources)},
        "links": {axis: [asdict(level) for level in levels] for axis, levels in cost.links.items()},
        "flops": cost.flops,
        "transcendentals": cost.transcendentals,
        "bytes_accessed": cost.bytes_accessed,
        "communicated_bytes": cost.communicated_bytes,
        "compute_seconds": cost.compute_seconds,
        "communication_seconds": cost.communication_seconds,
        "exposed_seconds": _bounds(cost.exposed_seconds),
        "step_seconds": _bounds(cost.step_seconds),
        "exact": cost.exact,
        "unknown": list(cost.unknown),
        "by_op": [asdict(share) for share in cost.by_op],
        "by_module": [asdict(share) for share in cost.by_module],
        "by_line": [asdict(share) for share in cost.by_line],
        "by_axis": [asdict(share) for share in cost.by_axis],
        "collectives": [asdict(c) for c in cost.collectives],
    }


def _bounds(bounds: Range | None) -> list[float] | None:
    return None if bounds is None else [bounds.low, bounds.high]
