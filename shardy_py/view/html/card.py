"""A plan as a card in a notebook: static HTML without a script, which every viewer of notebooks shows alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from shardy_py.passes.export.collective_bytes import local_bytes
from shardy_py.plan.checks.table import findings_of
from shardy_py.plan.collectives import summary
from shardy_py.plan.executed import collectives_of
from shardy_py.plan.executed_reshards import reshards_of
from shardy_py.plan.movements import format_bytes
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.values import PlannedValue, typed

if TYPE_CHECKING:
    from shardy_py.plan.reshards import Reshard

VALUES_SHOWN = 24
"""Number of listed inputs and of listed outputs, those that take the most memory."""

MOVES_SHOWN = 12
"""Number of listed reshards, those that move the most bytes."""

FINDINGS_SHOWN = 12
"""Number of listed findings, the gravest first."""

_CELL = 'style="text-align:left;padding:1px 12px 1px 0;vertical-align:top"'
_NUMBER = 'style="text-align:right;padding:1px 12px 1px 0;vertical-align:top;white-space:nowrap"'
_MONO = "font-family:ui-monospace,Menlo,Consolas,monospace;font-size:12px"
_GRAVITY = {"error": 0, "warning": 1, "info": 2}


def card(plan: PlanRecord) -> str:
    """The plan in short: mesh, figures, largest inputs and outputs, reshards and findings, each list behind a triangle.

    A plan that is run by explicit collectives is not partitioned for it: figures not yet computed are left out.

    Args:
        plan: A plan.
    """
    partitioned = plan.partitioner is None or collectives_of.is_computed(plan)
    findings = findings_of(plan) if plan.partitioner is None or findings_of.is_computed(plan) else plan.planning_findings
    axes = " × ".join(f"{name}={size}" for name, size in plan.mesh.shape.items())
    figures = [f"inputs {format_bytes(_bytes(plan, plan.inputs))}", f"outputs {format_bytes(_bytes(plan, plan.outputs))} per device"]
    if partitioned:
        moved = "; ".join(map(str, summary(collectives_of(plan)))) or "none"
        figures.append(f"communication per call: {moved}")
    parts = [
        f"<div><b>plan of {escape(plan.name)}</b> on mesh <b>{escape(axes)}</b></div>",
        f"<div>{escape('; '.join(figures))}</div>",
        _values("inputs", plan, plan.inputs),
        _values("outputs", plan, plan.outputs),
    ]
    if plan.partitioner is None or reshards_of.is_computed(plan):
        parts.append(_moves(reshards_of(plan)))
    if findings:
        ordered = sorted(findings, key=lambda f: _GRAVITY[f.severity])
        rows = [f"<tr><td {_CELL}>{escape(str(f))}</td></tr>" for f in ordered[:FINDINGS_SHOWN]]
        parts.append(_folded("findings", len(ordered), rows, opened=ordered[0].severity != "info"))
    parts.append("<div><small>save_html(path) writes all of it as a page: every value, why it is sharded so, charts.</small></div>")
    return f'<div style="font-size:13px;line-height:1.5">{"".join(parts)}</div>'


def _values(title: str, plan: PlanRecord, values: Sequence[PlannedValue]) -> str:
    largest = sorted(values, key=lambda v: -_bytes(plan, [v]))[:VALUES_SHOWN]
    rows = [
        f"<tr><td {_CELL}>{_code(v.path)}</td><td {_CELL}>{_code(typed(v.type, v.sharding))}</td>"
        f"<td {_NUMBER}>{format_bytes(_bytes(plan, [v]))}</td></tr>"
        for v in largest
    ]
    return _folded(title, len(values), rows, opened=len(values) <= VALUES_SHOWN // 2)


def _moves(reshards: Sequence[Reshard]) -> str:
    ordered = sorted(reshards, key=lambda r: -r.bytes_per_device * (r.trips or 1))
    rows = [f"<tr><td {_CELL}>{_code(str(r))}</td></tr>" for r in ordered[:MOVES_SHOWN]]
    return _folded("reshards", len(reshards), rows) if reshards else "<div>no data moves between devices</div>"


def _folded(title: str, count: int, rows: Sequence[str], *, opened: bool = False) -> str:
    if len(rows) < count:
        rows = [*rows, f"<tr><td {_CELL}>… and {count - len(rows)} more</td></tr>"]
    state = " open" if opened else ""
    table = f'<table style="border-collapse:collapse;font-size:13px">{"".join(rows)}</table>'
    return f"<details{state}><summary>{count} {title if count != 1 else title[:-1]}</summary>{table}</details>"


def _code(text: str) -> str:
    return f'<code style="{_MONO}">{escape(text)}</code>'


def _bytes(plan: PlanRecord, values: Iterable[PlannedValue]) -> int:
    return sum(local_bytes(value.type, value.sharding, plan.program.meshes) for value in values)
