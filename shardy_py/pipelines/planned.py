"""Chooses the stages of a pipeline, their meshes and the shardings inside of them together, by the cost of a step.

Pieces of the step are planned on meshes of every size; `submeshes` makes stages of them. The pipelines that come of it, and
those that there are without a planner on as many devices, are simulated, and the cheapest that fits is taken.
"""

from __future__ import annotations

import itertools
import json
import math
import operator
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.extend.core import Var, jaxpr_as_fun
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from shardy_py.api import auto_shard
from shardy_py.api.peers import Peers, digest, peers_of
from shardy_py.api.planning import AHEAD
from shardy_py.pipelines.assignment import Assignment, assign, pieces
from shardy_py.pipelines.building import (
    CallSignature,
    PipelineOptions,
    PipelineSearch,
    PlannedStage,
    StagedStep,
    stage_names,
    staged,
    trace_step,
    updating,
)
from shardy_py.pipelines.compiling import defer_sums, plan_of, positional, shardings, structs
from shardy_py.pipelines.cost import equation_seconds
from shardy_py.pipelines.errors import PipelineError
from shardy_py.pipelines.flatten import FlatEquation, inputs_of
from shardy_py.pipelines.jaxprs import closed_jaxpr, shape_of, struct_of
from shardy_py.pipelines.microbatching import SplitStep
from shardy_py.pipelines.orders import Schedule
from shardy_py.pipelines.placing import Places, axes_of, meshes_of, submeshes, trace_mesh
from shardy_py.pipelines.programs import PASSES, TaskProgram, stage_programs, transfers
from shardy_py.pipelines.report import stage_memory
from shardy_py.pipelines.simulation import costs_of, run
from shardy_py.plan.collectives import format_bytes
from shardy_py.plan.feeding import NOTHING
from shardy_py.planner.meshes import shapes
from shardy_py.planner.options import Planner


@dataclass(frozen=True)
class StageRun:
    """A stage: pieces from `start` to `end`, on a mesh of a shape."""

    start: int
    end: int
    shape: tuple[int, ...]


def divided(
    seconds: Mapping[tuple[int, ...], Sequence[float]], stages: int, devices: int, microbatches: int
) -> tuple[float, tuple[StageRun, ...]] | None:
    """The fastest stages (all once, and the slowest again per further microbatch), and their seconds; None where too many share.

    Example:
        >>> seconds = {(1,): [4.0, 1.0, 1.0], (2,): [2.0, 0.6, 0.6]}
        >>> divided(seconds, 2, 3, 4)
        (10.0, (StageRun(start=0, end=1, shape=(2,)), StageRun(start=1, end=3, shape=(1,))))
    """
    count = len(next(iter(seconds.values())))
    fastest: dict[tuple[int, int], dict[int, tuple[float, tuple[int, ...]]]] = {}  # (start, end) -> devices -> the fastest mesh
    for start, end in itertools.combinations(range(count + 1), 2):
        of_size = fastest[start, end] = {}
        for shape, each in seconds.items():
            option = math.fsum(each[start:end]), shape
            of_size[math.prod(shape)] = min(option, of_size.get(math.prod(shape), option), key=operator.itemgetter(0))
    # (end, devices used) -> (sum, slowest, stages) of what no other division up to there beats in both.
    reached: dict[tuple[int, int], list[tuple[float, float, tuple[StageRun, ...]]]] = {(0, 0): [(0.0, 0.0, ())]}
    for left in reversed(range(stages)):
        following: dict[tuple[int, int], list[tuple[float, float, tuple[StageRun, ...]]]] = {}
        for (start, used), divisions in reached.items():
            for end in range(start + 1, count - left + 1):
                for size, (took, shape) in fastest[start, end].items():
                    if used + size <= devices - left:
                        run = StageRun(start, end, shape)
                        longer = [(total + took, max(slowest, took), (*runs, run)) for total, slowest, runs in divisions]
                        following.setdefault((end, used + size), []).extend(longer)
        reached = {key: _undominated(each) for key, each in following.items()}
    steps = [(total + (microbatches - 1) * slowest, runs) for total, slowest, runs in reached.get((count, devices), ())]
    return min(steps, key=operator.itemgetter(0), default=None)


def _undominated(divisions: list[tuple[float, float, tuple[StageRun, ...]]]) -> list[tuple[float, float, tuple[StageRun, ...]]]:
    best: list[tuple[float, float, tuple[StageRun, ...]]] = []
    for each in sorted(divisions, key=operator.itemgetter(0, 1)):
        if not best or each[1] < best[-1][1]:
            best.append(each)
    return best


Sizes = Mapping[str, int]
StagePlan = tuple[float, tuple[PartitionSpec, ...]]

TIME_SHARE = 0.1
"""The part of the planner's time that one stage may take."""


@dataclass(frozen=True)
class StageProgram:
    """The work of a stage in a step, run `times` times: once with the whole batch, or for each microbatch."""

    nodes: tuple[FlatEquation, ...]
    inputs: tuple[Var, ...]
    outputs: tuple[Var, ...]
    of: Mapping[Var, Var]
    times: int


def stage_program(split: SplitStep, programs: Iterable[TaskProgram], microbatches: int, *, by_batch: bool) -> StageProgram:
    """The programs of one stage as one program."""
    programs = tuple(programs)
    nodes = split.whole.nodes if by_batch else (*split.micro.nodes, *split.update)
    twin: Callable[[Var], Var | None] = split.whole_of.get if by_batch else lambda v: v
    number = {v: i for i, node in enumerate(nodes) for v in node.eqn.outvars}
    places = {number[w] for program in programs for node in program.nodes for v in node.eqn.outvars if (w := twin(v)) in number}
    body = tuple(nodes[i] for i in sorted(places))
    inside = {v for node in body for v in node.eqn.outvars}
    inputs = inputs_of(body)
    results = [twin(v) for program in programs for v in (*program.outputs, *program.sums)]
    outputs = tuple(dict.fromkeys(w for w in results if w in inside and w is not None))
    crossing = {*inputs, *outputs}
    ends = dict.fromkeys(v for program in programs for v in (*program.inputs, *program.outputs, *program.sums, *program.resets))
    of = {v: w for v in ends if (w := twin(v)) in crossing and w is not None}
    return StageProgram(body, inputs, outputs, of, 1 if by_batch else microbatches)


class StagePlanner:
    """Plans stages and prices programs; alike ones once.

    What another search would not find alike, as it depends on time, is in `findings`: the other processes go through the same pipelines as
    the first, with its findings in `stated`.
    """

    def __init__(self, planner: Planner, donated: Callable[[Var], bool]) -> None:
        self.stated, self.findings = deque[Any](), list[Any]()
        # What a stage holds depends on how many microbatches are on their way, which `stage_memory` knows.
        # Nothing in it is fed: what it takes comes from other stages, or from the call before.
        self.prices = planner
        self.planner = replace(planner, memory_bytes=math.inf, time_limit_s=TIME_SHARE * planner.time_limit_s, fed=(), resident="*")
        self.donated = donated
        self._plans: dict[tuple[Any, ...], StagePlan] = {}
        self._seconds: dict[tuple[Any, ...], float] = {}

    def finding(self, compute: Callable[[], Any]) -> Any:
        """What the first process finds here."""
        self.findings.append(self.stated.popleft() if self.stated else compute())
        return self.findings[-1]

    def chosen(self, program: StageProgram, sizes: Sizes) -> StagePlan:
        """Seconds of the stage in a step, with the shardings that the planner chooses for its operands and results."""
        if not program.nodes:
            return 0.0, (PartitionSpec(),) * len(program.inputs)
        seconds, specs = self.finding(lambda: self._chosen(program, sizes))
        return seconds, tuple(PartitionSpec(*(tuple(e) if isinstance(e, list) else e for e in spec)) for spec in specs)

    def _chosen(self, program: StageProgram, sizes: Sizes) -> StagePlan:
        closed = closed_jaxpr([node.eqn for node in program.nodes], program.inputs, program.outputs)
        donated = tuple(i for i, v in enumerate(program.inputs) if self.donated(v))
        key = (str(closed), tuple(sizes.items()), donated)
        if key not in self._plans:
            run = positional(jaxpr_as_fun(closed), len(program.inputs))
            sharded = auto_shard(run, mesh=sizes, lowering="jit", donate_argnums=donated or None, planner=self.planner)
            plan = sharded.plan(*map(struct_of, program.inputs))
            assert plan.search is not None
            shardings = jax.tree.leaves((plan.input_shardings, plan.output_shardings))
            specs = tuple(s.spec if isinstance(s, NamedSharding) else PartitionSpec() for s in shardings)
            self._plans[key] = plan.search.objective_seconds * program.times, specs
        return self._plans[key]

    def seconds(self, program: TaskProgram, places: Places) -> float:
        """The seconds of one run of a program."""
        return self.finding(lambda: self._seconds_of(program, places))

    def _seconds_of(self, program: TaskProgram, places: Places) -> float:
        eqns = [node.eqn for node in program.nodes]
        results = list(dict.fromkeys(v for v in (*program.outputs, *program.sums) if v not in program.stands))
        mesh = places.mesh(program.stage)
        if mesh.size == 1 or not eqns:
            return math.fsum(equation_seconds(eqns, results, self.prices.machine))
        inside = {v for eqn in eqns for v in eqn.outvars}
        text = str(closed_jaxpr(eqns, inputs_of(program.nodes), [v for v in results if v in inside]))
        specs = tuple(sharding.spec for each in shardings(program, places) for sharding in each)
        key = (text, tuple(mesh.shape.items()), specs, str(structs(program)), places.planner is None)
        seconds = self._seconds.get(key)
        if seconds is None:
            step = (
                replace(plan_of(program, places), stated_feeding=NOTHING)
                .cost_analysis(self.prices.hardware, self.prices.links)
                .step_seconds
            )
            assert step is not None
            seconds = self._seconds[key] = self.prices.objective(step)
        return seconds


def _dividing(spec: PartitionSpec, shape: Sequence[int], sizes: Sizes) -> PartitionSpec:
    """A spec without the axes that do not divide their dimension."""
    entries = [axes_of(entry) for entry in spec]
    return PartitionSpec(
        *(axes or None if not n % math.prod(sizes[a] for a in axes) else None for axes, n in zip(entries, shape, strict=False))
    )


PIECES = 8
"""Pieces of the forward pass that stages are made of."""

PIECES_SHARE = 0.5
"""The part of the time in which pieces are planned; the shapes of meshes that are left over are not used."""

AXES = ("data", "model")
"""The axes inside of a stage."""


def check_planner(planner: object, mesh: object, virtual: int, in_shardings: object) -> None:
    """Raises PipelineError if the arguments of `pipeline` beside a planner leave it no choice, or one that it cannot make."""
    if not isinstance(planner, Planner):
        raise TypeError(f'planner is {planner!r}; pass planner=sp.Planner(hardware="h100")')
    if isinstance(mesh, int) and (mesh < 1 or isinstance(mesh, bool)):
        raise PipelineError(f"mesh is {mesh!r}", where="sp.pipeline(mesh=)", why="a number of devices must be positive", fix="pass mesh=8")
    if planner.templates:
        raise PipelineError(
            "the planner has templates", where="sp.pipeline(planner=)", why="they shard a whole function, and a pipeline plans its stages",
            fix="leave templates out",
        )  # fmt: skip
    if planner.fed or planner.resident:
        raise PipelineError(
            "the planner says what is fed", where="sp.pipeline(planner=)", why="prices of pipelines leave out the link to the host",
            fix="leave fed and resident out",
        )  # fmt: skip
    if not planner.constraints:
        raise PipelineError(
            "the planner shards no values inside (constraints=False)", where="sp.pipeline(planner=)",
            why="what a stage hands to the next is a value inside of the step, and its sharding is chosen", fix="leave constraints out",
        )  # fmt: skip
    for label, stated in (("virtual", virtual != 1), ("in_shardings", in_shardings is not None)):
        if stated:
            raise PipelineError(
                f"{label} is stated beside a planner", where=f"sp.pipeline({label}=, planner=)",
                why="the planner of a pipeline chooses shardings, with one stage on each mesh", fix=f"leave out {label}, or the planner",
            )  # fmt: skip


Priced = tuple[PipelineSearch, StagedStep]


def planned(options: PipelineOptions, signature: CallSignature) -> StagedStep:
    """The fastest pipeline that fits; raises PipelineError if none fits, or it cannot be run."""
    search = _PipelineSearch(options, signature)
    peers = search.peers()
    if peers is None:
        return search.run()
    key = f"pipeline/{digest(search.statement())}"
    if peers.own == peers.processes[0]:
        try:
            return search.run()
        finally:
            peers.send(key, json.dumps(search.stages.findings, default=tuple))
    stated = peers.receive(key, 2 * search.planner.time_limit_s + AHEAD)
    search.stages.stated.extend(json.loads(stated or "[]"))
    return search.run()


class _PipelineSearch:
    def __init__(self, options: PipelineOptions, signature: CallSignature) -> None:
        assert options.planner is not None
        self.began = time.monotonic()
        self.options, self.signature, self.planner = options, signature, options.planner
        self.meshes = None if options.mesh is None or isinstance(options.mesh, int) else _meshes(options)
        self.devices: int = options.mesh or len(jax.local_devices()) if self.meshes is None else sum(m.size for m in self.meshes)
        context = trace_mesh(Places(self.meshes, len(self.meshes))) if self.meshes else AbstractMesh((), ())
        self.split: SplitStep = trace_step(options, signature, context)
        inputs = zip(self.split.whole.invars, self.split.micro.invars, signature.argument, strict=True)
        donated = {v for w, v, argument in inputs if argument in options.donate_argnums}
        donated |= {self.split.whole_of.get(v, v) for v in donated}
        self.stages = StagePlanner(self.planner, donated.__contains__)
        self.rows = signature.structs[signature.batch.index(True)].shape[0] // options.num_microbatches
        most = max(PIECES, options.num_stages or 0, len(self.meshes or ()))
        self.cuts = None if options.partition is not None else pieces(self.split, most, options.hardware)
        self.counts = self._counts()
        budget = self.planner.budget if options.memory_bytes is None else options.memory_bytes
        self.budget = None if budget is None or math.isinf(budget) else int(budget)

    def peers(self) -> Peers | None:
        """The processes of the devices; None for one."""
        meshes = self.meshes or meshes_of([(self.devices,)], AXES[:1])
        return peers_of(device for mesh in meshes if isinstance(mesh, Mesh) for device in mesh.devices.flat)

    def statement(self) -> str:
        """What is searched: equal in all processes that search the same."""
        options, whole = self.options, self.split.whole
        text = str(closed_jaxpr([node.eqn for node in whole.nodes], whole.invars, []))
        settings = options.num_stages, options.num_microbatches, options.schedule, options.memory_bytes, self.devices, self.planner
        return re.sub(r" at 0x[0-9a-f]+", "", f"{self.signature.paths} {settings} {text}")

    def _counts(self) -> list[int]:
        """Numbers of stages to try."""
        if self.meshes is not None:
            return [len(self.meshes)]
        if self.cuts is None:
            return [self.assigned(self.options.num_stages).stages]
        most = min(len(self.cuts) + 1, self.devices)
        if self.options.num_stages is not None:
            if self.options.num_stages > most:
                raise PipelineError(
                    f"{self.options.num_stages} stages, {len(self.cuts) + 1} operations and {self.devices} devices",
                    where="sp.pipeline(num_stages=, mesh=, planner=)", why="every stage needs a device and an operation on the examples",
                    fix=f"pass num_stages={most} or fewer, or leave it out",
                )  # fmt: skip
            return [self.options.num_stages]
        if isinstance(self.options.schedule, Schedule):
            return [self.options.schedule.meshes]
        return list(range(1, most + 1))

    def run(self) -> StagedStep:
        """The best pipeline."""
        priced = sorted((*self.by_propagation(), *self.alone(), *self.by_planner()), key=lambda each: each[0].objective_seconds)
        chosen = next((each for each in priced if each[0].fits), None)
        if chosen is None:
            raise self.infeasible(priced)
        return replace(chosen[1], search=replace(chosen[0], alternatives=tuple(search for search, _ in priced)))

    def infeasible(self, priced: Sequence[Priced]) -> PipelineError:
        """The error for a budget that nothing fits."""
        least, built = min(priced, key=lambda each: each[0].memory_bytes)
        stage = max(stage_memory(built), key=lambda stage: stage.memory_bytes)
        activations = stage.in_flight * stage.activation_bytes
        return PipelineError(
            f"no pipeline fits {format_bytes(self.budget or 0)} a device: the least that was found is {format_bytes(least.memory_bytes)}",
            where=f"sp.pipeline(planner=), stage {stage.name!r} of {least.name}",
            why=f"parameters take {format_bytes(stage.parameter_bytes)}, their state {format_bytes(stage.state_bytes)}, gradients "
            f"{format_bytes(stage.gradient_bytes)}, activations in flight {format_bytes(activations)}",
            fix="use more devices, more microbatches, or jax.checkpoint",
        )

    def assigned(self, count: int | None, cuts: Sequence[int] | None = None) -> Assignment:
        """The assignment of equations to `count` stages, cut at the marks of the user where there are any."""
        return assign(self.split, count, self.options.hardware, stage_names(self.options), cuts)

    def by_propagation(self) -> Iterator[Priced]:
        """The pipelines that there are without a planner: stages of equal time on equal meshes, along which the batch lies."""
        axis = self.options.axis
        for count in self.counts:
            if self.meshes is not None or self.devices % count == 0:
                meshes = self.meshes or submeshes({axis: count, AXES[0]: self.devices // count}, axis, count)
                places = Places(meshes, count)
                built = staged(self.options, self.signature, self.split, self.assigned(count), places)
                yield self.priced("batch along each mesh", built)

    def alone(self) -> Iterator[Priced]:
        """The plan without a pipeline: one stage with the whole batch."""
        if 1 in self.counts and self.meshes is None and isinstance(self.options.schedule, str):
            options = replace(self.options, num_microbatches=1)
            split = trace_step(options, self.signature, AbstractMesh((), ()))
            assigned = assign(split, 1, options.hardware, stage_names(options))
            places = Places(tuple(meshes_of([(self.devices,)], AXES[:1])), 1, planner=self.stages.planner)
            yield self.planned(
                "the batch as a whole, planned", staged(options, self.signature, split, assigned, places, propagate=False), True
            )

    def by_planner(self) -> Iterator[Priced]:
        """The pipelines of planned pieces: for each number of stages the best one, the most promising first, while there is time."""
        best = math.inf
        for estimate, runs in self.divisions():
            late = not self.has_time(1.0)
            if best < math.inf and (late or estimate >= best):
                return
            cuts = None if self.cuts is None else [self.cuts[run.start - 1] for run in runs[1:]]
            names = AXES[: max(len(run.shape) for run in runs)]
            meshes = self.meshes or meshes_of([(*run.shape, *(1,) * (len(names) - len(run.shape))) for run in runs], names)
            # Parameters are gathered for each microbatch, gradients summed once: neither a microbatch nor the batch has both.
            for name, by_batch in (("planned", True), ("planned by microbatch", False)):
                places = Places(tuple(meshes), len(runs), planner=self.stages.planner)
                built = staged(self.options, self.signature, self.split, self.assigned(len(runs), cuts), places, propagate=False)
                priced = self.planned(name, built, by_batch)
                best = min(best, priced[0].objective_seconds if priced[0].fits else math.inf)
                yield priced

    def planned(self, name: str, built: StagedStep, by_batch: bool) -> Priced:
        """A pipeline with the shardings that the planner chooses for its stages."""
        for s in range(built.places.stages):
            sizes = dict(built.places.mesh(s).shape)
            programs = [p for p in (*built.programs.values(), *built.update) if p.stage == s]
            rows = self.signature.structs[self.signature.batch.index(True)].shape[0] // built.options.num_microbatches
            whole = by_batch and rows % math.prod(sizes.values()) == 0  # a microbatch has to divide among the devices
            program = stage_program(built.split, programs, self.options.num_microbatches, by_batch=whole)
            specs = dict(zip((*program.inputs, *program.outputs), self.stages.chosen(program, sizes)[1], strict=True))
            built.places.at.update(((v, s), _dividing(specs[w], shape_of(v), sizes)) for v, w in program.of.items())
        return self.priced(name, built)

    def divisions(self) -> list[tuple[float, tuple[StageRun, ...]]]:
        """Stages of the pieces: for each number of stages those whose step takes least, and its seconds, the fastest step first."""
        count = self.options.num_microbatches
        seconds = {shape: [t / count for t in times] for shape, times in self.pieces().items()}
        if self.meshes is not None:
            # A stage that has one of the meshes has one of so many equal places.
            divisions = [divided({(1,): next(iter(seconds.values()))}, len(self.meshes), len(self.meshes), count)]
        else:
            divisions = [divided(seconds, stages, self.devices, count) for stages in self.counts]
        crossing = 2 * self.planner.machine.fabric.latency  # at least, over each boundary and back
        estimates = [(seconds + crossing * (len(runs) - 1), runs) for seconds, runs in (each for each in divisions if each is not None)]
        return sorted(estimates, key=lambda each: each[0])

    def pieces(self) -> dict[tuple[int, ...], list[float]]:
        """Shape of a mesh -> seconds of the whole batch in each piece on it."""
        finest = self.assigned(None if self.cuts is None else len(self.cuts) + 1, self.cuts)
        programs = stage_programs(self.split, finest, [False] * finest.stages)
        updates = updating(self.split, programs, {})[1]
        parts = [[p for p in (*programs.values(), *updates) if p.stage == s] for s in range(finest.stages)]
        count = self.options.num_microbatches
        whole, single = ([stage_program(self.split, part, count, by_batch=by_batch) for part in parts] for by_batch in (True, False))
        if self.meshes is not None:
            largest = max(self.meshes, key=lambda mesh: mesh.size)
            each = whole if self.rows % largest.size == 0 else single
            return {tuple(largest.shape.values()): [self.stages.chosen(piece, dict(largest.shape))[0] for piece in each]}
        seconds: dict[tuple[int, ...], list[float]] = {}
        for shape in sorted((shape for size in _sizes(self.devices) for shape in shapes(size)), key=len):
            if not seconds or self.has_time(PIECES_SHARE) or len(shape) == 1:
                each = whole if self.rows % math.prod(shape) == 0 else single
                seconds[shape] = [self.stages.chosen(piece, dict(zip(AXES, shape)))[0] for piece in each]
        return seconds

    def has_time(self, share: float) -> bool:
        """Whether less than a part of its time has passed."""
        return self.stages.finding(lambda: time.monotonic() - self.began < share * self.planner.time_limit_s)

    def priced(self, name: str, built: StagedStep) -> Priced:
        """A pipeline with its price: its schedule, simulated with the programs that run, and what runs once."""
        places, count, microbatches = built.places.copy(), built.places.stages, built.options.num_microbatches
        programs, updates = defer_sums(built.programs, built.update, places, built.split.batch)
        times = {role: [0.0] * count for role in ("forward", "backward", "weight")}
        for (role, s), program in programs.items():
            times[PASSES[role]][s] += self.stages.seconds(program, places)
        once = [0.0] * count
        for program in updates:
            once[program.stage] += self.stages.seconds(program, places)
        transfer = transfers(built.programs, places, self.planner.machine)
        step = run(built.schedule, costs_of(count, **times, transfer=transfer)).makespan + max(once)
        seconds = [microbatches * math.fsum(times[role][s] for role in times) + once[s] for s in range(count)]
        stages = tuple(
            PlannedStage(dict(places.mesh(s).shape), seconds[s], memory.memory_bytes) for s, memory in enumerate(stage_memory(built))
        )
        sizes = " + ".join(str(places.mesh(s).size) for s in range(count))
        name = f"{count} stage{'s' if count > 1 else ''} on {sizes} devices, {name}"
        return PipelineSearch(self.planner.machine.name, step, self.budget, name, stages), built


def _meshes(options: PipelineOptions) -> tuple[Mesh | AbstractMesh, ...]:
    """The meshes that the user states."""
    mesh = options.mesh
    if options.num_stages is not None:
        count = options.num_stages
    else:
        count = len(mesh) if isinstance(mesh, Sequence) else int((mesh if isinstance(mesh, Mapping) else mesh.shape).get(options.axis, 1))
    return submeshes(mesh, options.axis, count)


def _sizes(devices: int) -> list[int]:
    """Sizes of the mesh of a stage: divisors of a number of devices, and powers of two."""
    return [size for size in range(1, devices + 1) if devices % size == 0 or size & (size - 1) == 0]
