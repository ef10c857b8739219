"""Small values that take the same way share a buffer: handing an array to a program, or taking one from it, costs JAX some microseconds.

Values that programs of stages hand each other, sums over microbatches and parameters of a stage are packed, each by element type and
sharding, where a value is no larger than what is copied in that time. Programs cut their operands out of the buffers and put their
results into them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax.core import ShapedArray
from jax.extend.core import Var
from jax.sharding import PartitionSpec

from shardy_py.stages.jaxprs import dtype_of, is_extended_dtype, shape_of
from shardy_py.stages.run.buffers import Buffer
from shardy_py.stages.run.placing import Places, axes_of
from shardy_py.stages.run.programs import Program, stages_reading

PACKED_BYTES = 16384
"""Bytes per device up to which a value is packed. JAX takes 3 to 4 us for an array that goes out of a program and into the next, in which
one core copies about as much."""

FEWEST_USES = 8
"""Runs of a stage's programs in a step from which packing its parameters, which takes a program of its own, pays."""


@dataclass(frozen=True)
class Packed:
    """Programs whose values between them are packed into buffers; `parameters` pack those of a stage, once per step."""

    programs: dict[tuple[str, int], Program]
    parameters: list[Program]
    updates: list[Program]


def pack_programs(
    programs: dict[tuple[str, int], Program], updates: Sequence[Program], places: Places, fixed: Container[Var], microbatches: int
) -> Packed:
    """Packs small values that programs hand each other into buffers, except `fixed` ones: the batch, keys, results per example."""
    readers: dict[Var, list[tuple[str, int]]] = {}
    for key, program in programs.items():
        for v in program.inputs:
            readers.setdefault(v, []).append(key)
    updated = stages_reading(updates)
    handed_over = {v for program in programs.values() for v in program.outputs}
    packer = _Packer(places)
    handed: dict[Var, Var] = {}
    totals: list[dict[Var, Var]] = [{} for _ in range(places.stages)]
    for (_, s), program in programs.items():
        moving = [v for v in program.outputs if v not in fixed and readers.get(v)]
        handed.update(packer.pack(moving, lambda v, s=s: tuple(readers[v]), lambda v, s=s: {s, *(t for _, t in readers[v])}))
        summed = [v for v in program.sums if updated.get(v, {s}) == {s}]
        totals[s].update(packer.pack(summed, lambda v: (), lambda v, s=s: {s}))
    parameters: list[Program] = []
    shared: list[dict[Var, Var]] = []
    for s in range(places.stages):
        own = [program for (_, t), program in programs.items() if t == s]
        parameters_read = dict.fromkeys(v for program in own for v in program.inputs if v not in handed_over and v not in fixed)
        pays = len(own) * microbatches >= FEWEST_USES
        of = packer.pack(parameters_read if pays else (), lambda v, s=s: tuple(r for r, t in readers[v] if t == s), lambda v, s=s: {s})
        if of:
            parameters.append(packer.using(Program("P", s, 0, (), tuple(of), tuple(of), ()), {}, of, {}))
        shared.append(of)
    stages = {(role, s): packer.using(program, handed | shared[s], handed, totals[s]) for (role, s), program in programs.items()}
    once = [packer.using(program, totals[program.stage], {}, totals[program.stage]) for program in updates]
    return Packed(stages, parameters, once)


class _Packer:
    """Makes buffers."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self.content: dict[Var, Buffer] = {}

    def pack(self, values: Iterable[Var], route: Callable[[Var], Hashable], stages: Callable[[Var], Iterable[int]]) -> dict[Var, Var]:
        """Packs small values that have the same producers and readers: value -> buffer."""
        groups: dict[tuple[Any, tuple[str, ...], int, Hashable], list[tuple[Var, int | None]]] = {}
        for v in values:
            rows = {self._row(v, s) for s in stages(v)}
            row = rows.pop()
            if row is not None and not rows:
                dim, axes, num_shards = row
                groups.setdefault((dtype_of(v), axes, num_shards, route(v)), []).append((v, dim))
        buffer_of: dict[Var, Var] = {}
        for (dtype, axes, num_shards, _), members in groups.items():
            if len(members) > 1:
                buffer = Buffer(tuple(v for v, _ in members), tuple(dim for _, dim in members), num_shards)
                variable = Var(ShapedArray((num_shards, sum(buffer.columns)), dtype))
                self._places.specs[variable] = PartitionSpec(axes or None)
                self.content[variable] = buffer
                buffer_of.update(dict.fromkeys(buffer.members, variable))
        return buffer_of

    def _row(self, v: Var, stage: int) -> tuple[int | None, tuple[str, ...], int] | None:
        """The sharded dimension of a small value, its axes and the number of shards; None if it cannot be packed."""
        if is_extended_dtype(dtype_of(v)) or getattr(v.aval, "weak_type", False):
            return None
        sharding = self._places.sharding(v, stage)
        shape = shape_of(v)
        cut = [(dim, axes) for dim, entry in enumerate(sharding.spec) if (axes := axes_of(entry))]
        dim, axes = cut[0] if cut else (None, ())
        num_shards = math.prod(sharding.mesh.shape[axis] for axis in axes)
        if (
            len(cut) > 1
            or (dim is not None and shape[dim] % num_shards)
            or math.prod(shape) // num_shards * dtype_of(v).itemsize > PACKED_BYTES
        ):
            return None
        return dim, axes, num_shards

    def using(self, program: Program, reads: Mapping[Var, Var], makes: Mapping[Var, Var], totals: Mapping[Var, Var]) -> Program:
        """A program that reads and makes buffers."""
        inputs, outputs = _instead(program.inputs, reads), _instead(program.outputs, makes)
        sums, resets = _instead(program.sums, totals), _instead(program.resets, totals)
        new = {b: self.content[b] for b in (*inputs, *outputs, *sums, *resets) if b in self.content}
        return replace(program, inputs=inputs, outputs=outputs, sums=sums, resets=resets, stands={**program.stands, **new})


def _instead(values: Sequence[Var], buffers: Mapping[Var, Var]) -> tuple[Var, ...]:
    return tuple(dict.fromkeys(buffers.get(v, v) for v in values))
