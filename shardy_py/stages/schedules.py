"""Schedules of a pipeline: which mesh runs what, in which order.

A task is (kind, stage, microbatch): "F" is the forward pass, "B" the backward pass, "W" the part of the backward pass that computes
gradients of parameters, where a schedule runs it apart (zero bubble). Stage s lives on mesh `s % stages`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardy_py.errors import ShardyError

KINDS = ("F", "B", "W")


class ScheduleError(ShardyError):
    """A schedule that cannot be made, or one that cannot run."""


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

    @property
    def split_backward(self) -> bool:
        """Whether some backward pass is split into B and W."""
        return any(task.kind == "W" for order in self.orders for task in order)

    def __str__(self) -> str:
        return "\n".join(f"mesh {i}: {' '.join(map(str, order))}" for i, order in enumerate(self.orders))


def verify(given: Schedule) -> None:
    """Checks that a schedule can run: every task once and on its mesh, nothing before what it needs, no deadlock.

    Args:
        given: The schedule.

    Raises:
        TypeError: It is no schedule.
        ScheduleError: It cannot run; the message names the first task that is wrong.

    Example:
        >>> verify(schedule("1f1b", 2, 4))
    """
    if not isinstance(given, Schedule):
        raise TypeError(f"{given!r} is no schedule; make one with `schedule(name, stages, microbatches)`")
    needed = given.stages * given.microbatches
    seen: set[Task] = set()
    for mesh, order in enumerate(given.orders):
        for task in order:
            _check_task(given, mesh, Task(*task))
            if task in seen:
                raise ScheduleError(f"{Task(*task)} is scheduled twice", where=f"mesh {mesh} of {given.name}", fix="list every task once")
            seen.add(Task(*task))
    for kind in "FB":
        if sum(task.kind == kind for task in seen) != needed:
            missing = next(Task(kind, s, m) for s in range(given.stages) for m in range(given.microbatches) if Task(kind, s, m) not in seen)
            raise ScheduleError(
                f"{missing} is not scheduled", where=f"mesh {missing.stage % given.meshes} of {given.name}",
                why="every stage runs every microbatch forward and backward", fix="add it",
            )  # fmt: skip
    done = [0] * given.meshes
    finished: set[Task] = set()
    while len(finished) < len(seen):
        moved = False
        for mesh, order in enumerate(given.orders):
            while done[mesh] < len(order) and all(need in finished for need in needs(order[done[mesh]], given.stages)):
                finished.add(order[done[mesh]])
                done[mesh] += 1
                moved = True
        if not moved:
            stuck = []
            for mesh, order in enumerate(given.orders):
                if done[mesh] < len(order):
                    task = order[done[mesh]]
                    missing = next(need for need in needs(task, given.stages) if need not in finished)
                    stuck.append(f"mesh {mesh} waits at {task} for {missing}")
            raise ScheduleError(
                "the schedule does not end", where=given.name, why="every mesh runs its tasks in order, and each waits for another",
                fix="move the task that is waited for in front of the one that waits", notes=stuck,
            )  # fmt: skip


def _check_task(given: Schedule, mesh: int, task: Task) -> None:
    if task.kind not in KINDS or not 0 <= task.stage < given.stages or not 0 <= task.microbatch < given.microbatches:
        raise ScheduleError(
            f"no task {task}", where=f"mesh {mesh} of {given.name}",
            why=f"kinds are F, B and W, stages 0 to {given.stages - 1}, microbatches 0 to {given.microbatches - 1}", fix="remove it",
        )  # fmt: skip
    if task.stage % given.meshes != mesh:
        raise ScheduleError(
            f"{task} is on mesh {mesh}", where=given.name, why=f"stage {task.stage} lives on mesh {task.stage % given.meshes}",
            fix="move it there",
        )  # fmt: skip


def needs(task: Task, stages: int) -> tuple[Task, ...]:
    """The tasks that have to end before a task starts.

    Args:
        task: The task.
        stages: Number of stages.
    """
    kind, stage, microbatch = task
    if kind == "F":
        return (Task("F", stage - 1, microbatch),) if stage else ()
    if kind == "W":
        return (Task("B", stage, microbatch),)
    own = (Task("F", stage, microbatch),)
    return own if stage == stages - 1 else (*own, Task("B", stage + 1, microbatch))


Order = Callable[[int, int, int, int], list[Task]]


def schedule(
    name: str,
    stages: int,
    microbatches: int,
    virtual: int = 1,
    *,
    forward: float | Sequence[float] = 1.0,
    backward: float | Sequence[float] | None = None,
    weight: float | Sequence[float] | None = None,
    transfer: float | Sequence[float] = 0.0,
    max_in_flight: int | None = None,
) -> Schedule:
    """The schedule of a name, as Shardy MPMD's for "gpipe", "1f1b", "circular" and "zb-h1", as Megatron's for "interleaved".

    Args:
        name: One of `SCHEDULES`, or "auto": the best of all that apply and of a greedy search, by `simulate` with the costs given. Case
            does not matter, and "zero_bubble_h1" or "eager" are understood.
        stages: Number of meshes.
        microbatches: Number of microbatches.
        virtual: Stages per mesh; stage s lives on mesh `s % stages`. Only "circular", "circular-reversed", "interleaved" and "auto" take
            more than 1, and all but "auto" then need `microbatches` to be a multiple of `stages`.
        forward: For "auto": as in `simulate`.
        backward: For "auto": as in `simulate`.
        weight: For "auto": as in `simulate`.
        transfer: For "auto": as in `simulate`.
        max_in_flight: For "auto": the most activations (of one stage and microbatch) that a mesh may hold.

    Returns:
        The schedule; it has been verified.

    Raises:
        ScheduleError: There is no such schedule, or it does not exist for these numbers.

    Example:
        >>> print(schedule("1f1b", 2, 3))
        mesh 0: F0.0 F0.1 B0.0 F0.2 B0.1 B0.2
        mesh 1: F1.0 B1.0 F1.1 B1.1 F1.2 B1.2
    """
    for label, value in (("stages", stages), ("microbatches", microbatches), ("virtual", virtual)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ScheduleError(
                f"{label} is {value!r}", where=f"schedule({name!r})", why="it is a number of things, 1 or more", fix=f"pass {label}=4"
            )
    if not isinstance(name, str):
        raise TypeError(f"the name of a schedule is a string, not {name!r}; use one of {', '.join(map(repr, names()))}")
    name = _plain(name)
    if name == "auto":
        from shardy_py.stages.automatic import automatic

        return automatic(stages, microbatches, virtual, (forward, backward, weight, transfer), max_in_flight)
    return named(name, stages, microbatches, virtual)


def names() -> tuple[str, ...]:
    """All names that `schedule` takes."""
    from shardy_py.stages.orders import SCHEDULES

    return (*SCHEDULES, "auto")


def is_automatic(name: str) -> bool:
    """Whether a name is that of the schedule that depends on costs.

    Args:
        name: As for `schedule`.
    """
    return _plain(name) == "auto"


def _plain(name: str) -> str:
    from shardy_py.stages.orders import ALIASES

    plain = name.strip().lower().replace("_", "-").replace(" ", "-")
    return ALIASES.get(plain, plain)


def check_name(name: str) -> None:
    """Refuses a name that `schedule` does not take.

    Args:
        name: As for `schedule`.

    Raises:
        ScheduleError: There is no such schedule.
    """
    if _plain(name) not in names():
        raise _unknown(name)


def _unknown(name: str) -> ScheduleError:
    return ScheduleError(f"there is no schedule {name!r}", where="schedule(name)", fix=f"use one of {', '.join(map(repr, names()))}")


def named(name: str, stages: int, microbatches: int, virtual: int) -> Schedule:
    """As `schedule`, of a name in the table."""
    from shardy_py.stages.orders import SCHEDULES

    row = SCHEDULES.get(name)
    if row is None:
        raise _unknown(name)
    if virtual > 1 and not row.virtual:
        raise ScheduleError(
            f"{name!r} has one stage per mesh, and virtual is {virtual}", where=f"schedule({name!r})",
            why="its order is defined for one stage per mesh", fix='use "circular", "interleaved" or "auto", or virtual=1',
        )  # fmt: skip
    if virtual > 1 and microbatches % stages:
        up = -(-microbatches // stages) * stages
        raise ScheduleError(
            f"{microbatches} microbatches cannot go through {stages} meshes in groups of {stages}", where=f"schedule({name!r})",
            why="with several stages per mesh, microbatches go round in groups, one microbatch per mesh",
            fix=f'use microbatches={up}, or "auto", which takes any number',
        )  # fmt: skip
    made = Schedule(
        name, stages, microbatches, virtual, tuple(tuple(row.order(mesh, stages, microbatches, virtual)) for mesh in range(stages))
    )
    verify(made)
    return made
