"""`schedule`: the schedule of a name, or the best one for given costs."""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.pipelines.schedules.automatic import automatic
from shardy_py.pipelines.schedules.named import named, names, plain_name
from shardy_py.pipelines.schedules.tasks import Schedule, ScheduleError


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
    name = plain_name(name)
    if name == "auto":
        return automatic(stages, microbatches, virtual, (forward, backward, weight, transfer), max_in_flight)
    return named(name, stages, microbatches, virtual)
