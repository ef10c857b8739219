"""Schedules: in which order each mesh of a pipeline runs the tasks of its stages, and all that have a closed form."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from shardy_py.errors import ShardyError


class ScheduleError(ShardyError):
    """A schedule that does not exist or would deadlock."""


class Task(NamedTuple):
    """One task; compares equal to the plain tuple.

    Attributes:
        kind: "F", "B" or "W".
        stage: Stage, from 0; with `virtual` stages per mesh there are meshes * virtual of them.
        microbatch: Microbatch, from 0.

    Example:
        >>> Task("F", 1, 0) == ("F", 1, 0)
        True
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

    Example:
        >>> from shardy_py.pipelines import schedule
        >>> order = schedule("gpipe", 2, 2)
        >>> order.meshes, [str(task) for task in order.orders[1]]
        (2, ['F1.0', 'F1.1', 'B1.0', 'B1.1'])
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


def needs(task: Task, stages: int) -> tuple[Task, ...]:
    """The tasks that have to end before a task starts."""
    kind, stage, microbatch = task
    if kind == "F":
        return (Task("F", stage - 1, microbatch),) if stage else ()
    if kind == "W":
        return (Task("B", stage, microbatch),)
    own = (Task("F", stage, microbatch),)
    return own if stage == stages - 1 else (*own, Task("B", stage + 1, microbatch))


def _alternating(mesh: int, microbatches: int, warmup: int) -> list[Task]:
    """`warmup` forwards, then one backward and one forward in turn, then the backwards that are left."""
    warmup = min(warmup, microbatches)
    tasks = [Task("F", mesh, m) for m in range(warmup)]
    for m in range(microbatches):
        tasks.append(Task("B", mesh, m))
        if warmup + m < microbatches:
            tasks.append(Task("F", mesh, warmup + m))
    return tasks


def _with_weights(tasks: list[Task], mesh: int, microbatches: int, lag: int, after_forward: bool) -> list[Task]:
    """Puts W of microbatch m behind B of m + lag, or behind the forward that follows it; the others come last.

    The first mesh has no input gradient to hurry for, so that its backward stays whole.
    """
    if mesh == 0:
        return tasks
    out: list[Task] = []
    waiting: list[Task] = []
    for task in tasks:
        if waiting and (task.kind == "B" or not after_forward):
            out += waiting
            waiting = []
        out.append(task)
        if task.kind == "B" and task.microbatch >= lag:
            waiting = [Task("W", mesh, task.microbatch - lag)]
    out += waiting
    return out + [Task("W", mesh, m) for m in range(max(microbatches - lag, 0), microbatches)]


def _rounds(mesh: int, meshes: int, microbatches: int, virtual: int, kind: str) -> Iterator[Task]:
    """Microbatches in groups of one per mesh; each group goes through all stages of the mesh before the next one comes."""
    chunks = [*range(virtual)] if kind == "F" else [*reversed(range(virtual))]
    group = meshes if virtual > 1 else microbatches
    for start in range(0, microbatches, group):
        for chunk in chunks:
            for m in range(start, min(start + group, microbatches)):
                yield Task(kind, chunk * meshes + mesh, m)


def _circular_reversed(mesh: int, meshes: int, microbatches: int, virtual: int) -> list[Task]:
    backward = [Task("B", chunk * meshes + mesh, m) for chunk in reversed(range(virtual)) for m in range(microbatches)]
    return [*_rounds(mesh, meshes, microbatches, virtual, "F"), *backward]


def _interleaved(mesh: int, meshes: int, microbatches: int, virtual: int) -> list[Task]:
    if virtual == 1:
        return _alternating(mesh, microbatches, meshes - mesh)
    forwards = [*_rounds(mesh, meshes, microbatches, virtual, "F")]
    backwards = [*_rounds(mesh, meshes, microbatches, virtual, "B")]
    warmup = min(2 * (meshes - mesh - 1) + (virtual - 1) * meshes, len(forwards))
    tasks = forwards[:warmup]
    for done, forward in enumerate(forwards[warmup:]):
        tasks += [forward, backwards[done]]
    return tasks + backwards[len(forwards) - warmup :]


SCHEDULES: dict[str, Callable[[int, int, int, int], list[Task]]] = {
    # All forwards, then all backwards.
    "gpipe": lambda d, n, m, v: _alternating(d, m, m),
    # GPipe, but the last mesh alternates.
    "gpipe-1f1b-last": lambda d, n, m, v: _alternating(d, m, 1 if d == n - 1 else m),
    # As many forwards as there are stages behind, then one backward and one forward in turn.
    "1f1b": lambda d, n, m, v: _alternating(d, m, n - d),
    # 1F1B with twice the forwards in front, which hides transfers.
    "eager-1f1b": lambda d, n, m, v: _alternating(d, m, 2 * (n - d) - 1),
    "interleaved": _interleaved,  # 1F1B over several stages per mesh
    # Groups of microbatches go round all stages forwards, then all backwards.
    "circular": lambda d, n, m, v: [*_rounds(d, n, m, v, "F"), *_rounds(d, n, m, v, "B")],
    "circular-reversed": _circular_reversed,  # circular, with the backwards of one stage together
    # 1F1B with gradients of parameters put off, in the memory of 1F1B.
    "zb-h1": lambda d, n, m, v: _with_weights(_alternating(d, m, n - d), d, m, d, False),
    # The same behind twice the forwards, for twice the memory.
    "zb-h2": lambda d, n, m, v: _with_weights(_alternating(d, m, 2 * (n - d) - 1), d, m, 2 * d, d < n - 1),
}
"""The order of a mesh, by its number, that of all meshes, of microbatches, and of stages on each mesh."""

VIRTUAL = frozenset({"interleaved", "circular", "circular-reversed"})
"""Those that have several stages on each mesh."""


def names() -> tuple[str, ...]:
    """All names that `schedule` takes."""
    return (*SCHEDULES, "auto")


def plain_name(name: str) -> str:
    """The name in the table that a spelling stands for."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def check_name(name: str) -> None:
    """Raises ScheduleError if `schedule` does not take the name."""
    if plain_name(name) not in names():
        raise ScheduleError(
            f"unknown schedule {name!r}",
            where="schedule(name)",
            why="no schedule has this name",
            fix=f"use one of {', '.join(map(repr, names()))}",
        )


def named(name: str, stages: int, microbatches: int, virtual: int) -> Schedule:
    """The schedule of a name in the table; see `schedule`."""
    if virtual > 1 and name not in VIRTUAL:
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
    orders = tuple(tuple(SCHEDULES[name](mesh, stages, microbatches, virtual)) for mesh in range(stages))
    return Schedule(name, stages, microbatches, virtual, orders)
