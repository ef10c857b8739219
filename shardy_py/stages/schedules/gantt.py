"""Pictures of a schedule that was simulated: characters, SVG, the trace event format."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import NamedTuple

from shardy_py.stages.schedules.tasks import Schedule, Task

_COLOURS = {"F": "#8ecae6", "B": "#ffb703", "W": "#95d5b2"}
_NAMES = {"F": "forward", "B": "backward", "W": "weight gradient"}


class Span(NamedTuple):
    """A task with its times, in the unit of the costs."""

    mesh: int
    task: Task
    start: float
    end: float


class Gantt(NamedTuple):
    """A chart of the tasks of every mesh over time.

    Attributes:
        schedule: The schedule.
        spans: Its tasks with their times.
        makespan: When the last one ends.
        bubble: Share of the meshes' time in which they idle.
    """

    schedule: Schedule
    spans: Sequence[Span]
    makespan: float
    bubble: float

    def text(self, width: int, in_flight: Sequence[int]) -> str:
        """The chart in characters, with the activations in flight on every mesh; see `Simulation.as_text`."""
        unit = min((s.end - s.start for s in self.spans if s.end > s.start), default=1.0)
        columns = max(1, min(width, round(self.makespan / unit)))
        scale = columns / self.makespan if self.makespan else 0.0
        schedule = self.schedule
        counts = [f"{schedule.meshes} meshes", f"{schedule.microbatches} microbatches"]
        if schedule.virtual > 1:
            counts.append(f"{schedule.virtual} stages per mesh")
        lines = [f"{schedule.name}: {', '.join(counts)}, makespan {self.makespan:g}, bubble {self.bubble:.1%}"]
        for mesh in range(schedule.meshes):
            cells = ["."] * columns
            for span in self.spans:
                if span.mesh == mesh:
                    first, last = round(span.start * scale), max(round(span.start * scale) + 1, round(span.end * scale))
                    for column in range(first, min(last, columns)):
                        cells[column] = _letter(span)
            lines.append(f"mesh {mesh} |{''.join(cells)}| in flight {in_flight[mesh]}")
        return "\n".join(lines)

    def svg(self) -> str:
        """The chart as an SVG document."""
        wide, row, left, top = 1000.0, 28, 70, 26
        scale = wide / self.makespan if self.makespan else 0.0
        height = top + row * self.schedule.meshes + 8
        name = html.escape(self.schedule.name, quote=False)
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide + left + 10:g} {height}" font-family="sans-serif" font-size="11">',
            f'<text x="4" y="16">{name}: makespan {self.makespan:g}, bubble {self.bubble:.1%}</text>',
        ]
        for mesh in range(self.schedule.meshes):
            y = top + row * mesh
            lines.append(f'<text x="4" y="{y + 17}">mesh {mesh}</text>')
            lines.append(f'<rect x="{left}" y="{y}" width="{wide:g}" height="{row - 4}" fill="#f1f1f1"/>')
        for span in self.spans:
            x, y, w = left + span.start * scale, top + row * span.mesh, (span.end - span.start) * scale
            title = (
                f"{_NAMES[span.task.kind]} of stage {span.task.stage}, microbatch {span.task.microbatch}: {span.start:g} to {span.end:g}"
            )
            lines.append(
                f'<g><title>{title}</title><rect x="{x:.2f}" y="{y}" width="{w:.2f}" height="{row - 4}" fill="{_COLOURS[span.task.kind]}" '
                f'stroke="#ffffff"/>'
            )
            lines.append(
                (f'<text x="{x + w / 2:.2f}" y="{y + 16}" text-anchor="middle">{span.task.microbatch}</text>' if w > 8 else "") + "</g>"
            )
        return "\n".join([*lines, "</svg>"])

    def perfetto(self, seconds: float) -> str:
        """The chart as a trace; `seconds` is the unit of its times."""
        events: list[dict[str, object]] = [
            {"ph": "M", "pid": 0, "tid": mesh, "name": "thread_name", "args": {"name": f"mesh {mesh}"}}
            for mesh in range(self.schedule.meshes)
        ]
        for span in self.spans:
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


def _letter(span: Span) -> str:
    if span.task.kind == "W":
        return "w"
    return str(span.task.microbatch % 10) if span.task.kind == "F" else "abcdefghij"[span.task.microbatch % 10]
