"""One step of a pipeline: inputs to their stages, the microbatches, the updates, the results."""

from __future__ import annotations

import re
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal, Var
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from shardy_py.api.agreement import covering, passed_value
from shardy_py.api.peers import Peers, Watch
from shardy_py.api.signature import settings_by_name
from shardy_py.api.trees import location_of
from shardy_py.pipelines.building import StagedStep
from shardy_py.pipelines.compiling import compile_program, defer_sums, donatable, results_elsewhere
from shardy_py.pipelines.jaxprs import closed_jaxpr, dtype_of, live, shape_of, struct_of
from shardy_py.pipelines.orders import Schedule, Task
from shardy_py.pipelines.placing import Places
from shardy_py.pipelines.programs import TaskProgram, evaluate, stages_reading
from shardy_py.pipelines.simulation import costs_of
from shardy_py.pipelines.simulation import run as simulated
from shardy_py.pipelines.transfers import Transfer, everywhere, is_global, is_here, moved, placed, stub

FORWARDED = frozenset({"copy", "copy_p", "stop_gradient", "reshard", "sharding_constraint", "convert_element_type", "reshape", "squeeze"})
"""Primitives whose result may be the buffer of their operand, which must not be given away."""


@dataclass
class StageStep:
    """A program as one stage runs it for a microbatch.

    Attributes:
        sources: For every operand, its slot in the stage's store; below zero, ~n for the n-th value that all microbatches share.
        call: None where the stage is in other processes; `stubs` are then its results.
        send: What moves results to another mesh, with these results, their stages and slots.
        stack: (result, position among the per-example results).
    """

    program: TaskProgram
    call: Any
    sources: list[int]
    shared_of: list[Var]
    keep: list[tuple[int, int, int]]
    send: list[tuple[Transfer, list[int], list[tuple[int, int]]]]
    stack: list[tuple[int, Var]]
    drop: list[int]
    stubs: list[Any]
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
        sent_bytes: Bytes of activations and cotangents that this process sent to others.
        shared_bytes: The same for what is sent once per step: parameters and gradients that other stages need, scalar results.
    """

    in_flight: tuple[int, ...] = ()
    stashed: tuple[int, ...] = ()
    tasks: int = 0
    dispatch_seconds: float = 0.0
    dispatch_cpu_seconds: float = 0.0
    sent_bytes: int = 0
    shared_bytes: int = 0


class Engine:
    """The compiled programs of one microbatch, all stages."""

    def __init__(
        self, programs: dict[tuple[str, int], TaskProgram], schedule: Schedule, places: Places, each: Sequence[Var], stacked: Container[Var]
    ) -> None:
        self.programs, self.schedule, self.places, self.stacked = programs, schedule, places, stacked
        paper = simulated(schedule, costs_of(schedule.stages))
        self.statistics = Statistics(paper.in_flight, paper.stashed)
        # All tasks in an order in which one thread can hand them out: by start at unit costs.
        self.order = [
            (_role(span.task, schedule), span.task.stage, span.task.microbatch)
            for span in sorted(paper.spans, key=lambda span: (span.start, span.mesh))
        ]
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
        self.task: int | None = None
        self.sent_bytes = sum(move.sent_bytes for role, s, _ in self.order for move, _, _ in self.steps[role, s].send)

    @property
    def shared_inputs(self) -> list[dict[Var, None]]:
        """For every stage, the inputs that all microbatches share."""
        inputs: list[dict[Var, None]] = [{} for _ in range(self.places.stages)]
        for (_, s), step in self.steps.items():
            inputs[s].update(dict.fromkeys(step.shared_of))
        return inputs

    def _step(self, key: tuple[str, int], program: TaskProgram) -> StageStep:
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
        sent: dict[Any, list[tuple[int, int, int]]] = {}
        stack: list[tuple[int, Var]] = []
        for position, v in enumerate(program.outputs):
            readers = [t for t in range(self.places.stages) if v in self.slots[t]]
            for t in readers:
                if self.places.mesh(t) == self.places.mesh(s):
                    keep.append((position, t, self.slots[t][v]))
                else:
                    sent.setdefault(self.places.mesh(t), []).append((position, t, self.slots[t][v]))
            if v in self.stacked:
                stack.append((position, v))
        send: list[tuple[Transfer, list[int], list[tuple[int, int]]]] = []
        for rows in sent.values():
            values = [program.outputs[position] for position, _, _ in rows]
            targets = [self.places.sharding(v, t) for v, (_, t, _) in zip(values, rows)]
            move = Transfer([struct_of(v) for v in values], [self.places.sharding(v, s) for v in values], targets)
            send.append((move, [position for position, _, _ in rows], [row[1:] for row in rows]))
        first = len(program.inputs)
        donated = [*self._donated_residuals(key, program, drop), *range(first, first + len(program.sums))]
        call = compile_program(program, self.places, donated) if self.places.is_here(s) else None
        return StageStep(program, call, sources, shared_of, keep, send, stack, drop, results_elsewhere(program, self.places))

    def _donated_residuals(self, key: tuple[str, int], program: TaskProgram, drop: list[int]) -> list[int]:
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
            step.totals = [placed(np.zeros(shape_of(v), dtype_of(v)), self.places.sharding(v, s)) for v in step.program.sums]
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
        begin, begin_cpu = time.perf_counter(), time.thread_time()
        for task, (role, s, m) in enumerate(self.order):
            self.task = task
            step = self.steps[role, s]
            store = stores[s][m]
            common = step.shared
            if step.call is None:
                out = step.stubs
            else:
                out = step.call(*[store[i] if i >= 0 else common[~i] for i in step.sources], *step.totals)
            for i in step.drop:
                store[i] = None
            for position, t, slot in step.keep:
                stores[t][m][slot] = out[position]
            for move, positions, slots in step.send:
                for (t, slot), value in zip(slots, move([out[p] for p in positions])):
                    stores[t][m][slot] = value
            for position, v in step.stack:
                stacked.setdefault(v, [None] * count)[m] = out[position]
            step.totals = out[len(step.program.outputs) :]
        self.task = None
        spent, spent_cpu = time.perf_counter() - begin, time.thread_time() - begin_cpu
        self.statistics = replace(
            self.statistics, tasks=len(self.order), dispatch_seconds=spent, dispatch_cpu_seconds=spent_cpu, sent_bytes=self.sent_bytes
        )
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


def _role(task: Task, schedule: Schedule) -> str:
    return "b" if task.kind == "B" and (task.stage, task.microbatch) in schedule.split_backwards else task.kind


class Runner:
    """Runs a pipeline that has been built; compiles everything when it is made, of several processes each its own stages.

    Args:
        peers: The processes of the meshes, None for one.
        timeout: Seconds that a process waits for the others.
    """

    def __init__(self, built: StagedStep, donated: Sequence[bool], peers: Peers | None = None, timeout: float | None = None) -> None:
        self.built = built
        self.peers = peers
        self.watch = None if peers is None else Watch(peers, location_of(built.options.fun), timeout)
        self.places = built.places.copy()
        self.inputs = built.split.micro.invars
        self.position = {v: i for i, v in enumerate(self.inputs)}
        self.donated = {v for v, flag in zip(self.inputs, donated) if flag}
        self.results = built.split.results
        batch = built.split.batch
        programs, self.updates = defer_sums(built.programs, _with_resets(built), self.places, batch)
        self.engine = Engine(programs, built.schedule, self.places, [*batch, built.split.number], built.split.dims)
        self.shared = self.engine.shared_inputs
        self.crossing = set[Var]() if peers is None else self._crossing()
        self.calls = [self._compile(i) for i in range(len(self.updates))]
        self.part_calls = [self._call(program, ()) for program in built.parts]
        self.literals = {i: jax.numpy.asarray(v.val) for i, v in enumerate(self.results) if isinstance(v, Literal)}
        self.prologue = _prologue(built)
        count = built.options.num_microbatches
        # One array per call: they may be committed to different devices.
        self.cut = jax.jit(lambda x: [x[i * (x.shape[0] // count) : (i + 1) * (x.shape[0] // count)] for i in range(count)])
        self.join = jax.jit(lambda xs, dim: jax.numpy.concatenate(xs, dim), static_argnums=1)
        self.shared_bytes = 0

    def _crossing(self) -> set[Var]:
        """Values that other processes may still have to fetch when the step goes on, so that they are not donated."""
        programs = [*self.engine.programs.values(), *self.updates, *self.built.parts]
        several = {v for v, stages in stages_reading(programs).items() if len(stages) > 1}
        return several | {v for program in programs for v in program.inputs if not shape_of(v)}

    def _call(self, program: TaskProgram, donate: Sequence[int]) -> Any:
        if self.places.is_here(program.stage):
            return compile_program(program, self.places, donate)
        stubs = results_elsewhere(program, self.places)
        return lambda *_: stubs

    def _compile(self, index: int) -> Any:
        program = self.updates[index]
        results = {v for v in self.results if isinstance(v, Var)} - set(program.outputs)
        later = {v for other in self.updates[index + 1 :] for v in other.inputs} | results
        own = {v for v in self.donated if self.built.updates.owner.get(v) == program.stage} | set(self.engine.totals_of(program.stage))
        ours = [i for i, v in enumerate(program.inputs) if v in own and v not in later | self.crossing]
        return self._call(program, donatable(program, ours, self.places))

    def step(self, leaves: Sequence[Any]) -> list[Any]:
        """The results of one step, leaf by leaf; with several processes, once this one has its part of them."""
        if self.watch is None:
            return self._walk(leaves)
        with self.watch.running(self._task), covering():
            self.shared_bytes = 0
            results = self._walk(leaves)
            scalars = [i for i, x in enumerate(results) if is_global(x) and not x.shape]
            for i, x in zip(scalars, self.readable([results[i] for i in scalars])):
                results[i] = x
            self.engine.statistics = replace(self.engine.statistics, shared_bytes=self.shared_bytes)
            self.watch.wait(x for x in (*results, *self.engine.totals().values()) if isinstance(x, jax.Array))
        return results

    def _task(self) -> str:
        if self.engine.task is None:
            return "what it computes of the step"
        role, s, m = self.engine.order[self.engine.task]
        return f"{role} of stage {self.built.assigned.names[s]!r}, microbatch {m}"

    def _moved(self, values: Sequence[Any], targets: Sequence[NamedSharding]) -> list[Any]:
        """Values on meshes, from wherever they are; all processes call this for them."""
        if self.peers is None:
            return jax.device_put(list(values), list(targets)) if values else []
        there, sent = moved(values, targets)
        self.shared_bytes += sent
        return there

    def local(self, value: Any) -> Any:
        """A value in this process, for what each process computes for itself."""
        if self.peers is None:
            return jax.device_put(value, NamedSharding(self.places.mesh(0), PartitionSpec()))
        return self.readable([value])[0].addressable_data(0) if is_global(value) else value

    def readable(self, values: Sequence[Any]) -> list[Any]:
        """The arrays, with a copy in every process."""
        target = everywhere(device for mesh in self.places.meshes if isinstance(mesh, Mesh) for device in mesh.devices.flat)
        return self._moved(values, [target] * len(values))

    def _walk(self, leaves: Sequence[Any]) -> list[Any]:
        built, places = self.built, self.places
        values: dict[Var, Any] = dict(zip(self.inputs, leaves))
        extra = dict(built.split.micro.consts)
        if self.prologue is not None:
            extra.update(zip(built.split.prologue, self.prologue(lambda i: self.local(leaves[i]))))
        located: list[dict[Var, Any]] = [{} for _ in range(places.stages)]

        def at(v: Var, s: int) -> Any:
            """A value on the mesh of a stage; it is moved there once."""
            there = located[s].get(v)
            if there is None:
                value = values[v] if v in values else extra[v]
                target = places.sharding(v, s)
                here = isinstance(value, jax.Array) and value.sharding == target
                there = located[s][v] = value if here else self._moved([value], [target])[0]
                if built.updates.owner.get(v) == s:
                    values[v] = there
            return there

        for program, call in zip(built.parts, self.part_calls):
            for v, value in zip(program.outputs, call(*[at(v, program.stage) for v in program.inputs])):
                values[v] = located[program.stage][v] = value
        each = self._each(values, extra)
        shared = [{v: at(v, s) for v in variables} for s, variables in enumerate(self.shared)]
        stacked = self.engine.run(shared, each)
        totals = self.engine.totals()
        for v, total in totals.items():
            values[v] = total
            located[self.engine.stage_of_total(v)][v] = total
        zeros: dict[Var, Any] = {}
        for program, call in zip(self.updates, self.calls):
            out = call(*[at(v, program.stage) for v in program.inputs])
            for v, value in zip(program.outputs, out):
                values[v] = located[program.stage][v] = value
            zeros.update(zip(program.resets, out[len(program.outputs) :]))
        self.engine.reset(zeros)
        results: list[Any] = []
        for i, v in enumerate(self.results):
            if isinstance(v, Literal):
                results.append(self.literals[i])
            elif v in stacked:
                results.append(self._joined(stacked[v], built.split.dims[v]))
            else:
                results.append(values[v] if v in values else extra[v])
        return results

    def _each(self, values: dict[Var, Any], extra: dict[Var, Any]) -> list[dict[Var, list[Any]]]:
        """For every stage, the parts of the batch and the keys that it reads, one per microbatch."""
        count = self.built.options.num_microbatches
        variables = dict.fromkeys(v for row in self.engine.each for v in row)
        parts: dict[Var, list[Any]] = {}
        for v in variables:
            if v is self.built.split.number:
                parts[v] = [np.int32(i) for i in range(count)]
            elif self.peers is None and isinstance(values[v], jax.Array):
                parts[v] = self.cut(_automatic(values[v]))
            elif is_global(values[v]):
                parts[v] = self._cut_on_mesh(values[v])
        for v in variables:
            if v not in parts:
                whole = np.asarray(values[v])
                rows = whole.shape[0] // count
                parts[v] = [whole[i * rows : (i + 1) * rows] for i in range(count)]
        values_of: list[dict[Var, list[Any]]] = []
        for s, row in enumerate(self.engine.each):
            flat = [x for v in row for x in parts[v]]
            shardings = [self.places.sharding(v, s) for v in row for _ in range(count)]
            there = self._moved(flat, shardings)
            values_of.append({v: there[i * count : (i + 1) * count] for i, v in enumerate(row)})
        return values_of

    def _cut_on_mesh(self, x: jax.Array) -> list[jax.Array]:
        """The parts of an array on a mesh of several processes, sharded as it is where its axes divide them."""
        count, mesh = self.built.options.num_microbatches, x.sharding.mesh  # pyright: ignore[reportAttributeAccessIssue]
        shape = (x.shape[0] // count, *x.shape[1:])
        there = NamedSharding(Mesh(mesh.devices, mesh.axis_names), x.sharding.spec)  # pyright: ignore[reportAttributeAccessIssue]
        try:
            there.shard_shape(shape)
        except ValueError:
            there = NamedSharding(there.mesh, PartitionSpec())
        if not is_here(there):
            return [stub(shape, x.dtype, there)] * count
        return jax.jit(self.cut, out_shardings=[there] * count)(_automatic(x))

    def _joined(self, parts: Sequence[jax.Array], dim: int) -> jax.Array:
        """One array of the results of all microbatches."""
        if self.peers is None:
            return self.join(parts, dim)
        first = parts[0]
        if not is_here(first.sharding):
            return stub(tuple(n * len(parts) if i == dim else n for i, n in enumerate(first.shape)), first.dtype, first.sharding)
        return jax.jit(self.join, static_argnums=1, out_shardings=first.sharding)(parts, dim)


def _automatic(x: jax.Array) -> jax.Array:
    """The array on a mesh whose axes are automatic: one with explicit axes cannot be cut into parts that they do not divide."""
    sharding = x.sharding
    if not isinstance(sharding, NamedSharding) or all(kind is AxisType.Auto for kind in sharding.mesh.axis_types):
        return x
    mesh = Mesh(np.array(sharding.mesh.devices, dtype=object), sharding.mesh.axis_names)
    return jax.device_put(x, NamedSharding(mesh, sharding.spec))


def _with_resets(built: StagedStep) -> list[TaskProgram]:
    """The updates; the last of every stage also makes zeros for the sums of its stage, and gives those that are results."""
    updates = list(built.update)
    for s in range(built.places.stages):
        sums = tuple(v for (_, t), program in built.programs.items() if t == s for v in program.sums)
        if not sums:
            continue
        mine = [i for i, program in enumerate(updates) if program.stage == s]
        if not mine:
            updates.append(TaskProgram("U", s, 0, (), (), (), ()))
            mine = [len(updates) - 1]
        last = updates[mine[-1]]
        # A sum that is itself a result has to be taken out of what stands for it, a mean to be divided.
        returned = [v for v in sums if v in built.split.results]
        read = tuple(dict.fromkeys((*last.inputs, *sums)))
        updates[mine[-1]] = replace(last, resets=sums, inputs=read, outputs=tuple(dict.fromkeys((*last.outputs, *returned))))
    return updates


def _prologue(built: StagedStep) -> Any:
    """Computes the values of the whole batch that microbatches need."""
    whole, variables = built.split.whole, [built.split.whole_of[v] for v in built.split.prologue]
    if not variables or whole is None:
        return None
    nodes = live([node for node in whole.nodes if node.eqn.outvars], variables)
    used = {v for node in nodes for v in node.eqn.invars if isinstance(v, Var)} | set(variables)
    inputs = [i for i, v in enumerate(whole.invars) if v in used]

    @jax.jit
    def compute(arguments: list[Any]) -> list[Any]:
        env: dict[Var, Any] = {whole.invars[i]: x for i, x in zip(inputs, arguments)}
        env.update({v: c for v, c in whole.consts.items() if v in used})
        evaluate(nodes, env)
        return [env[v] for v in variables]

    return lambda leaf: compute([leaf(i) for i in inputs])


def statement(built: StagedStep, leaves: Sequence[Any], donated: Sequence[bool]) -> str:
    """A pipeline that is about to run, one fact per line: equal in all processes that run the same."""
    places, signature = built.places, built.signature
    lines = [
        f"pipeline {getattr(built.options.fun, '__qualname__', built.options.fun)}",
        f"jax {jax.__version__}, jaxlib {jax.lib.__version__}",
        *(f"{name} = {value!r}" for name, value in settings_by_name().items()),
        f"schedule {' | '.join(' '.join(map(str, order)) for order in built.schedule.orders)}",
        *(f"mesh {dict(mesh.shape)} {[device.id for device in mesh.devices.flat]}" for mesh in places.meshes if isinstance(mesh, Mesh)),
    ]
    for path, struct, is_batch, is_donated, leaf in zip(signature.paths, signature.structs, signature.batch, donated, leaves):
        where = [device.id for device in leaf.sharding.mesh.devices.flat] if is_global(leaf) else "in every process"
        kinds = f"{'batch ' if is_batch else ''}{'donated ' if is_donated else ''}"
        lines.append(f"input {path} {struct.dtype}{list(struct.shape)} {kinds}{where}")
    for program in (*built.parts, *built.programs.values(), *built.update):
        operands, results = program.inputs, (*program.outputs, *program.sums)
        specs = [str(places.specs.get(v, PartitionSpec())) for v in (*operands, *results)]
        jaxpr = closed_jaxpr([node.eqn for node in program.nodes], operands, results)
        lines += [f"program {program.name} {' '.join(specs)}", str(jaxpr)]
    lines += [f"closed over {passed_value(value) or ''}" for value in built.split.micro.consts.values()]
    # Names of callables may hold their addresses, which differ between processes.
    return re.sub(r" at 0x[0-9a-f]+", "", "\n".join(lines))
