"""Plans of stages: what a stage computes in a step, forward, backward and update together; and the seconds of programs as they run."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.extend.core import Var, jaxpr_as_fun
from jax.sharding import NamedSharding, PartitionSpec

from shardy_py.api import auto_shard
from shardy_py.pipelines.compiling import Compiling
from shardy_py.pipelines.equation_cost import equation_seconds
from shardy_py.pipelines.flat import Node
from shardy_py.pipelines.jaxprs import closed_jaxpr, reads, shape_of, struct_of
from shardy_py.pipelines.microbatching import Split
from shardy_py.pipelines.placing import Places, axes_of
from shardy_py.pipelines.programs import Program
from shardy_py.plan.feeding import NOTHING
from shardy_py.planner.options import Planner

Sizes = Mapping[str, int]

TIME_SHARE = 0.1
"""The part of the planner's time that one stage may take."""


@dataclass(frozen=True)
class StageProgram:
    """The work of a stage in a step, run `times` times: once with the whole batch, or for each microbatch."""

    nodes: tuple[Node, ...]
    inputs: tuple[Var, ...]
    outputs: tuple[Var, ...]
    of: Mapping[Var, Var]
    times: int


@dataclass(frozen=True)
class StagePlan:
    """Seconds of a stage in a step, and shardings of its operands and results."""

    seconds: float
    inputs: tuple[PartitionSpec, ...]
    outputs: tuple[PartitionSpec, ...]


def stage_program(split: Split, programs: Iterable[Program], microbatches: int, *, by_batch: bool) -> StageProgram:
    """The programs of one stage as one program."""
    programs = tuple(programs)
    assert split.whole is not None
    nodes = split.whole.nodes if by_batch else (*split.micro.nodes, *split.update)
    twin: Callable[[Var], Var | None] = split.whole_of.get if by_batch else lambda v: v
    number = {v: i for i, node in enumerate(nodes) for v in node.eqn.outvars}
    places = {number[w] for program in programs for node in program.nodes for v in node.eqn.outvars if (w := twin(v)) in number}
    body = tuple(nodes[i] for i in sorted(places))
    inside = {v for node in body for v in node.eqn.outvars}
    inputs = tuple(dict.fromkeys(v for node in body for v in reads(node.eqn) if v not in inside))
    results = [twin(v) for program in programs for v in (*program.outputs, *program.sums)]
    outputs = tuple(dict.fromkeys(w for w in results if w in inside and w is not None))
    crossing = {*inputs, *outputs}
    ends = dict.fromkeys(v for program in programs for v in (*program.inputs, *program.outputs, *program.sums, *program.resets))
    of = {v: w for v in ends if (w := twin(v)) in crossing and w is not None}
    return StageProgram(body, inputs, outputs, of, 1 if by_batch else microbatches)


class StagePlanner:
    """Plans stages; alike ones once."""

    def __init__(self, planner: Planner, donated: Callable[[Var], bool]) -> None:
        # What a stage holds depends on how many microbatches are on their way, which `stage_memory` knows.
        # Nothing in it is fed: what it takes comes from other stages, or from the call before.
        self.planner = replace(planner, memory_bytes=math.inf, time_limit_s=TIME_SHARE * planner.time_limit_s, fed=(), resident="*")
        self.donated = donated
        self._plans: dict[tuple[Any, ...], StagePlan] = {}

    def chosen(self, program: StageProgram, sizes: Sizes) -> StagePlan:
        """The stage with the shardings that the planner chooses."""
        if not program.nodes:
            return StagePlan(0.0, (PartitionSpec(),) * len(program.inputs), ())
        closed = closed_jaxpr([node.eqn for node in program.nodes], program.inputs, program.outputs)
        donated = tuple(i for i, v in enumerate(program.inputs) if self.donated(v))
        key = (str(closed), tuple(sizes.items()), donated)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._planned(closed, program, sizes, donated)
        return plan

    def _planned(self, closed: Any, program: StageProgram, sizes: Sizes, donated: tuple[int, ...]) -> StagePlan:
        run = jaxpr_as_fun(closed)

        def stage(*values: Any) -> list[Any]:
            return run(*values)

        stage.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(f"x{i}", inspect.Parameter.POSITIONAL_ONLY) for i in range(len(program.inputs))]
        )
        sharded = auto_shard(stage, mesh=sizes, lowering="jit", donate_argnums=donated or None, planner=self.planner)
        plan = sharded.plan(*map(struct_of, program.inputs))
        assert plan.search is not None
        inputs, outputs = (
            tuple(s.spec if isinstance(s, NamedSharding) else PartitionSpec() for s in jax.tree.leaves(tree))
            for tree in (plan.input_shardings, plan.output_shardings)
        )
        return StagePlan(plan.search.objective_seconds * program.times, inputs, outputs)


class ProgramPrices:
    """Modelled seconds of programs, cached for programs that are alike."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self._seconds: dict[tuple[Any, ...], float] = {}

    def seconds(self, program: Program, places: Places) -> float:
        """The seconds of one run of a program."""
        eqns = [node.eqn for node in program.nodes]
        results = list(dict.fromkeys(v for v in (*program.outputs, *program.sums) if v not in program.stands))
        compiling = Compiling(program, places)
        if compiling.mesh.size == 1 or not eqns:
            return math.fsum(equation_seconds(eqns, results, self.planner.machine))
        inside = {v for eqn in eqns for v in eqn.outvars}
        read = dict.fromkeys(v for eqn in eqns for v in reads(eqn) if v not in inside)
        text = str(closed_jaxpr(eqns, read, [v for v in results if v in inside]))
        specs = tuple(sharding.spec for sharding in (*compiling.ins, *compiling.outs))
        key = (text, tuple(compiling.mesh.shape.items()), specs, str(compiling.structs), places.planner is None)
        seconds = self._seconds.get(key)
        if seconds is None:
            step = replace(compiling.plan(), stated_feeding=NOTHING).cost_analysis(self.planner.hardware, self.planner.links).step_seconds
            assert step is not None
            seconds = self._seconds[key] = self.planner.objective(step)
        return seconds


def set_specs(places: Places, stage: int, program: StageProgram, plan: StagePlan) -> None:
    """Shards the values of a stage as its plan does, as far as microbatches divide."""
    specs = dict(zip((*program.inputs, *program.outputs), (*plan.inputs, *plan.outputs), strict=True))
    sizes = dict(places.mesh(stage).shape)
    for v, w in program.of.items():
        places.at[v, stage] = _dividing(specs[w], shape_of(v), sizes)


def _dividing(spec: PartitionSpec, shape: Sequence[int], sizes: Sizes) -> PartitionSpec:
    """A spec without the axes that do not divide their dimension."""
    entries = [axes_of(entry) for entry in spec]
    return PartitionSpec(
        *(axes or None if not n % math.prod(sizes[a] for a in axes) else None for axes, n in zip(entries, shape, strict=False))
    )
