"""Schedules of the table, by name."""

from __future__ import annotations

from shardy_py.pipelines.schedules.orders import ALIASES, SCHEDULES
from shardy_py.pipelines.schedules.tasks import Schedule, ScheduleError, verify


def names() -> tuple[str, ...]:
    """All names that `schedule` takes."""
    return (*SCHEDULES, "auto")


def is_automatic(name: str) -> bool:
    """Whether a name is that of the schedule that depends on costs."""
    return plain_name(name) == "auto"


def plain_name(name: str) -> str:
    """The name in the table that a spelling or an alias stands for."""
    plain = name.strip().lower().replace("_", "-").replace(" ", "-")
    return ALIASES.get(plain, plain)


def check_name(name: str) -> None:
    """Raises ScheduleError if `schedule` does not take the name."""
    if plain_name(name) not in names():
        raise _unknown(name)


def _unknown(name: str) -> ScheduleError:
    return ScheduleError(f"there is no schedule {name!r}", where="schedule(name)", fix=f"use one of {', '.join(map(repr, names()))}")


def named(name: str, stages: int, microbatches: int, virtual: int) -> Schedule:
    """The schedule of a name in the table; see `schedule`."""
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
    orders = tuple(tuple(row.order(mesh, stages, microbatches, virtual)) for mesh in range(stages))
    result = Schedule(name, stages, microbatches, virtual, orders)
    verify(result)
    return result
