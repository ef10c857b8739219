"""Predicted costs of a pipeline: a row per stage and the simulated schedule."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.cost.hardware import Hardware
from shardy_py.dialect.format import aligned
from shardy_py.pipelines.building import StagedStep
from shardy_py.pipelines.deferred_sums import defer_sums
from shardy_py.pipelines.memory import StageMemory, stage_memory
from shardy_py.pipelines.schedules.formula import predicted
from shardy_py.pipelines.schedules.gantt import Simulation
from shardy_py.pipelines.schedules.simulation import costs_of, simulate
from shardy_py.pipelines.stage_collectives import exchange
from shardy_py.pipelines.timing import PASSES, sent, stage_times
from shardy_py.plan.cost_analysis import seconds_text
from shardy_py.plan.movements import format_bytes


@dataclass(frozen=True)
class StageRow(StageMemory):
    """Memory, times and transfers of one stage.

    Attributes:
        forward_seconds: Modelled time of a forward pass of one microbatch, collectives between its devices included.
        backward_seconds: Modelled time of a backward pass, gradients of parameters included.
        bytes_in: Bytes of activations that a microbatch brings from other stages.
        bytes_out: Bytes of activations that it sends to other stages.
        exchanged_bytes: Bytes that collectives between the devices of the stage bring to one of them, for a microbatch.
    """

    forward_seconds: float
    backward_seconds: float
    bytes_in: int
    bytes_out: int
    exchanged_bytes: int

    def cells(self) -> tuple[str, ...]:
        """All but the name, as a table shows it."""
        times = (seconds_text(self.forward_seconds), seconds_text(self.backward_seconds))
        moved = (self.bytes_in, self.bytes_out, self.exchanged_bytes)
        sizes = (self.parameter_bytes, self.state_bytes, self.gradient_bytes, self.activation_bytes)
        return (str(self.mesh), *times, *map(format_bytes, (*moved, *sizes)), str(self.in_flight), format_bytes(self.memory_bytes))


@dataclass(frozen=True)
class Report:
    """Predicted costs of a pipeline on some hardware.

    Attributes:
        simulation: The schedule with these times, in seconds.
        predicted_seconds: Time of a step by the formula, see `prediction.predicted`.
        hardware: The hardware that was modelled.
    """

    rows: tuple[StageRow, ...]
    simulation: Simulation
    predicted_seconds: float
    hardware: str

    @property
    def bubble(self) -> float:
        """Part of the time in which meshes idle."""
        return self.simulation.bubble

    def __str__(self) -> str:
        head = tuple("stage mesh forward backward in out exchanged parameters state gradients activations held memory".split())
        lines = aligned([head, *((row.name, *row.cells()) for row in self.rows)], right=range(1, len(head)))
        schedule = self.simulation.schedule
        step = (
            f"{seconds_text(self.simulation.makespan)} per step on {self.hardware}, {seconds_text(self.predicted_seconds)} by the formula"
        )
        return "\n".join([*lines, f"{schedule.name}, {schedule.microbatches} microbatches: {step}, bubble {self.bubble:.1%}"])


def report(built: StagedStep, hardware: Hardware) -> Report:
    """The report of a pipeline."""
    times = stage_times(built.programs, built.places, hardware)
    exchanged = [0] * built.places.stages
    batch = [v for v, is_batch in zip(built.split.micro.invars, built.signature.batch) if is_batch]
    places = built.places.copy()
    for (role, s), program in defer_sums(built.programs, built.update, places, batch)[0].items():
        inside = exchange(program, places, hardware)
        times[PASSES[role]][s] += inside.seconds
        exchanged[s] += inside.bytes
    moved = sent(built.programs)
    simulation = simulate(built.schedule, **times)
    rows = tuple(
        StageRow(
            **vars(memory),
            forward_seconds=times["forward"][s],
            backward_seconds=times["backward"][s] + times["weight"][s],
            bytes_in=sum(n for (_, to), n in moved.items() if to == s),
            bytes_out=sum(n for (of, _), n in moved.items() if of == s),
            exchanged_bytes=exchanged[s],
        )
        for s, memory in enumerate(stage_memory(built))
    )
    return Report(rows, simulation, predicted(built.schedule, costs_of(built.places.stages, **times)), hardware.name)
