"""Running the programs of a pipeline in the order of a schedule."""

from __future__ import annotations

import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.extend.core import Var

from shardy_py.pipelines.compiling import compile_program, donatable
from shardy_py.pipelines.jaxprs import dtype_of, is_extended_dtype, shape_of
from shardy_py.pipelines.placing import Places
from shardy_py.pipelines.programs import Program
from shardy_py.pipelines.schedules.simulation import costs_of
from shardy_py.pipelines.schedules.simulation import run as simulated
from shardy_py.pipelines.schedules.tasks import Schedule, Task
from shardy_py.pipelines.shards import Move, move

FORWARDED = frozenset({"copy", "copy_p", "stop_gradient", "reshard", "sharding_constraint", "convert_element_type", "reshape", "squeeze"})
"""Primitives whose result may be the buffer of their operand, which must not be given away."""


@dataclass
class Step:
    """A program as one stage runs it for a microbatch.

    Attributes:
        sources: For every operand, its slot in the stage's store; below zero, ~n for the n-th value that all microbatches share.
        send: Moves to another mesh, each with the results it brings, and their stages and slots.
        stack: (result, position among the per-example results).
    """

    program: Program
    call: Any
    sources: list[int]
    shared_of: list[Var]
    keep: list[tuple[int, int, int]]
    send: list[tuple[Move, list[int], list[tuple[int, int]]]]
    stack: list[tuple[int, Var]]
    drop: list[int]
    shared: list[Any] = field(default_factory=list)
    totals: list[Any] = field(default_factory=list)


@dataclass
class Statistics:
    """Counts and times of the last step of a pipeline.

    Attributes:
        in_flight: For every mesh, the most activations (one stage, one microbatch) held between F and B.
        stashed: The same until W, where there is one.
        dispatch_seconds: Time in which tasks were handed to their devices, transfers included.
        dispatch_cpu_seconds: Of that, CPU time of the thread that hands them out; the rest is waiting for other threads.
    """

    in_flight: tuple[int, ...] = ()
    stashed: tuple[int, ...] = ()
    tasks: int = 0
    dispatch_seconds: float = 0.0
    dispatch_cpu_seconds: float = 0.0


class Engine:
    """The compiled programs of one microbatch, all stages.

    Attributes:
        waits: Whether devices finish every task before the next is handed out, so that `statistics` has the time of handing out alone.
    """

    def __init__(
        self, programs: dict[tuple[str, int], Program], schedule: Schedule, places: Places, each: Sequence[Var], stacked: Container[Var]
    ) -> None:
        self.programs, self.schedule, self.places, self.stacked = programs, schedule, places, stacked
        self.meshes = schedule.meshes
        self.statistics = Statistics()
        self.order = _global_order(schedule)
        producer = {v: key for key, program in programs.items() for v in program.outputs}
        self.slots: list[dict[Var, int]] = [{} for _ in range(places.stages)]
        moving = {*each, *producer}
        for (_, s), program in programs.items():
            for v in program.inputs:
                if v in moving:
                    self.slots[s].setdefault(v, len(self.slots[s]))
        self.each = [[v for v in each if v in self.slots[s]] for s in range(places.stages)]
        self.steps = {key: self._step(key, program) for key, program in programs.items()}
        self.totals_ready = False
        self.waits = False

    @property
    def shared_inputs(self) -> list[dict[Var, None]]:
        """For every stage, the inputs that all microbatches share."""
        inputs: list[dict[Var, None]] = [{} for _ in range(self.places.stages)]
        for (_, s), step in self.steps.items():
            inputs[s].update(dict.fromkeys(step.shared_of))
        return inputs

    def _step(self, key: tuple[str, int], program: Program) -> Step:
        role, s = key
        slots = self.slots[s]
        shared_of: list[Var] = []
        sources: list[int] = []
        for v in program.inputs:
            if v in slots:
                sources.append(slots[v])
            else:
                sources.append(~len(shared_of))
                shared_of.append(v)
        roles = [r for (r, t) in self.programs if t == s]
        later = roles[roles.index(role) + 1 :]
        read_later = {v for r in later for v in self.programs[r, s].inputs}
        drop = [slots[v] for v in program.inputs if v in slots and v not in read_later]
        keep: list[tuple[int, int, int]] = []
        sent: dict[Move, list[tuple[int, int, int]]] = {}
        stack: list[tuple[int, Var]] = []
        for position, v in enumerate(program.outputs):
            readers = [t for t in range(self.places.stages) if v in self.slots[t]]
            for t in readers:
                if self.places.mesh(t) == self.places.mesh(s):
                    keep.append((position, t, self.slots[t][v]))
                else:
                    bring = move(self.places.sharding(v, s), self.places.sharding(v, t), is_extended_dtype(dtype_of(v)))
                    sent.setdefault(bring, []).append((position, t, self.slots[t][v]))
            if v in self.stacked:
                stack.append((position, v))
        send = [(bring, [position for position, _, _ in rows], [row[1:] for row in rows]) for bring, rows in sent.items()]
        first = len(program.inputs)
        donated = [*self._donated_residuals(key, program, drop), *range(first, first + len(program.sums))]
        call = compile_program(program, self.places, donated)
        return Step(program, call, sources, shared_of, keep, send, stack, drop)

    def _donated_residuals(self, key: tuple[str, int], program: Program, drop: list[int]) -> list[int]:
        """Residuals whose memory the results of a backward pass may take."""
        role, s = key
        if role == "F":
            return []
        forward = self.programs["F", s]
        plain = {v for node in forward.nodes if node.eqn.primitive.name not in FORWARDED for v in node.eqn.outvars}
        own = {v for v in forward.outputs if v in plain and v not in self.stacked and sum(v in slots for slots in self.slots) == 1}
        only_here = [i for i, v in enumerate(program.inputs) if v in own and self.slots[s].get(v) in drop]
        return donatable(program, only_here, self.places)

    def zero_totals(self) -> None:
        """Puts zeros into all accumulators."""
        for (_, s), step in self.steps.items():
            step.totals = [jax.device_put(np.zeros(shape_of(v), dtype_of(v)), self.places.sharding(v, s)) for v in step.program.sums]
        self.totals_ready = True

    def run(self, shared: Sequence[dict[Var, Any]], each: Sequence[Mapping[Var, Sequence[Any]]]) -> dict[Var, list[Any]]:
        """Runs all tasks of the schedule; returns the per-example results, one value per microbatch."""
        if not self.totals_ready:
            self.zero_totals()
        self.totals_ready = False
        for (_, s), step in self.steps.items():
            step.shared = [shared[s][v] for v in step.shared_of]
        count = self.schedule.microbatches
        stores = self._stores(each)
        stacked: dict[Var, list[Any]] = {}
        in_flight, stashed = [0] * self.meshes, [0] * self.meshes
        most_in_flight, most_stashed = [0] * self.meshes, [0] * self.meshes
        steps, meshes = self.steps, self.meshes
        if self.waits:
            jax.block_until_ready((stores, [(step.shared, step.totals) for step in steps.values()]))
        begin, begin_cpu = time.perf_counter(), time.thread_time()
        waited = waited_cpu = 0.0
        for role, s, m in self.order:
            step = steps[role, s]
            store = stores[s][m]
            common = step.shared
            out = step.call(*[store[i] if i >= 0 else common[~i] for i in step.sources], *step.totals)
            for i in step.drop:
                store[i] = None
            for position, t, slot in step.keep:
                stores[t][m][slot] = out[position]
            for bring, positions, slots in step.send:
                for (t, slot), value in zip(slots, bring([out[p] for p in positions])):
                    stores[t][m][slot] = value
            for position, v in step.stack:
                stacked.setdefault(v, [None] * count)[m] = out[position]
            step.totals = out[len(step.program.outputs) :]
            mesh = s % meshes
            if role == "F":
                in_flight[mesh] += 1
                stashed[mesh] += 1
                most_in_flight[mesh] = max(most_in_flight[mesh], in_flight[mesh])
                most_stashed[mesh] = max(most_stashed[mesh], stashed[mesh])
            else:
                in_flight[mesh] -= role != "W"
                stashed[mesh] -= role != "b"
            if self.waits:
                before, before_cpu = time.perf_counter(), time.thread_time()
                jax.block_until_ready((out, [stores[t][m][slot] for _, _, slots in step.send for t, slot in slots]))
                waited += time.perf_counter() - before
                waited_cpu += time.thread_time() - before_cpu
        spent, spent_cpu = time.perf_counter() - begin - waited, time.thread_time() - begin_cpu - waited_cpu
        self.statistics = Statistics(tuple(most_in_flight), tuple(most_stashed), len(self.order), spent, spent_cpu)
        return stacked

    def _stores(self, each: Sequence[Mapping[Var, Sequence[Any]]]) -> list[list[list[Any]]]:
        """The slots of every stage and microbatch, with the inputs that differ between microbatches."""
        stores: list[list[list[Any]]] = []
        for s, slots in enumerate(self.slots):
            rows = [[None] * len(slots) for _ in range(self.schedule.microbatches)]
            for v in self.each[s]:
                for row, value in zip(rows, each[s][v]):
                    row[slots[v]] = value
            stores.append(rows)
        return stores

    def totals_of(self, stage: int) -> list[Var]:
        """The sums that a stage makes."""
        return [v for (_, s), step in self.steps.items() if s == stage for v in step.program.sums]

    def stage_of_total(self, v: Var) -> int:
        """The stage that makes a sum."""
        return next(s for (_, s), step in self.steps.items() if v in step.program.sums)

    def totals(self) -> dict[Var, Any]:
        """The sums over microbatches."""
        return {v: x for step in self.steps.values() for v, x in zip(step.program.sums, step.totals)}

    def reset(self, zeros: dict[Var, Any]) -> None:
        """Takes zeros for the next step."""
        for step in self.steps.values():
            step.totals = [zeros[v] for v in step.program.sums]
        self.totals_ready = True


def _global_order(schedule: Schedule) -> list[tuple[str, int, int]]:
    """All tasks in an order in which one thread can hand them out: by start at unit costs."""
    spans = simulated(schedule, costs_of(schedule.stages)).spans
    ordered = sorted(spans, key=lambda span: (span.start, span.mesh))
    return [(_role(span.task, schedule), span.task.stage, span.task.microbatch) for span in ordered]


def _role(task: Task, schedule: Schedule) -> str:
    return "b" if task.kind == "B" and (task.stage, task.microbatch) in schedule.split_backwards else task.kind
