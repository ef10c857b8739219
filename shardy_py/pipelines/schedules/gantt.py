"""A schedule that was simulated, with its pictures: characters, SVG, the trace event format."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from typing import NamedTuple

from shardy_py.pipelines.schedules.tasks import Schedule, Task

_COLOURS = {"F": "#8ecae6", "B": "#ffb703", "W": "#95d5b2"}
_NAMES = {"F": "forward", "B": "backward", "W": "weight gradient"}


class Span(NamedTuple):
    """A task with its times, in the unit of the costs."""

    mesh: int
    task: Task
    start: float
    end: float


@dataclass(frozen=True)
class Simulation:
    """Times of a schedule, and the memory that it holds.

    Attributes:
        schedule: The schedule.
        spans: Every task with its times, by mesh and start.
        makespan: When the last task ends.
        bubble: Part of the time of all meshes in which they idle, 0 to 1.
        in_flight: For every mesh, the most activations (one stage, one microbatch) that it holds between F and B.
        stashed: The same until W, where there is one; equal to `in_flight` for schedules without W.
        memory: For every mesh, the most bytes that these activations are, with the `activation_bytes` given; None without.
    """

    schedule: Schedule
    spans: tuple[Span, ...]
    makespan: float
    bubble: float
    in_flight: tuple[int, ...]
    stashed: tuple[int, ...]
    memory: tuple[float, ...] | None

    def as_text(self, width: int = 100) -> str:
        """The picture in characters: a line per mesh, the microbatch's last digit for F, letters for B, `w` for W, `.` where it idles.

        Args:
            width: Columns of the picture at most.
        """
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
            lines.append(f"mesh {mesh} |{''.join(cells)}| in flight {self.in_flight[mesh]}")
        return "\n".join(lines)

    def as_svg(self) -> str:
        """The picture as a stand-alone SVG document."""
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

    def to_perfetto(self, seconds: float = 1.0) -> str:
        """JSON in the trace event format, which ui.perfetto.dev and chrome://tracing open.

        Args:
            seconds: Seconds per unit of the costs.
        """
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

    def _repr_html_(self) -> str:
        return self.as_svg()

    def __str__(self) -> str:
        return self.as_text()


def _letter(span: Span) -> str:
    if span.task.kind == "W":
        return "w"
    return str(span.task.microbatch % 10) if span.task.kind == "F" else "abcdefghij"[span.task.microbatch % 10]
