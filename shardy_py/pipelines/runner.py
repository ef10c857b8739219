"""One step of a pipeline: inputs to their stages, the microbatches, the updates, the results."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from shardy_py.pipelines.flatten import live
from shardy_py.pipelines.jaxprs import closed_jaxpr, dtype_of, is_extended_dtype, shape_of, struct_of
from shardy_py.pipelines.orders import Schedule, Task
from shardy_py.pipelines.programs import TaskProgram, evaluate, stages_reading
from shardy_py.pipelines.simulation import costs_of
from shardy_py.pipelines.simulation import run as simulated
from shardy_py.pipelines.transfers import Relocation, everywhere, is_global, is_here, moved, placed, stub


@dataclass(frozen=True)
class StageStep:
    """A program as one stage runs it for a microbatch.

    Attributes:
        call: The compiled program; gives stubs where the stage is in other processes.
        drop: What no later program of the stage reads.
        keep: Results -> stages on the same mesh that read them.
        send: What moves results to another mesh, with these results and the stages that read them there.
    """

    program: TaskProgram
    call: Callable[..., Sequence[Any]]
    drop: frozenset[Var]
    keep: dict[Var, list[int]]
    send: list[tuple[Relocation, list[tuple[Var, int]]]]


@dataclass(frozen=True)
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
        self.donated = {v for v, flag in zip(self.inputs, donated) if flag}
        self.results = built.split.results
        batch = built.split.batch
        self.programs, self.updates = defer_sums(built.programs, _with_resets(built), self.places, batch)
        paper = simulated(built.schedule, costs_of(built.schedule.stages))
        self.statistics = Statistics(paper.in_flight, paper.stashed)
        # All tasks in an order in which one thread can hand them out: by start at unit costs.
        self.order = [
            (_role(span.task, built.schedule), span.task.stage, span.task.microbatch)
            for span in sorted(paper.spans, key=lambda span: (span.start, span.mesh))
        ]
        self.task: int | None = None
        self.readers = stages_reading(self.programs.values())
        parts = (*batch, built.split.number)
        moving = {*parts, *(v for program in self.programs.values() for v in program.outputs)}
        stages = range(self.places.stages)
        self.each = [[v for v in parts if s in self.readers.get(v, ())] for s in stages]
        self.shared = [[v for v, readers in self.readers.items() if s in readers and v not in moving] for s in stages]
        self.steps = {key: self._step(key, program) for key, program in self.programs.items()}
        self.sent_bytes = sum(move.sent_bytes for role, s, _ in self.order for move, _ in self.steps[role, s].send)
        self.sums = {v: s for (_, s), program in self.programs.items() for v in program.sums}
        self.totals: dict[Var, Any] | None = None
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

    def _step(self, key: tuple[str, int], program: TaskProgram) -> StageStep:
        role, s = key
        roles = [r for (r, t) in self.programs if t == s]
        read_later = {v for r in roles[roles.index(role) + 1 :] for v in self.programs[r, s].inputs}
        drop = frozenset(program.inputs) - read_later - {*self.shared[s]}
        keep: dict[Var, list[int]] = {}
        sent: dict[Any, list[tuple[Var, int]]] = {}
        for v in program.outputs:
            for t in sorted(self.readers.get(v, ())):
                if self.places.mesh(t) == self.places.mesh(s):
                    keep.setdefault(v, []).append(t)
                else:
                    sent.setdefault(self.places.mesh(t), []).append((v, t))
        send: list[tuple[Relocation, list[tuple[Var, int]]]] = []
        for rows in sent.values():
            sources, targets = [self.places.sharding(v, s) for v, _ in rows], [self.places.sharding(v, t) for v, t in rows]
            send.append((Relocation([struct_of(v) for v, _ in rows], sources, targets), rows))
        totals = range(len(program.inputs), len(program.inputs) + len(program.sums))
        return StageStep(program, self._call(program, totals), drop, keep, send)

    def _crossing(self) -> set[Var]:
        """Values that other processes may still have to fetch when the step goes on, so that they are not donated."""
        programs = [*self.programs.values(), *self.updates, *self.built.parts]
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
        own = {v for v in self.donated if self.built.updates.owner.get(v) == program.stage}
        own.update(v for v, s in self.sums.items() if s == program.stage)
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
            self.statistics = replace(self.statistics, shared_bytes=self.shared_bytes)
            arrays = [x for x in (*results, *(self.totals or {}).values()) if isinstance(x, jax.Array)]
            self.watch.wait(jax.random.key_data(x) if is_extended_dtype(x.dtype) else x for x in arrays)
        return results

    def _task(self) -> str:
        if self.task is None:
            return "what it computes of the step"
        role, s, m = self.order[self.task]
        return f"{role} of stage {self.built.assigned.names[s]!r}, microbatch {m}"

    def _moved(self, values: Sequence[Any], targets: Sequence[NamedSharding]) -> list[Any]:
        """Values on meshes, from wherever they are; all processes call this for them."""
        there, sent = moved(values, targets)
        self.shared_bytes += sent
        return there

    def local(self, value: Any) -> Any:
        """A value in this process, for what each process computes for itself."""
        return self.readable([value])[0].addressable_data(0)

    def readable(self, values: Sequence[Any]) -> list[Any]:
        """The arrays, with a copy in every process."""
        target = everywhere(device for mesh in self.places.meshes if isinstance(mesh, Mesh) for device in mesh.devices.flat)
        return self._moved(values, [target] * len(values))

    def _walk(self, leaves: Sequence[Any]) -> list[Any]:
        built, places = self.built, self.places
        values: dict[Var, Any] = dict(built.split.micro.consts)
        if self.prologue is not None:
            values.update(zip(built.split.prologue, self.prologue(lambda i: self.local(leaves[i]))))
        values.update(zip(self.inputs, leaves))
        located: list[dict[Var, Any]] = [{} for _ in range(places.stages)]

        def at(v: Var, s: int) -> Any:
            """A value on the mesh of a stage; it is moved there once."""
            there = located[s].get(v)
            if there is None:
                value, target = values[v], places.sharding(v, s)
                here = isinstance(value, jax.Array) and value.sharding == target
                there = located[s][v] = value if here else self._moved([value], [target])[0]
                if built.updates.owner.get(v) == s:
                    values[v] = there
            return there

        def run_once(programs: Sequence[TaskProgram], calls: Sequence[Any]) -> dict[Var, Any]:
            """Runs programs in their order; gives zeros for the sums of the next step."""
            zeros: dict[Var, Any] = {}
            for program, call in zip(programs, calls):
                out = call(*[at(v, program.stage) for v in program.inputs])
                for v, value in zip(program.outputs, out):
                    values[v] = located[program.stage][v] = value
                zeros.update(zip(program.resets, out[len(program.outputs) :]))
            return zeros

        run_once(built.parts, self.part_calls)
        stores = self._parts_of_batch(values)
        for s, variables in enumerate(self.shared):
            for v in variables:
                at(v, s)
        totals, self.totals = self.totals, None
        for v, s in self.sums.items():
            located[s][v] = placed(np.zeros(shape_of(v), dtype_of(v)), places.sharding(v, s)) if totals is None else totals[v]
        stacked = self._run_tasks(stores, located)
        values.update((v, located[s][v]) for v, s in self.sums.items())
        self.totals = run_once(self.updates, self.calls)
        return [
            self.literals[i] if isinstance(v, Literal) else self._joined(stacked[v], built.split.dims[v]) if v in stacked else values[v]
            for i, v in enumerate(self.results)
        ]

    def _run_tasks(self, stores: Sequence[Sequence[dict[Var, Any]]], located: Sequence[dict[Var, Any]]) -> dict[Var, list[Any]]:
        """Runs all tasks of the schedule, whose sums `located` gets; returns the per-example results, one value per microbatch."""
        stacked: dict[Var, list[Any]] = {}
        begin, begin_cpu = time.perf_counter(), time.thread_time()
        for number, (role, s, m) in enumerate(self.order):
            self.task = number
            step = self.steps[role, s]
            program, store, common = step.program, stores[s][m], located[s]
            operands = [store.pop(v) if v in step.drop else store[v] if v in store else common[v] for v in program.inputs]
            out = step.call(*operands, *[common[v] for v in program.sums])
            results = dict(zip(program.outputs, out))
            common.update(zip(program.sums, out[len(program.outputs) :]))
            for v, stages in step.keep.items():
                for t in stages:
                    stores[t][m][v] = results[v]
            for move, rows in step.send:
                for (v, t), value in zip(rows, move([results[v] for v, _ in rows])):
                    stores[t][m][v] = value
            for v, value in results.items():
                if v in self.built.split.dims:
                    stacked.setdefault(v, [None] * self.built.options.num_microbatches)[m] = value
        self.task = None
        spent, spent_cpu = time.perf_counter() - begin, time.thread_time() - begin_cpu
        self.statistics = replace(
            self.statistics, tasks=len(self.order), dispatch_seconds=spent, dispatch_cpu_seconds=spent_cpu, sent_bytes=self.sent_bytes
        )
        return stacked

    def _parts_of_batch(self, values: Mapping[Var, Any]) -> list[list[dict[Var, Any]]]:
        """For every stage and microbatch, the parts of the batch and the number that it reads."""
        count = self.built.options.num_microbatches
        parts: dict[Var, Sequence[Any]] = {}
        for v in dict.fromkeys(v for row in self.each for v in row):
            parts[v] = [np.int32(i) for i in range(count)] if v is self.built.split.number else self._cut(values[v])
        stores: list[list[dict[Var, Any]]] = []
        for s, row in enumerate(self.each):
            there = iter(self._moved([x for v in row for x in parts[v]], [self.places.sharding(v, s) for v in row for _ in range(count)]))
            of = {v: [next(there) for _ in range(count)] for v in row}
            stores.append([{v: of[v][m] for v in row} for m in range(count)])
        return stores

    def _cut(self, x: Any) -> Sequence[Any]:
        """The parts of a value of the batch; of an array on a mesh sharded as it is where its axes divide them."""
        count = self.built.options.num_microbatches
        if not isinstance(x, jax.Array):
            return np.split(np.asarray(x), count)
        sharding = x.sharding
        if not isinstance(sharding, NamedSharding):
            return self.cut(x)
        shape = (x.shape[0] // count, *x.shape[1:])
        # Of automatic axes: one with explicit axes cannot be cut into parts that they do not divide.
        mesh = Mesh(np.array(sharding.mesh.devices, dtype=object), sharding.mesh.axis_names)
        there = NamedSharding(mesh, sharding.spec)
        automatic = x if all(kind is AxisType.Auto for kind in sharding.mesh.axis_types) else jax.device_put(x, there)
        try:
            there.shard_shape(shape)
        except ValueError:
            there = NamedSharding(mesh, PartitionSpec())
        if not is_here(there):
            return [stub(shape, x.dtype, there)] * count
        return jax.jit(self.cut, out_shardings=[there] * count)(automatic)

    def _joined(self, parts: Sequence[jax.Array], dim: int) -> jax.Array:
        """One array of the results of all microbatches."""
        first = parts[0]
        if not is_here(first.sharding):
            return stub(tuple(n * len(parts) if i == dim else n for i, n in enumerate(first.shape)), first.dtype, first.sharding)
        return jax.jit(self.join, static_argnums=1, out_shardings=first.sharding)(parts, dim)


def _role(task: Task, schedule: Schedule) -> str:
    return "b" if task.kind == "B" and (task.stage, task.microbatch) in schedule.split_backwards else task.kind


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
