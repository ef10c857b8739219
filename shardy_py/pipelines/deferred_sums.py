"""Sums over microbatches and devices: devices add up once per step, after the last microbatch.

Every device of a stage sums its own part of a gradient; an all-reduce per microbatch would send as much again each time. The parts lie in
a dimension of their own, which is sharded over the axes that examples are sharded over and the value is not.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import Any

from jax.core import ShapedArray
from jax.extend.core import Var
from jax.sharding import PartitionSpec

from shardy_py.pipelines.jaxprs import dtype_of, shape_of
from shardy_py.pipelines.placing import Places, axes_of
from shardy_py.pipelines.programs import PartialSums, Program, stages_reading


def defer_sums(
    programs: dict[tuple[str, int], Program], updates: Sequence[Program], places: Places, batch: Iterable[Var]
) -> tuple[dict[tuple[str, int], Program], list[Program]]:
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
