"""One step of a pipeline: inputs to their stages, the microbatches, the updates, the results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal, Var
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from shardy_py.pipelines.building import StagedStep, literal
from shardy_py.pipelines.compiling import compile_program, donatable
from shardy_py.pipelines.deferred_sums import defer_sums
from shardy_py.pipelines.engine import Engine, Statistics
from shardy_py.pipelines.jaxprs import dtype_of, is_extended_dtype, live
from shardy_py.pipelines.programs import Program, evaluate


class Runner:
    """Runs a pipeline that has been built; compiles everything when it is made."""

    def __init__(self, built: StagedStep, donated: Sequence[bool]) -> None:
        built.places.check_devices()
        self.built = built
        self.places = built.places.copy()
        self.inputs = built.split.micro.invars
        self.is_batch = dict(zip(self.inputs, built.signature.batch))
        self.position = {v: i for i, v in enumerate(self.inputs)}
        self.donated = {v for v, flag in zip(self.inputs, donated) if flag}
        self.results = built.results
        each = [*(v for v in self.inputs if self.is_batch[v]), *built.keys]
        stacked = set(built.split.stacked)
        batch = [v for v in self.inputs if self.is_batch[v]]
        programs, self.updates = defer_sums(built.programs, _with_resets(built), self.places, batch)
        self.engine = Engine(programs, built.schedule, self.places, each, stacked)
        self.shared = self.engine.shared_inputs
        self.calls = [self._compile(i) for i in range(len(self.updates))]
        self.part_calls = [compile_program(program, self.places, ()) for program in built.parts]
        self.literals = {i: literal(v) for i, v in enumerate(self.results) if isinstance(v, Literal)}
        self.prologue = _prologue(built)
        self.fold = _fold(built)
        count = built.options.num_microbatches
        # One array per call: they may be committed to different devices.
        self.cut = jax.jit(lambda x: [x[i * (x.shape[0] // count) : (i + 1) * (x.shape[0] // count)] for i in range(count)])
        self.join = jax.jit(lambda xs, dim: jax.numpy.concatenate(xs, dim), static_argnums=1)

    @property
    def statistics(self) -> Statistics:
        """Counts and times of the last step."""
        return self.engine.statistics

    @property
    def programs_per_stage(self) -> list[int]:
        """Number of programs of every stage, updates left out."""
        return [sum(s == t for _, t in self.engine.programs) for s in range(self.places.stages)]

    def _compile(self, index: int) -> Any:
        program = self.updates[index]
        results = {v for v in self.results if isinstance(v, Var)} - set(program.outputs)
        later = {v for other in self.updates[index + 1 :] for v in other.inputs} | results
        own = {v for v in self.donated if self.built.updates.owner.get(v) == program.stage} | set(self.engine.totals_of(program.stage))
        ours = [i for i, v in enumerate(program.inputs) if v in own and v not in later]
        return compile_program(program, self.places, donatable(program, ours, self.places))

    def step(self, leaves: Sequence[Any]) -> list[Any]:
        """The results of one step, leaf by leaf."""
        built, places = self.built, self.places
        values: dict[Var, Any] = dict(zip(self.inputs, leaves))
        extra = dict(built.split.micro.consts)
        if self.prologue is not None:
            extra.update(zip(built.split.prologue, self.prologue([values.get(v) for v in self.inputs])))
        located: list[dict[Var, Any]] = [{} for _ in range(places.stages)]

        def at(v: Var, s: int) -> Any:
            """A value on the mesh of a stage; it is moved there once."""
            moved = located[s].get(v)
            if moved is None:
                value = values[v] if v in values else extra[v]
                target = places.sharding(v, s)
                moved = value if isinstance(value, jax.Array) and value.sharding == target else jax.device_put(value, target)
                located[s][v] = moved
                if built.updates.owner.get(v) == s:
                    values[v] = moved
            return moved

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
                results.append(self.join(stacked[v], built.split_dim(v)))
            else:
                results.append(values[v] if v in values else extra[v])
        return results

    def _each(self, values: dict[Var, Any], extra: dict[Var, Any]) -> list[dict[Var, list[Any]]]:
        """For every stage, the parts of the batch and the keys that it reads, one per microbatch."""
        count = self.built.options.num_microbatches
        variables = dict.fromkeys(v for row in self.engine.each for v in row)
        parts: dict[Var, list[Any]] = {}
        for v in variables:
            if not self.is_batch.get(v):
                parts[v] = self.fold(values[v] if v in values else extra[v], self._is_raw(v))
            elif isinstance(values[v], jax.Array):
                parts[v] = self.cut(_automatic(values[v]))
        for v in variables:
            if v not in parts:
                whole = np.asarray(values[v])
                rows = whole.shape[0] // count
                parts[v] = [whole[i * rows : (i + 1) * rows] for i in range(count)]
        values_of: list[dict[Var, list[Any]]] = []
        for s, row in enumerate(self.engine.each):
            flat = [x for v in row for x in parts[v]]
            shardings = [self.places.sharding(v, s) for v in row for _ in range(count)]
            moved = jax.device_put(flat, shardings) if flat else []
            values_of.append({v: moved[i * count : (i + 1) * count] for i, v in enumerate(row)})
        return values_of

    @staticmethod
    def _is_raw(v: Var) -> bool:
        return not is_extended_dtype(dtype_of(v))


def _automatic(x: jax.Array) -> jax.Array:
    """The array on a mesh whose axes are automatic: one with explicit axes cannot be cut into parts that they do not divide."""
    sharding = x.sharding
    if not isinstance(sharding, NamedSharding) or all(kind is AxisType.Auto for kind in sharding.mesh.axis_types):
        return x
    mesh = Mesh(np.array(sharding.mesh.devices, dtype=object), sharding.mesh.axis_names)
    return jax.device_put(x, NamedSharding(mesh, sharding.spec))


def _with_resets(built: StagedStep) -> list[Program]:
    """The updates; the last of every stage also makes zeros for the sums of its stage, and gives those that are results."""
    updates = list(built.update)
    for s in range(built.places.stages):
        sums = tuple(v for (_, t), program in built.programs.items() if t == s for v in program.sums)
        if not sums:
            continue
        mine = [i for i, program in enumerate(updates) if program.stage == s]
        if not mine:
            updates.append(Program("U", s, 0, (), (), (), ()))
            mine = [len(updates) - 1]
        last = updates[mine[-1]]
        # A sum that is itself a result has to be taken out of what stands for it, a mean to be divided.
        returned = [v for v in sums if v in built.results]
        read = tuple(dict.fromkeys((*last.inputs, *sums)))
        updates[mine[-1]] = replace(last, resets=sums, inputs=read, outputs=tuple(dict.fromkeys((*last.outputs, *returned))))
    means_of = set(built.split.averaged)
    parts = built.options.num_microbatches
    return [replace(program, averaged=tuple(v for v in program.inputs if v in means_of), parts=parts) for program in updates]


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

    here = NamedSharding(built.places.mesh(0), PartitionSpec())
    return lambda leaves: compute([jax.device_put(leaves[i], here) for i in inputs])


def _fold(built: StagedStep) -> Any:
    """Keys to one per microbatch; a single microbatch keeps the key."""
    count = built.options.num_microbatches

    def one(key: Any, raw: bool) -> list[Any]:
        if count == 1:
            return [key]
        typed = jax.random.wrap_key_data(key) if raw else key
        flat = typed.reshape(-1)
        keys = [jax.vmap(lambda k, m=m: jax.random.fold_in(k, m))(flat).reshape(typed.shape) for m in range(count)]
        return [jax.random.key_data(k) if raw else k for k in keys]

    return jax.jit(one, static_argnums=1)
