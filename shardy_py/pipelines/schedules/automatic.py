"""The automatic schedule: the best of all named ones and of greedy searches with different bounds on activations in flight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from shardy_py.pipelines.schedules.gantt import Simulation
from shardy_py.pipelines.schedules.named import named
from shardy_py.pipelines.schedules.orders import SCHEDULES
from shardy_py.pipelines.schedules.simulation import Costs, costs_of, run
from shardy_py.pipelines.schedules.tasks import Schedule, ScheduleError, Task, needs, verify


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
    chosen = best[1].schedule
    verify(chosen)
    return Schedule("auto", meshes, microbatches, virtual, chosen.orders)


def _candidates(meshes: int, microbatches: int, virtual: int, costs: Costs) -> Iterator[Schedule]:
    for name, row in SCHEDULES.items():
        if virtual == 1 or (row.virtual and microbatches % meshes == 0):
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
