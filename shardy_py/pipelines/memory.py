"""Memory of the stages of a pipeline on a device, and which do not fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jax.extend.core import Var

from shardy_py.pipelines.building import StagedStep
from shardy_py.pipelines.errors import PipelineError
from shardy_py.pipelines.jaxprs import dtype_of, shape_of
from shardy_py.pipelines.schedules.simulation import peak_held
from shardy_py.plan.movements import format_bytes


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
                f"{_listed(here)} {format_bytes(need)} per device, {format_bytes(math.ceil(need - limit))} more than there are",
                where=f"mesh {mesh}, memory_bytes={limit:g}",
                why=f"activations in flight take {format_bytes(activations)}, the rest is parameters, state and gradients",
                fix="use more microbatches, more stages, another schedule, jax.checkpoint, or more devices per stage",
            )


def _listed(stages: Sequence[StageMemory]) -> str:
    names = " and ".join(repr(stage.name) for stage in stages)
    return f"stages {names} need" if len(stages) > 1 else f"stage {names} needs"


def _of(built: StagedStep, s: int) -> StageMemory:
    inputs = built.split.micro.invars
    is_batch = dict(zip(inputs, built.signature.batch))
    programs = [program for (_, t), program in built.programs.items() if t == s]
    read = dict.fromkeys(v for program in programs for v in program.inputs)
    parts = {v for program in built.parts for v in program.outputs}
    shared = [v for v in read if (v in is_batch and not is_batch[v]) or v in built.split.micro.consts or v in parts]
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
