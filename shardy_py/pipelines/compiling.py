"""Compiling the programs of a pipeline for the meshes of their stages."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.core import ShapedArray
from jax.extend.core import Var
from jax.sharding import PartitionSpec

from shardy_py.api import auto_shard
from shardy_py.cost.hardware import Hardware
from shardy_py.facade import Plan
from shardy_py.pipelines.jaxprs import dtype_of, shape_of, struct_of
from shardy_py.pipelines.placing import Places, axes_of
from shardy_py.pipelines.programs import PartialSums, TaskProgram, stages_reading
from shardy_py.pipelines.transfers import stub


def compile_program(program: TaskProgram, places: Places, donate: Sequence[int]) -> Any:
    """The compiled program on the mesh of its stage."""
    mesh = places.mesh(program.stage)
    if mesh.size > 1:
        return _sharded(program, places, donate).lower(*structs(program)).compile()
    ins, outs = shardings(program, places)
    jitted = jax.jit(program.function(), in_shardings=ins, out_shardings=outs, donate_argnums=tuple(donate), keep_unused=True)
    return jitted.lower(*structs(program)).compile()


def plan_of(program: TaskProgram, places: Places) -> Plan:
    """The plan of a program for its mesh, which has several devices."""
    return _sharded(program, places, ()).plan(*structs(program))


def exchange(program: TaskProgram, places: Places, hardware: Hardware) -> tuple[float, int]:
    """Seconds and bytes of the collectives in the plan of a program; none where a stage has one device."""
    if places.mesh(program.stage).size == 1 or not program.nodes:
        return 0.0, 0
    cost = plan_of(program, places).cost_analysis(hardware)
    return cost.communication_seconds or 0.0, cost.communicated_bytes


def structs(program: TaskProgram) -> list[jax.ShapeDtypeStruct]:
    """The types of what a program takes."""
    return [struct_of(v) for v in (*program.inputs, *program.sums)]


def results_elsewhere(program: TaskProgram, places: Places) -> list[jax.Array]:
    """Stubs for the results of a program whose stage is in other processes."""
    if places.is_here(program.stage):
        return []
    results = (*program.outputs, *program.sums, *program.resets)
    return [stub(shape_of(v), dtype_of(v), sharding) for v, sharding in zip(results, shardings(program, places)[1])]


def shardings(program: TaskProgram, places: Places) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Where a program takes its operands and leaves its results."""
    ins, outs = (*program.inputs, *program.sums), (*program.outputs, *program.sums, *program.resets)
    return tuple(places.sharding(v, program.stage) for v in ins), tuple(places.sharding(v, program.stage) for v in outs)


def positional(run: Callable[..., Any], count: int) -> Callable[..., Any]:
    """A function with as many parameters, in place of any number."""
    function = functools.wraps(run)(lambda *values: run(*values))
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(f"x{i}", inspect.Parameter.POSITIONAL_ONLY) for i in range(count)]
    )
    return function


def _sharded(program: TaskProgram, places: Places, donate: Sequence[int]) -> Any:
    ins, outs = shardings(program, places)
    return auto_shard(
        positional(program.function(), len(ins)), mesh=places.mesh(program.stage), in_shardings=ins or None, out_shardings=outs,
        donate_argnums=tuple(donate) or None,
        lowering="shard_map" if program.stands and program.sums else "jit",  # under "jit" XLA adds up what devices have of a sum, each time
        planner=places.planner,
    )  # fmt: skip


def donatable(program: TaskProgram, candidates: Sequence[int], places: Places) -> list[int]:
    """The operands whose memory results can take: for each a result of its type and sharding, which no operand before it takes."""

    def layout(v: Var) -> tuple[Any, ...]:
        return shape_of(v), dtype_of(v), places.sharding(v, program.stage)

    free = [layout(v) for v in (*program.outputs, *program.resets)]
    donated: list[int] = []
    for i in candidates:
        if (output_layout := layout(program.inputs[i])) in free:
            free.remove(output_layout)
            donated.append(i)
    return donated


def defer_sums(
    programs: dict[tuple[str, int], TaskProgram], updates: Sequence[TaskProgram], places: Places, batch: Iterable[Var]
) -> tuple[dict[tuple[str, int], TaskProgram], list[TaskProgram]]:
    """Lets the parts of sums over devices wait until the last microbatch; the last update of a stage makes zeros for its sums."""
    over = {name for v in batch for name in places.axes_over(v)}
    read_at = stages_reading(updates)
    inside = dict(programs)
    once = list(updates)
    for s in range(places.stages):
        own = [key for key in programs if key[1] == s]
        parts = {v: _parts(v, s, places, over) for key in own for v in programs[key].sums if read_at.get(v, {s}) == {s}}
        waiting_sums = {v: pair for v, pair in parts.items() if pair is not None}
        if not waiting_sums:
            continue
        stands = dict(waiting_sums.values())
        of = {v: variable for v, (variable, _) in waiting_sums.items()}
        for key in own:
            sums = tuple(of.get(v, v) for v in programs[key].sums)
            used = {v: stands[v] for v in sums if v in stands}
            if used:
                inside[key] = replace(programs[key], sums=sums, stands={**programs[key].stands, **used})
        for i, program in enumerate(once):
            if program.stage == s:
                inputs, resets = (tuple(of.get(v, v) for v in values) for values in (program.inputs, program.resets))
                used = {v: stands[v] for v in (*inputs, *resets) if v in stands}
                once[i] = replace(program, inputs=inputs, resets=resets, stands={**program.stands, **used})
    return inside, once


def _axes(spec: Iterable[Any]) -> list[str]:
    return [name for entry in spec for name in axes_of(entry)]


def _parts(v: Var, stage: int, places: Places, over: Container[str]) -> tuple[Var, PartialSums] | None:
    """The parts that stand for a sum of a stage; None where no axis is left to sum over."""
    sharding = places.sharding(v, stage)
    used = _axes(sharding.spec)
    left = tuple(name for name, size in sharding.mesh.shape.items() if size > 1 and name in over and name not in used)
    if not left:
        return None
    num_shards = math.prod(sharding.mesh.shape[name] for name in left)
    parts = Var(ShapedArray((num_shards, *shape_of(v)), dtype_of(v)))
    places.specs[parts] = PartitionSpec(left, *sharding.spec)
    return parts, PartialSums(v, num_shards)
