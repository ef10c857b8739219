"""From a function and its arguments to a pipeline that runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.extend.core import Var
from jax.sharding import PartitionSpec

from shardy_py.api import auto_shard
from shardy_py.api.specs import refuse_host_memory
from shardy_py.api.trees import location_of
from shardy_py.cost.hardware import Hardware
from shardy_py.dialect.format import aligned
from shardy_py.frontends.leaves import Leaves, trace_leaves
from shardy_py.frontends.mesh_context import on_a_mesh_or_none, traced_on
from shardy_py.pipelines.assignment import Assignment, assign
from shardy_py.pipelines.errors import PipelineError
from shardy_py.pipelines.flatten import FlatStep, flatten
from shardy_py.pipelines.jaxprs import dtype_of, is_extended_dtype, shape_of, struct_of
from shardy_py.pipelines.markers import Marking, marker_of
from shardy_py.pipelines.microbatching import SplitStep, split
from shardy_py.pipelines.orders import Schedule, plain_name
from shardy_py.pipelines.placing import Places, submeshes, trace_mesh
from shardy_py.pipelines.programs import (
    TaskProgram,
    Updates,
    evaluate,
    part_programs,
    parts_of_parameters,
    place_updates,
    stage_programs,
    stage_times,
    update_programs,
)
from shardy_py.pipelines.residuals import Layout, handovers, rematerialized
from shardy_py.pipelines.scheduling import schedule
from shardy_py.pipelines.sends import reduce_sends
from shardy_py.plan.collectives import format_bytes
from shardy_py.plan.cost_analysis import seconds_text
from shardy_py.planner.options import Planner


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
class PipelineSearch:
    """A pipeline that a search for stages, meshes and shardings considered; as `Pipelined.search` the one that it chose.

    Attributes:
        hardware: The hardware whose seconds these are.
        objective_seconds: Of one step: its schedule, simulated with the plans of its programs, and the update.
        budget_bytes: The most that a device may hold; None without a budget.
        name: How it is cut and sharded.
        alternatives: All pipelines that were priced, the cheapest first.
    """

    hardware: str
    objective_seconds: float
    budget_bytes: int | None
    name: str
    stages: tuple[PlannedStage, ...]
    alternatives: tuple[PipelineSearch, ...] = ()

    @property
    def memory_bytes(self) -> int:
        """Of the device that needs most."""
        return max(stage.memory_bytes for stage in self.stages)

    @property
    def fits(self) -> bool:
        """Whether that is within the budget."""
        return self.budget_bytes is None or self.memory_bytes <= self.budget_bytes

    def __str__(self) -> str:
        rows = [("stage", "mesh", "batch", "memory")]
        for number, stage in enumerate(self.stages):
            mesh = " x ".join(f"{name}={size}" for name, size in stage.mesh.items())
            rows.append((str(number), mesh, seconds_text(stage.seconds), format_bytes(stage.memory_bytes)))
        others = [(a.name, seconds_text(a.objective_seconds), "" if a.fits else "does not fit") for a in self.alternatives]
        head = f"step {seconds_text(self.objective_seconds)} on {self.hardware}, {self.name}; no lower bound is known"
        return "\n".join([head, *aligned(rows, right=(2, 3)), *aligned([("pipeline", "step", ""), *others], right=(1,))])


@dataclass(frozen=True)
class PipelineOptions:
    """The arguments of `pipeline`."""

    fun: Callable[..., Any]
    num_stages: int | None
    partition: Marking | None
    num_microbatches: int
    mesh: Any
    axis: str
    schedule: str | Schedule
    virtual: int
    in_shardings: Any
    batch_argnums: tuple[int, ...] | None
    local_statistics: bool
    donate_argnums: tuple[int, ...]
    memory_bytes: float | None
    hardware: Hardware
    planner: Planner | None = None
    peer_timeout: float | None = None


@dataclass(frozen=True)
class CallSignature:
    """The types of a call; for each leaf, the number of its argument and whether it is part of the batch."""

    tree: Any
    structs: tuple[jax.ShapeDtypeStruct, ...]
    argument: tuple[int, ...]
    paths: tuple[str, ...]
    batch: tuple[bool, ...]


@dataclass(frozen=True)
class StagedStep:
    """A training step in stages, for one signature.

    Attributes:
        parts: Programs that cut stacked parameters for stages that need a part of them, once.
    """

    options: PipelineOptions
    signature: CallSignature
    split: SplitStep
    assigned: Assignment
    updates: Updates
    schedule: Schedule
    places: Places
    programs: dict[tuple[str, int], TaskProgram]
    update: list[TaskProgram]
    parts: list[TaskProgram]
    plan: Any
    search: PipelineSearch | None = None


def build(options: PipelineOptions, signature: CallSignature) -> StagedStep:
    """Traces, cuts and places a step; compiles nothing. Raises PipelineError if it cannot be run as asked."""
    meshes_needed = None if options.num_stages is None else _per_mesh(options.num_stages, options.virtual)
    inner_first = None if meshes_needed is None else submeshes(options.mesh, options.axis, meshes_needed)
    places = None if inner_first is None else Places(inner_first, len(inner_first) * options.virtual)
    context = trace_mesh(places) if places is not None else jax.sharding.AbstractMesh((), ())
    split_step = trace_step(options, signature, context)
    assigned = assign(split_step, options.num_stages, options.hardware, stage_names(options))
    if places is None:
        places = Places(submeshes(options.mesh, options.axis, _per_mesh(assigned.stages, options.virtual)), assigned.stages)
    return staged(options, signature, split_step, assigned, places)


def stage_names(options: PipelineOptions) -> list[str] | None:
    """The markers of all stages in order, where a partition gives them."""
    return None if options.partition is None else [marker_of(number) for number in range(options.num_stages or 0)]


def trace_step(options: PipelineOptions, signature: CallSignature, context: Any) -> SplitStep:
    """Traces a step, and cuts it in what runs per microbatch and what runs once.

    Raises PipelineError if it depends on its batch in a way that microbatches do not reproduce.
    """
    fun = forward = _partitioned(options, signature)
    whole, result = _trace(fun, signature, context)
    is_loss = _is_loss(whole, result)
    if is_loss:
        whole, result = _trace(jax.value_and_grad(forward), signature, context)
    split_step = split(whole, signature.batch, options.num_microbatches, options.local_statistics)
    return replace(split_step, out_tree=result.outline.tree, is_loss=is_loss)


def staged(
    options: PipelineOptions,
    signature: CallSignature,
    split_step: SplitStep,
    assigned: Assignment,
    places: Places,
    *,
    propagate: bool = True,
) -> StagedStep:
    """The programs of a step whose equations have stages. Raises PipelineError if it cannot be run as asked."""
    order = _schedule(options, split_step, assigned, places)
    split_stages = {stage for stage, _ in order.split_backwards}
    splits = [s in split_stages for s in range(assigned.stages)]
    plan = _shard(options, signature, split_step, places) if places.is_sharded and propagate else None
    placed = reduce_sends(split_step, assigned, places, options.hardware)
    split_step, assigned = placed.split, placed.assigned
    places.specs.update({copy: places.specs[v] for copy, v in placed.copies.items() if v in places.specs})
    parts = parts_of_parameters(split_step, [v for v in split_step.parameters if len(assigned.uses.get(v, ())) > 1])
    programs = stage_programs(split_step, assigned, splits, parts)
    updates, update = updating(split_step, programs, parts)
    cut = part_programs(split_step, parts, updates.owner, [v for program in programs.values() for v in program.inputs if v in parts])
    recomputed: set[Var] = set()
    for s, handover in enumerate(handovers(split_step, assigned, programs)):
        recomputed |= rematerialized(handover, options.hardware, Layout(places.specs, dict(places.mesh(s).shape)))
    programs = stage_programs(split_step, assigned, splits, parts, recomputed)
    return StagedStep(
        options, signature, split_step, assigned, updates, order, places, programs, update, cut, plan,
    )  # fmt: skip


def updating(
    split_step: SplitStep, programs: Mapping[tuple[str, int], TaskProgram], parts: Mapping[Var, Var]
) -> tuple[Updates, list[TaskProgram]]:
    """The part that runs once: its rounds and stages, and its programs."""
    located = {v: program.stage for program in programs.values() for v in program.sums}
    used: dict[Var, set[int]] = {}
    for (_, s), program in programs.items():
        for v in program.inputs:
            used.setdefault(parts.get(v, v), set()).add(s)
    updates = place_updates(split_step.update, located, {v: sorted(s) for v, s in used.items()}, split_step.parameters)
    return updates, update_programs(split_step, updates, [v for v in split_step.results if isinstance(v, Var)])


def _per_mesh(stages: int, virtual: int) -> int:
    if stages % virtual:
        raise PipelineError(
            f"{stages} stages cannot lie {virtual} on a mesh", where=f"sp.pipeline(virtual={virtual})",
            why="every mesh holds the same number of stages", fix=f"use a multiple of {virtual} stages",
        )  # fmt: skip
    return stages // virtual


def _schedule(options: PipelineOptions, split_step: SplitStep, assigned: Assignment, places: Places) -> Schedule:
    meshes = _per_mesh(assigned.stages, options.virtual)
    if isinstance(options.schedule, str):
        times: dict[str, Any] = {}
        if plain_name(options.schedule) == "auto":
            apart = stage_programs(split_step, assigned, [True] * assigned.stages)
            times = stage_times(apart, places, options.hardware)
        return schedule(options.schedule, meshes, options.num_microbatches, options.virtual, **times)
    custom = options.schedule
    if (custom.meshes, custom.virtual, custom.microbatches) != (meshes, options.virtual, options.num_microbatches):
        raise PipelineError(
            f"the schedule is for {custom.meshes} meshes, {custom.virtual} stages on each and {custom.microbatches} microbatches",
            where="sp.pipeline(schedule=)",
            why=f"the pipeline has {meshes}, {options.virtual} and {options.num_microbatches}", fix="make it for these numbers",
        )  # fmt: skip
    return custom


def _partitioned(options: PipelineOptions, signature: CallSignature) -> Callable[..., Any]:
    """The function, with stages marked where a partition says which."""
    if options.partition is None:
        return options.fun
    parameters = sorted(set(signature.argument) - set(_batch_numbers(options, max(signature.argument))))
    return options.partition.marked(options.fun, parameters)


def _trace(fun: Callable[..., Any], signature: CallSignature, context: Any) -> tuple[FlatStep, Leaves]:
    run = functools.partial(trace_leaves, lambda *leaves: fun(*signature.tree.unflatten(leaves)), *signature.structs)
    is_set = not jax.sharding.get_abstract_mesh().empty
    jaxpr, result = on_a_mesh_or_none(run, functools.partial(traced_on, context), mesh_first=is_set)
    for key, aval in zip(result.outline.keys, jaxpr.out_avals, strict=True):
        refuse_host_memory(aval, f"result{key} of {location_of(fun)}", is_result=True)
    return flatten(jaxpr, signature.batch), result


def _is_loss(flat: FlatStep, result: Leaves) -> bool:
    """Whether a function returns one number and takes no gradient."""
    outline, structs = result.outline, result.values
    if outline.tree != jax.tree.structure(0) or structs[0].shape or not jax.dtypes.issubdtype(structs[0].dtype, np.floating):
        return False
    return not any(node.backward for node in flat.nodes)


def _shard(options: PipelineOptions, signature: CallSignature, split_step: SplitStep, places: Places) -> Any:
    """Propagates shardings through one microbatch and the update; fills `places.specs` for all values, so that any cut finds its own."""
    micro = split_step.micro
    variables = [v for node in (*micro.nodes, *split_step.update) for v in node.eqn.outvars]
    structs = [struct_of(v) for v in micro.invars]

    def function(*arguments: Any) -> list[Any]:
        env: dict[Var, Any] = dict(zip(micro.invars, jax.tree.leaves(arguments)))
        env.update(micro.consts)
        env.update({v: jax.numpy.zeros(shape_of(v), dtype_of(v)) for v in split_step.prologue})
        evaluate(micro.nodes, env)
        evaluate(split_step.update, env)
        return [env[v] for v in variables]

    arguments = jax.tree.unflatten(signature.tree, structs)
    shardings = options.in_shardings
    if shardings is None:
        axis = next(iter(places.inner))
        size = places.inner[axis]
        leaves = [PartitionSpec(axis) if v in split_step.examples and shape_of(v)[0] % size == 0 else None for v in micro.invars]
        shardings = jax.tree.unflatten(signature.tree, leaves)
    named = functools.wraps(options.fun)(lambda *arguments: function(*arguments))
    plan = auto_shard(named, mesh=places.inner, in_shardings=shardings).plan(*arguments)
    for values, planned in ((micro.invars, plan.input_shardings), (variables, plan.output_shardings)):
        places.specs.update((v, sharding.spec) for v, sharding in zip(values, jax.tree.leaves(planned)))
    return plan


def batch_leaves(options: PipelineOptions, paths: Sequence[str], structs: Sequence[Any], argument: Sequence[int]) -> tuple[bool, ...]:
    """For every leaf, whether it is part of the batch; by default arrays of all arguments but the first, without keys."""
    last = max(argument, default=0)
    chosen = _batch_numbers(options, last)
    out_of_range = [a for a in chosen if not 0 <= a <= last]
    if out_of_range:
        raise PipelineError(
            f"batch_argnums names argument {out_of_range[0]}", where="sp.pipeline(batch_argnums=)",
            why=f"the call has {last + 1} positional arguments", fix=f"use numbers from 0 to {last}",
        )  # fmt: skip
    flags = []
    for struct, a in zip(structs, argument):
        is_key = is_extended_dtype(struct.dtype) or (options.batch_argnums is None and struct.dtype == np.uint32 and struct.shape == (2,))
        flags.append(a in chosen and len(struct.shape) > 0 and not is_key)
    rows = {paths[i]: structs[i].shape[0] for i, flag in enumerate(flags) if flag}
    if not rows:
        raise PipelineError(
            "there is no batch among the arguments", where="sp.pipeline",
            why="microbatches are parts of the first dimension of arrays, by default of all arguments but the first",
            fix="pass the batch as an argument, and its number in batch_argnums=",
        )  # fmt: skip
    if len(set(rows.values())) > 1:
        (a, m), (b, n) = next((x, y) for x in rows.items() for y in rows.items() if x[1] != y[1])
        raise PipelineError(
            f"{a} has {m} rows and {b} has {n}", where="the batch", why="the first dimension of every array of the batch is its examples",
            fix="pass batch_argnums= for the arguments that are the batch; arrays that are not belong in other arguments",
        )  # fmt: skip
    size, count = next(iter(rows.values())), options.num_microbatches
    if size % count or size == 0:
        good = [d for d in range(1, size + 1) if size % d == 0]
        near = min(good, key=lambda d: (abs(d - count), d), default=1)
        raise PipelineError(
            f"{size} examples cannot be cut into {count} microbatches", where=f"the first dimension of {next(iter(rows))}",
            why="microbatches are of one size", fix=f"pass num_microbatches={near}, or a batch of {-(-max(size, 1) // count) * count}",
        )  # fmt: skip
    return tuple(flags)


def _batch_numbers(options: PipelineOptions, last: int) -> tuple[int, ...]:
    """Arguments that hold the batch, of those up to `last`."""
    if options.batch_argnums is not None:
        return options.batch_argnums
    return tuple(range(1, last + 1)) if last else ()
