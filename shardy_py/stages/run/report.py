"""What a pipeline will cost: a table per stage, the simulated schedule, what does not fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend.core import Var

from shardy_py.cost.hardware import Hardware
from shardy_py.stages.prediction import predicted
from shardy_py.stages.run.atoms import dtype_of, shape_of
from shardy_py.stages.run.building import Built
from shardy_py.stages.run.errors import PipelineError
from shardy_py.stages.run.exchanging import exchange
from shardy_py.stages.run.timing import PASSES, sent, stage_times
from shardy_py.stages.run.waiting import waiting
from shardy_py.stages.simulation import Simulation, costs_of, simulate


@dataclass(frozen=True)
class StageRow:
    """One stage.

    Attributes:
        name: Its name.
        mesh: The number of its mesh.
        forward_seconds: Modelled time of a forward pass of one microbatch, what its devices exchange included.
        backward_seconds: Modelled time of a backward pass, gradients of parameters included.
        bytes_in: Bytes of activations that a microbatch brings from other stages.
        bytes_out: Bytes of activations that it sends to other stages.
        exchanged_bytes: Bytes that collectives between the devices of the stage bring to one of them, for a microbatch.
        parameter_bytes: Bytes per device of what microbatches share: parameters, and constants.
        state_bytes: Bytes per device of what only the update reads: moments of an optimizer.
        gradient_bytes: Bytes per device of sums over microbatches.
        activation_bytes: Bytes per device that one microbatch leaves until its backward pass.
        in_flight: The most microbatches whose activations are held at once.
    """

    name: str
    mesh: int
    forward_seconds: float
    backward_seconds: float
    bytes_in: int
    bytes_out: int
    exchanged_bytes: int
    parameter_bytes: int
    state_bytes: int
    gradient_bytes: int
    activation_bytes: int
    in_flight: int

    @property
    def memory_bytes(self) -> int:
        """All of it, per device."""
        return self.parameter_bytes + self.state_bytes + self.gradient_bytes + self.in_flight * self.activation_bytes

    def cells(self) -> tuple[str, ...]:
        """All but the name, as a table shows it."""
        times = (_time(self.forward_seconds), _time(self.backward_seconds))
        moved = (_bytes(self.bytes_in), _bytes(self.bytes_out), _bytes(self.exchanged_bytes))
        kept = (self.parameter_bytes, self.state_bytes, self.gradient_bytes, self.activation_bytes)
        return (str(self.mesh), *times, *moved, *map(_bytes, kept), str(self.in_flight), _bytes(self.memory_bytes))


@dataclass(frozen=True)
class Report:
    """What a pipeline will cost on some hardware.

    Attributes:
        rows: One per stage.
        simulation: The schedule with these times, in seconds.
        predicted_seconds: Time of a step by the formula, see `prediction.predicted`.
        hardware: What was modelled.
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
        body = [(row.name, *row.cells()) for row in self.rows]
        widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
        lines = [f"{line[0]:{widths[0]}}" + "".join(f"  {cell:>{w}}" for cell, w in zip(line[1:], widths[1:])) for line in (head, *body)]
        given = self.simulation.schedule
        step = f"{_time(self.simulation.makespan)} per step on {self.hardware}, {_time(self.predicted_seconds)} by the formula"
        return "\n".join([*lines, f"{given.name}, {given.microbatches} microbatches: {step}, bubble {self.bubble:.1%}"])


def report(built: Built, hardware: Hardware) -> Report:
    """The report of a pipeline.

    Args:
        built: The pipeline.
        hardware: What it is to run on.
    """
    times = stage_times(built.programs, built.places, hardware)
    exchanged = [0] * built.places.stages
    batch = [v for v, is_batch in zip(built.split.micro.invars, built.signature.batch) if is_batch]
    for (role, s), program in waiting(built.programs, built.update, built.places, batch)[0].items():
        inside = exchange(program, built.places, hardware)
        times[PASSES[role]][s] += inside.seconds
        exchanged[s] += inside.bytes
    moved = sent(built.programs)
    simulation = simulate(built.schedule, **times)
    rows = []
    for s in range(built.places.stages):
        order = built.schedule.orders[s % built.schedule.meshes]
        rows.append(_row(built, s, times["forward"][s], times["backward"][s] + times["weight"][s], moved, exchanged[s], _held(order, s)))
    return Report(tuple(rows), simulation, predicted(built.schedule, costs_of(built.places.stages, **times)), hardware.name)


def check_memory(found: Report, limit: float) -> None:
    """Refuses a pipeline with a mesh that needs more than a device has.

    Args:
        found: The report.
        limit: Bytes of a device.

    Raises:
        PipelineError: The message says which stages, and by how much.
    """
    for mesh in sorted({row.mesh for row in found.rows}):
        rows = [row for row in found.rows if row.mesh == mesh]
        need = sum(row.memory_bytes for row in rows)
        if need > limit:
            held = sum(row.in_flight * row.activation_bytes for row in rows)
            raise PipelineError(
                f"{_listed(rows)} {_bytes(need)} per device, {_bytes(need - limit)} more than there are",
                where=f"mesh {mesh}, memory_bytes={limit:g}",
                why=f"activations in flight take {_bytes(held)}, the rest is parameters, state and gradients",
                fix="use more microbatches, more stages, another schedule, jax.checkpoint, or more devices per stage",
            )


def _listed(rows: Sequence[StageRow]) -> str:
    names = " and ".join(repr(row.name) for row in rows)
    return f"stages {names} need" if len(rows) > 1 else f"stage {names} needs"


def _row(
    built: Built, s: int, forward: float, backward: float, moved: dict[tuple[int, int], int], exchanged: int, held: int
) -> StageRow:
    inputs = built.split.micro.invars
    is_batch = dict(zip(inputs, built.signature.batch))
    programs = [program for (_, t), program in built.programs.items() if t == s]
    read = dict.fromkeys(v for program in programs for v in program.inputs)
    parts = {v for program in built.parts for v in program.outputs}
    shared = [v for v in read if (v in is_batch and not is_batch[v]) or v in built.split.micro.consts or v in parts]
    first = programs[0]
    made_here = set(first.outputs)
    late = dict.fromkeys(v for program in programs[1:] for v in program.inputs)
    kept = [v for v in late if v in made_here or (v in first.inputs and v not in shared)]
    state = [v for v, owner in built.updates.owner.items() if owner == s and v not in shared]
    return StageRow(
        built.assigned.names[s], s % built.schedule.meshes, forward, backward,
        sum(n for (_, b), n in moved.items() if b == s), sum(n for (a, _), n in moved.items() if a == s), exchanged,
        sum(_local(built, v, s) for v in shared), sum(_local(built, v, s) for v in state),
        sum(_local(built, v, s) for program in programs for v in program.sums),
        sum(_local(built, v, s) for v in kept), held,
    )  # fmt: skip


def _local(built: Built, v: Var, s: int) -> int:
    """Bytes of a value on one device of its stage."""
    shape = built.places.sharding(v, s).shard_shape(shape_of(v)) if shape_of(v) else ()
    return math.prod(shape) * getattr(dtype_of(v), "itemsize", 4)


def _held(order: Any, s: int) -> int:
    held = peak = 0
    last = "W" if any(t.kind == "W" and t.stage == s for t in order) else "B"
    for task in order:
        if task.stage == s:
            held += (task.kind == "F") - (task.kind == last)
            peak = max(peak, held)
    return peak


def _bytes(n: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n:.0f} B" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return ""


def _time(seconds: float) -> str:
    for scale, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
