"""Predicted costs of a pipeline: a row per stage and the simulated schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jax.extend.core import Var

from shardy_py.api.peers import listed
from shardy_py.cost.hardware import Hardware
from shardy_py.dialect.format import aligned
from shardy_py.pipelines.building import StagedStep
from shardy_py.pipelines.compiling import defer_sums, exchange
from shardy_py.pipelines.errors import PipelineError
from shardy_py.pipelines.jaxprs import dtype_of, shape_of, struct_of
from shardy_py.pipelines.placing import processes_of_mesh
from shardy_py.pipelines.programs import PASSES, sent, stage_times, stages_reading
from shardy_py.pipelines.simulation import Simulation, peak_held, simulate
from shardy_py.pipelines.transfers import Relocation
from shardy_py.plan.collectives import format_bytes
from shardy_py.plan.cost_analysis import seconds_text


@dataclass(frozen=True)
class StageMemory:
    """Memory of one stage on a device.

    Attributes:
        activation_bytes: Bytes per device that one microbatch leaves until its backward pass.
        in_flight: The most microbatches whose activations are held at once.
    """

    name: str
    mesh: int
    parameter_bytes: int
    state_bytes: int
    gradient_bytes: int
    activation_bytes: int
    in_flight: int

    @property
    def memory_bytes(self) -> int:
        """All of it, per device."""
        return self.parameter_bytes + self.state_bytes + self.gradient_bytes + self.in_flight * self.activation_bytes


def stage_memory(built: StagedStep) -> list[StageMemory]:
    """Memory of every stage of a pipeline."""
    return [_of(built, s) for s in range(built.places.stages)]


def check_memory(stages: Sequence[StageMemory], limit: float) -> None:
    """Raises PipelineError, with the stages and the excess, if a mesh needs more memory than its device has."""
    for mesh in sorted({stage.mesh for stage in stages}):
        here = [stage for stage in stages if stage.mesh == mesh]
        need = sum(stage.memory_bytes for stage in here)
        if need > limit:
            activations = sum(stage.in_flight * stage.activation_bytes for stage in here)
            raise PipelineError(
                f"{_listed(here)} {format_bytes(need)} per device, {format_bytes(math.ceil(need - limit))} more than there is",
                where=f"mesh {mesh}, memory_bytes={limit:g}",
                why=f"activations in flight take {format_bytes(activations)}, the rest is parameters, state and gradients",
                fix="use more microbatches, more stages, another schedule, jax.checkpoint, or more devices per stage",
            )


def _listed(stages: Sequence[StageMemory]) -> str:
    names = " and ".join(repr(stage.name) for stage in stages)
    return f"stages {names} need" if len(stages) > 1 else f"stage {names} needs"


def _of(built: StagedStep, s: int) -> StageMemory:
    programs = [program for (_, t), program in built.programs.items() if t == s]
    read = dict.fromkeys(v for program in programs for v in program.inputs)
    parts, own = {v for program in built.parts for v in program.outputs}, set(built.split.parameters)
    shared = [v for v in read if v in own or v in built.split.micro.consts or v in parts]
    first = programs[0]
    outputs_of_forward = set(first.outputs)
    late = dict.fromkeys(v for program in programs[1:] for v in program.inputs)
    residuals = [v for v in late if v in outputs_of_forward or (v in first.inputs and v not in shared)]
    state = [v for v, owner in built.updates.owner.items() if owner == s and v not in shared]
    mesh = s % built.schedule.meshes
    return StageMemory(
        built.assigned.names[s],
        mesh,
        parameter_bytes=sum(_local(built, v, s) for v in shared),
        state_bytes=sum(_local(built, v, s) for v in state),
        gradient_bytes=sum(_local(built, v, s) for program in programs for v in program.sums),
        activation_bytes=sum(_local(built, v, s) for v in residuals),
        in_flight=peak_held([task for task in built.schedule.orders[mesh] if task.stage == s], built.schedule.split_backwards),
    )


def _local(built: StagedStep, v: Var, s: int) -> int:
    """Bytes of a value on one device of its stage."""
    shape = built.places.sharding(v, s).shard_shape(shape_of(v)) if shape_of(v) else ()
    return math.prod(shape) * getattr(dtype_of(v), "itemsize", 4)


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
class PipelineReport:
    """Predicted costs of a pipeline on some hardware.

    Attributes:
        simulation: The schedule with these times, in seconds.
        hardware: The hardware that was modelled.
        crossing: Two stages -> bytes of activations and cotangents that a microbatch sends from processes of one to others of the other.
        processes: Of every stage; empty where there is one process.
    """

    rows: tuple[StageRow, ...]
    simulation: Simulation
    hardware: str
    crossing: Mapping[tuple[int, int], int] = field(default_factory=dict)
    processes: tuple[tuple[int, ...], ...] = ()

    @property
    def crossing_bytes(self) -> int:
        """Bytes of activations and cotangents that a microbatch sends from one process to another."""
        return sum(self.crossing.values())

    @property
    def bubble(self) -> float:
        """Part of the time in which meshes idle."""
        return self.simulation.bubble

    def __str__(self) -> str:
        head = tuple("stage mesh forward backward in out exchanged parameters state gradients activations held memory".split())
        lines = aligned([head, *((row.name, *row.cells()) for row in self.rows)], right=range(1, len(head)))
        schedule, names = self.simulation.schedule, [row.name for row in self.rows]
        step = f"{seconds_text(self.simulation.makespan)} per step on {self.hardware}"
        between = f", {format_bytes(self.crossing_bytes)} between processes per microbatch" if self.crossing_bytes else ""
        lines.append(f"{schedule.name}, {schedule.microbatches} microbatches: {step}, bubble {self.bubble:.1%}{between}")
        where = (f"{name} in {listed(each)}" for name, each in zip(names, self.processes))
        sent = (f"{names[s]} -> {names[t]} {format_bytes(n)}" for (s, t), n in self.crossing.items())
        return "\n".join([*lines, *(", ".join(each) for each in (where, sent) if self.processes)])


def report(built: StagedStep, hardware: Hardware) -> PipelineReport:
    """The report of a pipeline."""
    times = stage_times(built.programs, built.places, hardware)
    exchanged = [0] * built.places.stages
    places = built.places.copy()
    for (role, s), program in defer_sums(built.programs, built.update, places, built.split.batch)[0].items():
        seconds, size = exchange(program, places, hardware)
        times[PASSES[role]][s] += seconds
        exchanged[s] += size
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
    processes = tuple(tuple(sorted(processes_of_mesh(built.places.mesh(s)))) for s in range(built.places.stages))
    if len(set().union(*processes)) < 2:
        return PipelineReport(rows, simulation, hardware.name)
    return PipelineReport(rows, simulation, hardware.name, _crossing(built), processes)


def _crossing(built: StagedStep) -> dict[tuple[int, int], int]:
    places, readers = built.places, stages_reading(built.programs.values())
    crossing: dict[tuple[int, int], int] = {}
    moves = [(v, s, t) for (_, s), program in built.programs.items() for v in program.outputs for t in readers.get(v, ())]
    for v, s, t in moves:
        if places.mesh(t) != places.mesh(s):
            size = Relocation([struct_of(v)], [places.sharding(v, s)], [places.sharding(v, t)]).crossing_bytes
            crossing[s, t] = crossing.get((s, t), 0) + size
    return {link: size for link, size in crossing.items() if size}
