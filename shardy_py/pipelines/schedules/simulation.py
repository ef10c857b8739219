"""Simulates a schedule: start and end of every task, idle time of meshes, activations that they hold."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

from shardy_py.pipelines.schedules.gantt import Simulation, Span
from shardy_py.pipelines.schedules.tasks import Schedule, ScheduleError, Task, needs, verify


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
    """Simulates a schedule that has been verified; see `simulate`."""
    split = schedule.split_backwards
    ends: dict[Task, float] = {}
    spans: list[list[Span]] = [[] for _ in schedule.orders]
    position = [0] * schedule.meshes
    free = [0.0] * schedule.meshes
    left = sum(map(len, schedule.orders))
    while left:
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
