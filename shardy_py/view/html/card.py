"""A plan as a card in a notebook: static HTML without a script, which every viewer of notebooks shows alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import islice

from shardy_py.dialect import Mesh
from shardy_py.plan.checks.table import findings_of
from shardy_py.plan.checks.wording import merged
from shardy_py.plan.collectives import Collective, format_bytes, received_by, summary
from shardy_py.plan.cost_analysis import seconds_text
from shardy_py.plan.executed import collectives_of, remark_on, reshards_of
from shardy_py.plan.findings import Finding
from shardy_py.plan.memory import analysis as memory_analysis
from shardy_py.plan.paths import paths_as_one
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.reshards import Reshard
from shardy_py.view.text_tree import Seen, TreeNode, by_path, bytes_of, shortened

MAX_OPS = 5_000
"""A plan of more ops is not partitioned for its card, which would take more than a second or so."""

LINES = 16
"""Number of lines for inputs and for outputs: those that take the most memory, in the order of the program where all are shown."""

MAX_MOVES = 12
"""Number of listed reshards, those that move the most bytes."""

MAX_FINDINGS = 12
"""Number of listed findings, the gravest first."""

MESH_SIDE = 8
"""Rows and columns of devices in the picture of the mesh."""

_CELL = 'style="text-align:left;padding:1px 12px 1px 0;vertical-align:top"'
_NUMBER = 'style="text-align:right;padding:1px 12px 1px 0;vertical-align:top;white-space:nowrap"'
_FACT = 'style="border:1px solid #8886;border-radius:4px;padding:2px 10px 4px;margin:0 8px 8px 0;max-width:260px"'
_TABLE = 'style="border-collapse:collapse;font-size:13px"'
_SIDE_BY_SIDE = 'style="display:flex;flex-wrap:wrap;align-items:flex-start"'
_MONO = "font-family:ui-monospace,Menlo,Consolas,monospace;font-size:12px"
_GRAVITY = {"error": 0, "warning": 1, "info": 2}


def card(plan: PlanRecord) -> str:
    """The plan in short: three facts and the mesh, inputs and outputs, and behind triangles reshards and findings.

    A large plan is not partitioned for it: figures not yet computed are left out.
    """
    small = sum(1 for _ in islice(plan.program.walk(), MAX_OPS + 1)) <= MAX_OPS
    moved = collectives_of(plan) if small or plan.partitioner is None or collectives_of.is_computed(plan) else None
    partitioned = small or plan.partitioner is None
    findings = findings_of(plan) if partitioned or findings_of.is_computed(plan) else merged(plan.planning_findings)
    findings = sorted(findings, key=lambda finding: _GRAVITY[finding.severity])
    inputs, outputs = by_path(plan, plan.inputs), by_path(plan, plan.outputs)
    axes = " × ".join(f"{name}={size}" for name, size in plan.mesh.shape.items())
    figures = f"inputs {format_bytes(bytes_of(inputs))}; outputs {format_bytes(bytes_of(outputs))} per device"
    seen: Seen = {}
    lists = _values("inputs", inputs, len(plan.inputs), seen), _values("outputs", outputs, len(plan.outputs), seen)
    parts = [
        f"<div><b>plan of {escape(plan.name)}</b> on mesh <b>{escape(axes)}</b>; {escape(figures)}</div>",
        f"<div {_SIDE_BY_SIDE}>{_planned(plan)}{_peak(plan) if small else ''}{_sent(moved)}{_counted(findings)}{_picture(plan.mesh)}</div>",
        f"<div {_SIDE_BY_SIDE}>{''.join(lists)}</div>",
    ]
    if moved is not None and (remark := remark_on(plan)):
        parts.insert(1, f"<div>{escape(remark)}</div>")
    if partitioned or reshards_of.is_computed(plan):
        parts.append(_moves(reshards_of(plan)))
    if findings:
        rows = [f"<tr><td {_CELL}>{escape(str(finding))}</td></tr>" for finding in findings[:MAX_FINDINGS]]
        parts.append(_folded("findings", len(findings), rows, opened=findings[0].severity != "info"))
    parts.append("<div><small>plan.show() puts its page here: every value, why it is sharded so, charts.</small></div>")
    return f'<div style="font-size:13px;line-height:1.5">{"".join(parts)}</div>'


def _fact(title: str, figure: str, more: str) -> str:
    return f"<div {_FACT}><small>{escape(title)}</small><div><b>{escape(figure)}</b></div><small>{escape(more)}</small></div>"


def _planned(plan: PlanRecord) -> str:
    search = plan.search
    if search is None:
        return ""
    return _fact(f"planned step on {search.hardware}", seconds_text(search.objective_seconds), search.bound_text)


def _peak(plan: PlanRecord) -> str:
    memory = memory_analysis.analyse(plan)
    largest = memory.contributors[0] if memory.contributors else None
    more = "" if largest is None else f"largest: {largest.name}, {format_bytes(largest.bytes)}"
    return _fact("peak memory per device", format_bytes(memory.peak_memory_in_bytes), more)


def _sent(collectives: Sequence[Collective] | None) -> str:
    if collectives is None:
        return ""
    totals = summary(collectives)
    size = format_bytes(received_by(collectives))
    exact = all(total.exact for total in totals)
    kinds = ", ".join(f"{total.count} {total.kind}" for total in totals)
    return _fact("communication per device and call", size if exact else f"at least {size}", kinds or "no data moves between devices")


def _counted(findings: Sequence[Finding]) -> str:
    count = sum(finding.severity != "info" for finding in findings)
    notes = len(findings) - count
    first = findings[0] if findings else None
    more = "" if first is None else f"{first.kind} {'of ' if first.path else ''}{paths_as_one(first.all_paths)}"
    return _fact("findings", f"{count or 'none'}" + (f", {notes} note{'s' if notes != 1 else ''}" if notes else ""), more)


def _picture(mesh: Mesh) -> str:
    """The devices: the last axis across, all others down; of many, the first."""
    sizes = [axis.size for axis in mesh.axes]
    if not sizes:
        return ""
    columns, rows = sizes[-1], math.prod(sizes[:-1])
    ids = mesh.device_ids or range(mesh.size)
    cell = 'style="border:1px solid #8888;padding:0 5px;text-align:center;font-size:11px"'
    lines = []
    for row in range(min(rows, MESH_SIDE)):
        cells = [f"<td {cell}>{ids[row * columns + column]}</td>" for column in range(min(columns, MESH_SIDE))]
        lines.append(f"<tr>{''.join(cells)}{'<td>…</td>' if columns > MESH_SIDE else ''}</tr>")
    down = " × ".join(axis.name for axis in mesh.axes[:-1])
    more = f", the first of {mesh.size:,} devices" if rows > MESH_SIDE or columns > MESH_SIDE else ""
    title = f"{f'{down} down, ' if down else ''}{mesh.axes[-1].name} across{more}"
    return f'<div><small>{escape(title)}</small><table style="border-collapse:collapse">{"".join(lines)}</table></div>'


def _values(title: str, nodes: Sequence[TreeNode], count: int, seen: Seen) -> str:
    rows: list[str] = []
    _rows(shortened(nodes, LINES, seen), 0, rows)
    name = title if count != 1 else title[:-1]
    return f'<div style="margin-right:24px"><div>{count:,} {name}</div><table {_TABLE}>{"".join(rows)}</table></div>'


def _rows(nodes: Sequence[TreeNode], level: int, rows: list[str]) -> None:
    """A row for each node, children below it and further to the right."""
    for node in nodes:
        label = f'<span style="padding-left:{level}em">{_code(node.label)}</span>'
        text, size = ("", "") if node.children else (_code(node.text) if node.text else "", format_bytes(node.bytes) if node.count else "")
        trips = f"×{node.times}" if node.times > 1 else ""
        rows.append(f"<tr><td {_CELL}>{label}</td><td {_CELL}>{text}</td><td {_NUMBER}>{size}</td><td {_NUMBER}>{trips}</td></tr>")
        _rows(node.children, level + 1, rows)


def _moves(reshards: Sequence[Reshard]) -> str:
    ordered = sorted(reshards, key=lambda r: -r.call_bytes)
    rows = [f"<tr><td {_CELL}>{_code(str(r))}</td></tr>" for r in ordered[:MAX_MOVES]]
    return _folded("reshards", len(reshards), rows) if reshards else ""


def _folded(title: str, count: int, rows: Sequence[str], *, opened: bool = False) -> str:
    if len(rows) < count:
        rows = [*rows, f"<tr><td {_CELL}>… and {count - len(rows)} more</td></tr>"]
    state = " open" if opened else ""
    name = title if count != 1 else title[:-1]
    return f"<details{state}><summary>{count} {name}</summary><table {_TABLE}>{''.join(rows)}</table></details>"


def _code(text: str) -> str:
    return f'<code style="{_MONO}">{escape(text)}</code>'
