"""A schedule on paper: its times and memory, and its pictures."""

from __future__ import annotations

import html
import json
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardy_py.pipelines.orders import Schedule, ScheduleError, Task, needs

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

    Example:
        >>> from shardy_py.pipelines import schedule, simulate
        >>> simulation = simulate(schedule("gpipe", 2, 2), forward=1, backward=2)
        >>> simulation.makespan, simulation.in_flight
        (12.0, (2, 2))
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


@dataclass(frozen=True)
class Costs:
    """Durations per stage and transfer times per boundary between stages, all in one unit."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    weight: tuple[float, ...]
    transfer: tuple[float, ...]

    def of(self, task: Task, split: bool) -> float:
        """Duration of a task; a backward that is not split takes both parts."""
        if task.kind == "F":
            return self.forward[task.stage]
        if task.kind == "W":
            return self.weight[task.stage]
        return self.backward[task.stage] + (0.0 if split else self.weight[task.stage])

    def delay(self, need: Task, task: Task, meshes: int) -> float:
        """Transfer time from a task to a dependent one; zero within a mesh."""
        return 0.0 if need.stage % meshes == task.stage % meshes else self.transfer[min(need.stage, task.stage)]


def costs_of(
    stages: int,
    forward: float | Sequence[float] = 1.0,
    backward: float | Sequence[float] | None = None,
    weight: float | Sequence[float] | None = None,
    transfer: float | Sequence[float] = 0.0,
) -> Costs:
    """The costs of all stages; see `simulate` for the arguments."""
    one = _spread(forward, stages, "forward")
    return Costs(
        one,
        one if backward is None else _spread(backward, stages, "backward"),
        one if weight is None else _spread(weight, stages, "weight"),
        _spread(transfer, stages - 1, "transfer"),
    )


def _spread(value: float | Sequence[float], count: int, label: str) -> tuple[float, ...]:
    if isinstance(value, str):
        raise TypeError(f"{label}={value!r} is not a number or a sequence of numbers")
    values = (float(value),) * count if not isinstance(value, Sequence) else tuple(float(v) for v in value)
    if len(values) != count:
        raise ScheduleError(
            f"{label} has {len(values)} values and there are {count} {'boundaries' if label == 'transfer' else 'stages'}",
            where=f"{label}=", fix=f"pass one number, or {count} of them",
        )  # fmt: skip
    for v in values:
        if not 0 <= v < float("inf"):
            raise ScheduleError(f"{label} is {v!r}", where=f"{label}=", why="a time is finite and not negative", fix="pass a time")
    return values


def verify(schedule: Schedule) -> None:
    """Checks that a schedule can run: every task once and on its mesh, none before its inputs, no deadlock.

    Args:
        schedule: A result of `schedule`, or one written by hand.

    Raises:
        TypeError: It is not a schedule.
        ScheduleError: It cannot run; the message names the first task that is wrong.

    Example:
        >>> from shardy_py.pipelines import schedule
        >>> verify(schedule("1f1b", 2, 4))
    """
    if not isinstance(schedule, Schedule):
        raise TypeError(f"{schedule!r} is not a schedule; make one with `schedule(name, stages, microbatches)`")
    needed = schedule.stages * schedule.microbatches
    seen: set[Task] = set()
    for mesh, order in enumerate(schedule.orders):
        for task in order:
            _check_task(schedule, mesh, Task(*task))
            if task in seen:
                raise ScheduleError(
                    f"{Task(*task)} is scheduled twice", where=f"mesh {mesh} of {schedule.name}", fix="list every task once"
                )
            seen.add(Task(*task))
    for kind in "FB":
        if sum(task.kind == kind for task in seen) != needed:
            missing = next(
                Task(kind, s, m) for s in range(schedule.stages) for m in range(schedule.microbatches) if Task(kind, s, m) not in seen
            )
            raise ScheduleError(
                f"{missing} is not scheduled", where=f"mesh {missing.stage % schedule.meshes} of {schedule.name}",
                why="every stage runs every microbatch forward and backward", fix="add it",
            )  # fmt: skip
    run(schedule, costs_of(schedule.stages))


def _check_task(schedule: Schedule, mesh: int, task: Task) -> None:
    if task.kind not in _NAMES or not 0 <= task.stage < schedule.stages or not 0 <= task.microbatch < schedule.microbatches:
        raise ScheduleError(
            f"no task {task}", where=f"mesh {mesh} of {schedule.name}",
            why=f"kinds are F, B and W, stages 0 to {schedule.stages - 1}, microbatches 0 to {schedule.microbatches - 1}", fix="remove it",
        )  # fmt: skip
    if task.stage % schedule.meshes != mesh:
        raise ScheduleError(
            f"{task} is on mesh {mesh}", where=schedule.name, why=f"stage {task.stage} lives on mesh {task.stage % schedule.meshes}",
            fix="move it there",
        )  # fmt: skip


def simulate(
    schedule: Schedule,
    *,
    forward: float | Sequence[float] = 1.0,
    backward: float | Sequence[float] | None = None,
    weight: float | Sequence[float] | None = None,
    transfer: float | Sequence[float] = 0.0,
    activation_bytes: float | Sequence[float] | None = None,
) -> Simulation:
    """Simulates a schedule: every mesh runs its tasks in order, each when its inputs have arrived.

    A transfer delays the task that waits for it and keeps no mesh busy: it is asynchronous, and links are not shared.

    Args:
        schedule: The schedule.
        forward: Time of F, one number or one per stage.
        backward: Time of the part of the backward pass that computes the gradients of the stage's inputs; as `forward` by default.
        weight: Time of the part that computes gradients of parameters; as `forward` by default. A B without a W takes both.
        transfer: Time from one stage to the next and back, one number or one per boundary. It is 0 between stages of one mesh.
        activation_bytes: Bytes that one microbatch leaves at a stage until its backward pass, one number or one per stage.

    Returns:
        Makespan, bubble, activations in flight, pictures.

    Raises:
        ScheduleError: The schedule does not run, or there is not one cost per stage.

    Example:
        >>> from shardy_py.pipelines import schedule
        >>> result = simulate(schedule("1f1b", 4, 8))
        >>> result.makespan, round(result.bubble, 3), result.in_flight
        (33.0, 0.273, (4, 3, 2, 1))
    """
    verify(schedule)
    costs = costs_of(schedule.stages, forward, backward, weight, transfer)
    sizes = None if activation_bytes is None else _spread(activation_bytes, schedule.stages, "activation_bytes")
    return run(schedule, costs, sizes)


def run(schedule: Schedule, costs: Costs, sizes: tuple[float, ...] | None = None) -> Simulation:
    """Simulates a schedule of tasks that exist; see `simulate`. Raises ScheduleError if it does not end."""
    split = schedule.split_backwards
    ends: dict[Task, float] = {}
    spans: list[list[Span]] = [[] for _ in schedule.orders]
    position = [0] * schedule.meshes
    free = [0.0] * schedule.meshes
    left = sum(map(len, schedule.orders))
    while left:
        before = left
        for mesh, order in enumerate(schedule.orders):
            while position[mesh] < len(order):
                task = order[position[mesh]]
                needed = needs(task, schedule.stages)
                if any(need not in ends for need in needed):
                    break
                start = max([free[mesh], *(ends[need] + costs.delay(need, task, schedule.meshes) for need in needed)])
                end = start + costs.of(task, (task.stage, task.microbatch) in split)
                ends[task] = free[mesh] = end
                spans[mesh].append(Span(mesh, task, start, end))
                position[mesh] += 1
                left -= 1
        if left == before:
            waiting = [(mesh, order[at]) for mesh, (order, at) in enumerate(zip(schedule.orders, position)) if at < len(order)]
            first = [next(need for need in needs(task, schedule.stages) if need not in ends) for _, task in waiting]
            raise ScheduleError(
                "the schedule does not end", where=schedule.name, why="every mesh runs its tasks in order, and each waits for another",
                fix="move the task that is waited for in front of the one that waits",
                notes=[f"mesh {mesh} waits at {task} for {need}" for (mesh, task), need in zip(waiting, first)],
            )  # fmt: skip
    makespan = max(free)
    busy = sum(span.end - span.start for line in spans for span in line)
    bubble = 1.0 - busy / (makespan * schedule.meshes) if makespan else 0.0
    return Simulation(
        schedule, tuple(span for line in spans for span in line), makespan, bubble,
        tuple(peak_held(order) for order in schedule.orders),
        tuple(peak_held(order, split) for order in schedule.orders),
        None if sizes is None else tuple(peak_held(order, split, sizes) for order in schedule.orders),
    )  # fmt: skip


def peak_held(order: Sequence[Task], split: Container[tuple[int, int]] = (), sizes: Sequence[float] | None = None) -> Any:
    """The most activations that a mesh holds at once: an F adds its stage's size, its B takes it away, or its W where it is split."""
    total = peak = 0
    for task in order:
        size = 1 if sizes is None else sizes[task.stage]
        if task.kind == "F":
            total += size
        elif task.kind == ("W" if (task.stage, task.microbatch) in split else "B"):
            total -= size
        peak = max(peak, total)
    return peak
