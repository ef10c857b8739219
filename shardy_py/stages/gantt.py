"""Pictures of a simulated schedule: characters, SVG, the trace event format."""

from __future__ import annotations

import json

from shardy_py.stages.simulation import Simulation, Span

_COLOURS = {"F": "#8ecae6", "B": "#ffb703", "W": "#95d5b2"}
_NAMES = {"F": "forward", "B": "backward", "W": "weight gradient"}


def text(result: Simulation, width: int) -> str:
    """See `Simulation.as_text`."""
    unit = min((s.end - s.start for s in result.spans if s.end > s.start), default=1.0)
    columns = max(1, min(width, round(result.makespan / unit)))
    scale = columns / result.makespan if result.makespan else 0.0
    given = result.schedule
    shape = f"{given.meshes} meshes, {given.microbatches} microbatches" + (
        f", {given.virtual} stages per mesh" if given.virtual > 1 else ""
    )
    lines = [f"{given.name}: {shape}, makespan {result.makespan:g}, bubble {result.bubble:.1%}"]
    for mesh in range(given.meshes):
        cells = ["."] * columns
        for span in result.spans:
            if span.mesh == mesh:
                first, last = round(span.start * scale), max(round(span.start * scale) + 1, round(span.end * scale))
                for column in range(first, min(last, columns)):
                    cells[column] = _letter(span)
        lines.append(f"mesh {mesh} |{''.join(cells)}| in flight {result.in_flight[mesh]}")
    return "\n".join(lines)


def _letter(span: Span) -> str:
    if span.task.kind == "W":
        return "w"
    return str(span.task.microbatch % 10) if span.task.kind == "F" else "abcdefghij"[span.task.microbatch % 10]


def svg(result: Simulation) -> str:
    """See `Simulation.as_svg`."""
    wide, row, left, top = 1000.0, 28, 70, 26
    scale = wide / result.makespan if result.makespan else 0.0
    height = top + row * result.schedule.meshes + 8
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide + left + 10:g} {height}" font-family="sans-serif" font-size="11">',
        f'<text x="4" y="16">{_escape(result.schedule.name)}: makespan {result.makespan:g}, bubble {result.bubble:.1%}</text>',
    ]
    for mesh in range(result.schedule.meshes):
        y = top + row * mesh
        out.append(f'<text x="4" y="{y + 17}">mesh {mesh}</text>')
        out.append(f'<rect x="{left}" y="{y}" width="{wide:g}" height="{row - 4}" fill="#f1f1f1"/>')
    for span in result.spans:
        x, y, w = left + span.start * scale, top + row * span.mesh, (span.end - span.start) * scale
        title = f"{_NAMES[span.task.kind]} of stage {span.task.stage}, microbatch {span.task.microbatch}: {span.start:g} to {span.end:g}"
        out.append(
            f'<g><title>{title}</title><rect x="{x:.2f}" y="{y}" width="{w:.2f}" height="{row - 4}" fill="{_COLOURS[span.task.kind]}" '
            f'stroke="#ffffff"/>'
        )
        out.append((f'<text x="{x + w / 2:.2f}" y="{y + 16}" text-anchor="middle">{span.task.microbatch}</text>' if w > 8 else "") + "</g>")
    return "\n".join([*out, "</svg>"])


def _escape(value: str) -> str:
    return value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def perfetto(result: Simulation, seconds: float) -> str:
    """See `Simulation.to_perfetto`."""
    events: list[dict[str, object]] = [
        {"ph": "M", "pid": 0, "tid": mesh, "name": "thread_name", "args": {"name": f"mesh {mesh}"}}
        for mesh in range(result.schedule.meshes)
    ]
    for span in result.spans:
        events.append(
            {
                "ph": "X",
                "pid": 0,
                "tid": span.mesh,
                "ts": span.start * seconds * 1e6,
                "dur": (span.end - span.start) * seconds * 1e6,
                "name": str(span.task),
                "cat": _NAMES[span.task.kind],
                "args": {"stage": span.task.stage, "microbatch": span.task.microbatch},
            }
        )
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events})
