"""The time of a step from stage times alone, without simulating it."""

from __future__ import annotations

from itertools import takewhile

from shardy_py.pipelines.schedules.simulation import Costs
from shardy_py.pipelines.schedules.tasks import Schedule


def predicted(schedule: Schedule, costs: Costs) -> float:
    """Time of a step by the formula of pipelines: one cycle per microbatch, and the pipeline filled and drained once.

    A cycle is the work of the busiest mesh, or the time in which a microbatch goes to the end and back divided by how many are on their
    way at once: as many as there are forwards in front of the first backward, or, where microbatches go round (several stages per mesh),
    one per mesh. Filling and draining takes the work of all other meshes, divided by the stages per mesh; of that the forward pass only
    where gradients of parameters fill the gaps (zero bubble).

    Returns:
        Time in the unit of the costs. `simulate` gives the exact makespan under the same assumptions.

    Example:
        >>> from shardy_py.pipelines import schedule
        >>> from shardy_py.pipelines.schedules.simulation import costs_of
        >>> predicted(schedule("1f1b", 4, 8), costs_of(4))
        33.0
    """
    meshes, stages = schedule.meshes, schedule.stages
    whole = [f + b + w for f, b, w in zip(costs.forward, costs.backward, costs.weight)]
    work = [sum(whole[d::meshes]) for d in range(meshes)]
    passing = costs.forward if schedule.split_backward else whole
    busiest = max(range(meshes), key=lambda d: work[d])
    filling = (sum(passing) - sum(passing[busiest::meshes])) / schedule.virtual
    crossing = 2 * sum(costs.transfer)
    if schedule.virtual > 1:
        cycle = max(work[busiest], (sum(whole) + crossing) / meshes)
    else:
        there = [f + b for f, b in zip(costs.forward, costs.backward)] if schedule.split_backward else whole
        cycle = work[busiest]
        for s in range(stages):
            ahead = sum(1 for _ in takewhile(lambda task: task.kind == "F", schedule.orders[s]))
            cycle = max(cycle, (sum(there[s:]) + 2 * sum(costs.transfer[s:])) / ahead)
    return schedule.microbatches * cycle + filling + crossing
