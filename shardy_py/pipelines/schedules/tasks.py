"""Tasks of a pipeline, and the order in which each mesh runs its own.

A task is (kind, stage, microbatch): "F" is the forward pass, "B" the backward pass, "W" the part of the backward pass that computes
gradients of parameters, where a schedule runs it apart (zero bubble). Stage s lives on mesh `s % meshes`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

from shardy_py.errors import ShardyError

KINDS = ("F", "B", "W")


class ScheduleError(ShardyError):
    """A schedule that does not exist or would deadlock."""


class Task(NamedTuple):
    """One task; compares equal to the plain tuple.

    Attributes:
        kind: "F", "B" or "W".
        stage: Stage, from 0; with `virtual` stages per mesh there are meshes * virtual of them.
        microbatch: Microbatch, from 0.
    """

    kind: str
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.stage}.{self.microbatch}"


@dataclass(frozen=True)
class Schedule:
    """The order of tasks on every mesh.

    Attributes:
        name: Its name in `SCHEDULES`, or one that the user chose.
        meshes: Number of meshes.
        microbatches: Number of microbatches.
        virtual: Stages per mesh.
        orders: Tasks of every mesh, in the order in which it runs them.
    """

    name: str
    meshes: int
    microbatches: int
    virtual: int
    orders: tuple[tuple[Task, ...], ...]

    @property
    def per_mesh(self) -> list[list[Task]]:
        """The tasks of every mesh as lists."""
        return [list(order) for order in self.orders]

    @property
    def stages(self) -> int:
        """Number of stages: meshes * virtual."""
        return self.meshes * self.virtual

    @functools.cached_property
    def split_backwards(self) -> frozenset[tuple[int, int]]:
        """(stage, microbatch) of the backward passes that are split into B and W."""
        return frozenset((task.stage, task.microbatch) for order in self.orders for task in order if task.kind == "W")

    @property
    def split_backward(self) -> bool:
        """Whether some backward pass is split into B and W."""
        return bool(self.split_backwards)

    def __str__(self) -> str:
        return "\n".join(f"mesh {i}: {' '.join(map(str, order))}" for i, order in enumerate(self.orders))


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
        raise TypeError(f"{schedule!r} is no schedule; make one with `schedule(name, stages, microbatches)`")
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
    done = [0] * schedule.meshes
    finished: set[Task] = set()
    while len(finished) < len(seen):
        moved = False
        for mesh, order in enumerate(schedule.orders):
            while done[mesh] < len(order) and all(need in finished for need in needs(order[done[mesh]], schedule.stages)):
                finished.add(order[done[mesh]])
                done[mesh] += 1
                moved = True
        if not moved:
            stuck = []
            for mesh, order in enumerate(schedule.orders):
                if done[mesh] < len(order):
                    task = order[done[mesh]]
                    missing = next(need for need in needs(task, schedule.stages) if need not in finished)
                    stuck.append(f"mesh {mesh} waits at {task} for {missing}")
            raise ScheduleError(
                "the schedule does not end", where=schedule.name, why="every mesh runs its tasks in order, and each waits for another",
                fix="move the task that is waited for in front of the one that waits", notes=stuck,
            )  # fmt: skip


def _check_task(schedule: Schedule, mesh: int, task: Task) -> None:
    if task.kind not in KINDS or not 0 <= task.stage < schedule.stages or not 0 <= task.microbatch < schedule.microbatches:
        raise ScheduleError(
            f"no task {task}", where=f"mesh {mesh} of {schedule.name}",
            why=f"kinds are F, B and W, stages 0 to {schedule.stages - 1}, microbatches 0 to {schedule.microbatches - 1}", fix="remove it",
        )  # fmt: skip
    if task.stage % schedule.meshes != mesh:
        raise ScheduleError(
            f"{task} is on mesh {mesh}", where=schedule.name, why=f"stage {task.stage} lives on mesh {task.stage % schedule.meshes}",
            fix="move it there",
        )  # fmt: skip


def needs(task: Task, stages: int) -> tuple[Task, ...]:
    """The tasks that have to end before a task starts."""
    kind, stage, microbatch = task
    if kind == "F":
        return (Task("F", stage - 1, microbatch),) if stage else ()
    if kind == "W":
        return (Task("B", stage, microbatch),)
    own = (Task("F", stage, microbatch),)
    return own if stage == stages - 1 else (*own, Task("B", stage + 1, microbatch))
