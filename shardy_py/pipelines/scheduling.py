"""Schedules by name; `auto` is the best of the named ones and of greedy searches with different bounds on activations in flight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from shardy_py.pipelines.orders import SCHEDULES, VIRTUAL, Schedule, ScheduleError, Task, check_name, named, names, needs, plain_name
from shardy_py.pipelines.simulation import Costs, Simulation, costs_of, run, verify


def automatic(meshes: int, microbatches: int, virtual: int, costs: Sequence[Any], max_in_flight: int | None) -> Schedule:
    """The schedule with the smallest simulated makespan; of equal ones that with fewer activations in flight, then without W.

    Raises ScheduleError if no schedule keeps to the bound.
    """
    durations = costs_of(meshes * virtual, *costs)
    best: tuple[tuple[float, ...], Simulation] | None = None
    least = microbatches * virtual
    for candidate in _candidates(meshes, microbatches, virtual, durations):
        result = run(candidate, durations)
        peak = max(result.stashed)
        least = min(least, peak)
        if max_in_flight is not None and peak > max_in_flight:
            continue
        # Rounded, so that sums in another order do not decide.
        rank = (float(f"{result.makespan:.12g}"), sum(result.in_flight), sum(result.stashed), float(candidate.split_backward))
        if best is None or rank < best[0]:
            best = rank, result
    if best is None:
        raise ScheduleError(
            f"no schedule holds at most {max_in_flight} activations per mesh", where='schedule("auto")',
            why=f"the best one found holds {least}", fix=f"pass max_in_flight={least}, or use fewer stages",
        )  # fmt: skip
    return Schedule("auto", meshes, microbatches, virtual, best[1].schedule.orders)


def _candidates(meshes: int, microbatches: int, virtual: int, costs: Costs) -> Iterator[Schedule]:
    for name in SCHEDULES:
        if virtual == 1 or (name in VIRTUAL and microbatches % meshes == 0):
            yield named(name, meshes, microbatches, virtual)
    seen: set[tuple[int, ...]] = set()
    for numerator in (2, 3, 4, 6, 8, 2 * microbatches):
        bounds = tuple(min(max(1, -(-numerator * (meshes - mesh) // 2)), microbatches) for mesh in range(meshes))
        for inputs_first in (True, False):
            if bounds not in seen:
                yield greedy(meshes, microbatches, virtual, costs, bounds, inputs_first)
        seen.add(bounds)


def greedy(meshes: int, microbatches: int, virtual: int, costs: Costs, bounds: Sequence[int], weights_last: bool = True) -> Schedule:
    """Starts the first task that can start on a free mesh, B before F before W, with at most `bounds` microbatches in flight."""
    stages = meshes * virtual
    ends: dict[Task, float] = {}
    free = [0.0] * meshes
    orders: list[list[Task]] = [[] for _ in range(meshes)]
    following = {kind: [0] * stages for kind in "FBW"}
    rank = {"B": 0, "F": 1, "W": 2} if weights_last else {"B": 0, "W": 1, "F": 2}
    for _ in range(3 * stages * microbatches):
        best: tuple[tuple[float, ...], Task] | None = None
        for mesh in range(meshes):
            for stage in range(mesh, stages, meshes):
                for kind in "BFW":
                    task = Task(kind, stage, following[kind][stage])
                    if task.microbatch == microbatches:
                        continue
                    if kind == "F" and stage == mesh and task.microbatch - following["B"][stage] >= bounds[mesh]:
                        continue
                    needed = needs(task, stages)
                    if any(need not in ends for need in needed):
                        continue
                    start = max([free[mesh], *(ends[need] + costs.delay(need, task, meshes) for need in needed)])
                    order = (start, float(rank[kind]), float(-stage if kind == "F" else stage), float(mesh))
                    if best is None or order < best[0]:
                        best = order, task
        assert best is not None
        task = best[1]
        mesh = task.stage % meshes
        ends[task] = free[mesh] = best[0][0] + costs.of(task, True)
        following[task.kind][task.stage] += 1
        orders[mesh].append(task)
    return Schedule("greedy", meshes, microbatches, virtual, tuple(map(tuple, orders)))


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
            does not matter, and "_" stands for "-".
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
                f"{label} is {value!r}", where=f"schedule({name!r})", why="it is a whole number, 1 or more", fix=f"pass {label}=4"
            )
    if not isinstance(name, str):
        raise TypeError(f"the name of a schedule is a string, not {name!r}; use one of {', '.join(map(repr, names()))}")
    check_name(name)
    name = plain_name(name)
    if name == "auto":
        chosen = automatic(stages, microbatches, virtual, (forward, backward, weight, transfer), max_in_flight)
    else:
        chosen = named(name, stages, microbatches, virtual)
    verify(chosen)
    return chosen
