"""The result of a planner's search for a pipeline: what it costs, how it is cut, and what else was considered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardy_py.dialect.format import aligned
from shardy_py.plan.cost_analysis import seconds_text
from shardy_py.plan.movements import format_bytes


@dataclass(frozen=True)
class PlannedStage:
    """A stage of a pipeline.

    Attributes:
        mesh: Axis -> its size.
        seconds: Of all microbatches in this stage, and of its part of the update.
        memory_bytes: Of one device.
    """

    mesh: Mapping[str, int]
    seconds: float
    memory_bytes: int


@dataclass(frozen=True)
class PipelineAlternative:
    """A pipeline that the search considered.

    Attributes:
        name: How it is cut and sharded.
        objective_seconds: Of one step, as `PipelineSearch.objective_seconds`.
        memory_bytes: Of the device that needs most.
        fits: Whether that is within the budget.
    """

    name: str
    objective_seconds: float
    memory_bytes: int
    fits: bool


@dataclass(frozen=True)
class PipelineSearch:
    """The result of a search for stages, meshes and shardings; `Pipelined.search`.

    Attributes:
        hardware: The hardware whose seconds these are.
        objective_seconds: Of one step: by the formula of schedules (`schedules/formula`) over the plans of its programs, and of the update.
        lower_bound_seconds: None: nothing is known that all pipelines take.
        budget_bytes: The most that a device may hold; None without a budget.
        name: Of the pipeline, as among the alternatives.
        alternatives: All pipelines that were priced, the cheapest first.
        timings: Seconds of each step of the search.
    """

    hardware: str
    objective_seconds: float
    lower_bound_seconds: float | None
    budget_bytes: int | None
    name: str
    stages: tuple[PlannedStage, ...]
    alternatives: tuple[PipelineAlternative, ...]
    timings: Mapping[str, float] = field(default_factory=dict[str, float])

    def __str__(self) -> str:
        rows = [("stage", "mesh", "batch", "memory")]
        for number, stage in enumerate(self.stages):
            mesh = " x ".join(f"{name}={size}" for name, size in stage.mesh.items())
            rows.append((str(number), mesh, seconds_text(stage.seconds), format_bytes(stage.memory_bytes)))
        others = [(a.name, seconds_text(a.objective_seconds), "" if a.fits else "does not fit") for a in self.alternatives]
        head = f"step {seconds_text(self.objective_seconds)} on {self.hardware}, {self.name}; no lower bound is known"
        return "\n".join([head, *aligned(rows, right=(2, 3)), *aligned([("pipeline", "step", ""), *others], right=(1,))])
