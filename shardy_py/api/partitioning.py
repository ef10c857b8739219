"""Propagation through a traced program, the regions that run its plan, and the choice of `lowering="auto"` between them and XLA."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.sharding import AbstractMesh, Mesh

from shardy_py.api.meshes import MESH_NAME, MeshView
from shardy_py.api.options import Options
from shardy_py.api.tracing import TracedCall
from shardy_py.backends.jit import constrained
from shardy_py.backends.partitioned_call import PlannedCall, Shardings, partitioned_call
from shardy_py.backends.region_parts import in_parts
from shardy_py.backends.shard_map import Partitioned, fits_inside, partitioned
from shardy_py.dialect import INSTALLED, DimensionSharding, Semantics, TensorSharding
from shardy_py.dialect import Mesh as PlannedMesh
from shardy_py.errors import ShardyError
from shardy_py.facade import Plan
from shardy_py.frontends.context import is_extended_dtype
from shardy_py.frontends.jaxpr import Imported, from_jaxpr
from shardy_py.frontends.primitives.avals import physical_shape
from shardy_py.frontends.transforms import hoisted, used_part
from shardy_py.ir import Program, Value
from shardy_py.passes.collection import no_collection
from shardy_py.passes.import_.sharding_group_import import GROUP
from shardy_py.passes.pipelines import PlanPipeline
from shardy_py.passes.propagation.log import LogStep
from shardy_py.plan.checks.wording import NOTABLE, more_text
from shardy_py.plan.collectives import Collective
from shardy_py.plan.findings import Finding
from shardy_py.plan.progress import Timings
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.values import name_of

LOWERINGS = ("auto", "jit", "shard_map")

KIND = "jit-lowering"


def obstacle(partition: Callable[[], Partitioned]) -> Finding | None:
    """Why XLA's partitioner gets a program under `lowering="auto"`; None where its region runs.

    The choice depends on the program, the mesh and the platform only, so it is the same in every process.
    """
    try:
        region = partition()
    except (ShardyError, NotImplementedError) as error:
        return Finding(KIND, f"lowering='jit' runs the plan: {_first_line(error)}", severity="info")
    except Exception as error:  # XLA's partitioner can run what ours fails on; the user is told, and no program ends for it.
        message = f"lowering='jit' runs the plan, for its partitioning failed: {type(error).__name__}: {_first_line(error)}"
        return Finding(KIND, message, fix="report it; lowering='shard_map' shows the traceback")
    whole = [f for f in region.findings if f.kind == "runs-whole" and f.bytes >= NOTABLE]
    if not whole:
        return None
    largest = max(whole, key=lambda finding: finding.bytes)
    message = f"lowering='jit' runs the plan: as a region, {largest.message}{more_text(len(whole), 'like it')}"
    return Finding(KIND, message, largest.path, largest.location, largest.severity, largest.bytes, largest.fix)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")


def import_and_propagate(
    jaxpr: ClosedJaxpr,
    view: MeshView,
    options: Options,
    inputs: Sequence[TensorSharding | None],
    outputs: Sequence[TensorSharding | None],
    timings: Timings | None = None,
    log: list[LogStep] | None = None,
    names: Sequence[str] | None = None,
    groups: dict[int, list[Value]] | None = None,
) -> Imported:
    """A propagated jaxpr as a program; the members of sharding groups, which it has no ops of, are written to `groups`."""
    timings = Timings() if timings is None else timings
    with timings.step("read"):
        imported = from_jaxpr(
            jaxpr,
            mesh=view.dialect_mesh,
            in_shardings=[physical_sharding(s, v.aval) for s, v in zip(inputs, jaxpr.jaxpr.invars, strict=True)],
            out_shardings=[physical_sharding(s, v.aval) for s, v in zip(outputs, jaxpr.jaxpr.outvars, strict=True)],
            argument_names=names,
            rules=options.rule_table or None,
            platform=options.platform_of(view.user_mesh),
            devices=view.expected,
            semantics=INSTALLED if options.semantics is None else Semantics(options.semantics),
        )
    if groups is not None:
        for op in imported.program.walk():
            if op.name == GROUP:
                groups.setdefault(op.attributes["group_id"], []).append(op.operands[0])
    with timings.step("propagate"):
        PlanPipeline(
            propagation_strategy=options.strategy,
            conservative_propagation=options.conservative,
            run_op_priority_propagation=options.op_priority,
        ).run(imported.program, log)
    return imported


def physical_sharding(sharding: TensorSharding | None, aval: Any) -> TensorSharding | None:
    """The sharding of the array that holds a value; PRNG keys have further dimensions, replicated."""
    if sharding is None or not is_extended_dtype(aval.dtype):
        return sharding
    extra = len(physical_shape(aval)) - sharding.rank
    return sharding.with_dims((*sharding.dims, *(DimensionSharding(),) * extra))


def decided(sharding: TensorSharding | None, rank: int) -> TensorSharding:
    """A planned sharding as annotations say it: every dimension closed, without those that PRNG keys add."""
    planned = TensorSharding.closed(MESH_NAME, rank) if sharding is None else sharding
    return planned.with_dims(planned.dims[:rank]).closed_like().with_mesh(MESH_NAME)


_LOGGER = logging.getLogger("shardy_py")

Run = Callable[..., Sequence[Any]]


class RegionBuilder:
    """Makes the region of a plan when it is first asked for."""

    def __init__(self, imported: Imported, traced: TracedCall, context: AbstractMesh | None = None, *, by_planner: bool = False) -> None:
        self.imported = imported
        self.traced = traced
        self.context = context
        self.by_planner = by_planner
        self._partitioned: Partitioned | None = None
        self._local: Program | None = None
        self._choice: tuple[Finding | None] | None = None
        self._has_region: bool | None = None

    @property
    def platform(self) -> str:
        """The platform that is planned for."""
        request = self.traced.request
        return request.settings.options.platform_of(request.view.user_mesh)

    def obstacle(self, plan: PlanRecord) -> Finding | None:
        """Why XLA's partitioner runs the plan under `lowering="auto"`; None where the region does. Decided once."""
        if self._choice is None:
            is_auto = self.traced.request.settings.lowering == "auto"
            self._choice = (obstacle(functools.partial(self.partitioned, plan)) if is_auto else None,)
        return self._choice[0]

    def is_run(self, plan: PlanRecord) -> bool:
        """Whether the region runs."""
        return self.traced.request.settings.lowering != "jit" and self.obstacle(plan) is None

    def has_region(self, plan: PlanRecord) -> bool:
        """Whether there is a region; under `lowering="shard_map"` the first use of one that there is not raises."""
        if self._has_region is None:
            try:
                self._has_region = self.traced.request.settings.lowering == "shard_map" or bool(self.partitioned(plan))
            except Exception:  # XLA can run what ours fails on, and figures come from Shardy's reshards
                self._has_region = False
        return self._has_region

    def partitioned(self, plan: PlanRecord) -> Partitioned:
        """The traced jaxpr as one region of local arrays."""
        if self._partitioned is None:
            request = self.traced.request
            view = request.view
            ins, outs = ([v.sharding for v in values] for values in (plan.inputs, plan.outputs))
            with plan.timings.step("partition"):
                platform, (_, used) = self.platform, self.needed
                self._partitioned = partitioned(
                    self.closed,
                    self.imported,
                    view.auto_mesh,
                    ins,
                    outs,
                    platform,
                    view.user_mesh,
                    self.context,
                    used,
                    self.by_planner,
                    by_xla=request.settings.lowering == "jit",
                    overlap=request.settings.options.overlap,
                )
        return self._partitioned

    @functools.cached_property
    def closed(self) -> ClosedJaxpr:
        """The traced jaxpr, without references."""
        return ClosedJaxpr(self.imported.scope.jaxpr, self.traced.jaxpr.consts)

    @functools.cached_property
    def needed(self) -> tuple[ClosedJaxpr, tuple[bool, ...]]:
        """The used part of the traced jaxpr with constants as first inputs, and whether it reads each constant and argument."""
        whole = hoisted(self.closed)
        return used_part(whole, (True,) * len(whole.out_avals))

    def collectives(self, plan: PlanRecord) -> tuple[Collective, ...]:
        """The collectives of the region."""
        return self.partitioned(plan).collectives(lambda value: name_of(value, plan.names))

    def region_jaxpr(self, plan: PlanRecord) -> Jaxpr:
        """The body of the region."""
        return self.partitioned(plan).body

    def findings(self, plan: PlanRecord) -> tuple[Finding, ...]:
        """Findings on ops that run whole in the region, or the reason why the region does not run."""
        why = self.obstacle(plan)
        return (why,) if why is not None else self.partitioned(plan).findings if self.has_region(plan) else ()

    def local_program(self, plan: PlanRecord) -> Program:
        """The region as a program: a manual computation over arrays as they are on one device. Cost, memory and stores share it."""
        if self._local is None:
            region = self.partitioned(plan)
            mesh = PlannedMesh(tuple((name, region.mesh.shape[name]) for name in region.mesh.axis_names))
            with no_collection():
                names, platform = [v.path for v in plan.inputs], self.platform
                self._local = from_jaxpr(region.jaxpr, mesh=mesh, argument_names=names, platform=platform).program
        return self._local

    def calling(self, plan: PlanRecord, mesh: Mesh | None) -> Run:
        """A function from leaves to leaves that runs the region, and can be transformed as the traced one."""
        _, used = self.needed

        return calling(
            self.traced, plan, self.closed.consts, self.needed, lambda: in_parts(self.partitioned(plan).as_call(used)), mesh, self.context
        )


@dataclass(frozen=True, eq=False)
class Planned:
    """A plan with what the back ends need besides."""

    plan: Plan
    imported: Imported
    traced: TracedCall
    partitioning: RegionBuilder | None = None

    @property
    def region(self) -> RegionBuilder | None:
        """The partitioning, if the plan runs as a region."""
        return None if self.plan.lowering == "jit" else self.partitioning


def calling(
    traced: TracedCall,
    plan: PlanRecord,
    consts: Sequence[Any],
    needed: tuple[ClosedJaxpr, tuple[bool, ...]],
    program: Callable[[], ClosedJaxpr],
    mesh: Mesh | None,
    context: AbstractMesh | None = None,
) -> Run:
    """A function from leaves to leaves that runs a plan, and can be transformed as the traced one.

    Args:
        needed: The used part of the traced jaxpr, its constants as first inputs, and which of constants and arguments it has:
            `jax.jit` would leave the rest out later, and what it leaves would have to be planned once more.
    """
    request, (jaxpr, used) = traced.request, needed
    ins = (*(None for _ in consts), *(decided(v.sharding, len(v.shape)) for v in plan.inputs))
    outs = tuple(decided(v.sharding, len(v.shape)) for v in plan.outputs)
    ins = tuple(s for s, u in zip(ins, used, strict=True) if u)
    # What is remembered of programs outlives the function: it must not hold large arrays, nor values of an outer trace.
    if any(isinstance(c, Tracer) or getattr(c, "nbytes", 0) > _LIGHT for c in consts):
        program_of_operands = program()  # takes them as operands
        program = lambda: program_of_operands  # noqa: E731
    first = jaxpr, ((ins, outs), program)
    partition = DerivedRegions(request.view, request.settings.options, mesh, first, request.settings.lowering, context)

    def run(*leaves: Any) -> list[Any]:
        operands = [x for x, u in zip((*consts, *leaves), used, strict=True) if u]
        return partitioned_call(jaxpr, operands, partition, ins, outs, request.name)

    return run


_LIGHT = 1 << 16
"""Bytes up to which a constant may be remembered."""


@dataclass(frozen=True, eq=False)
class DerivedRegions:
    """Plans and partitions the programs that a decorated function is transformed to, as the function itself; see `Partitioner`."""

    view: MeshView
    options: Options
    devices: Mesh | None
    first: tuple[ClosedJaxpr, PlannedCall] | None = None
    lowering: str = "shard_map"
    context: AbstractMesh | None = None
    memory: dict[Hashable, Any] = field(default_factory=dict)

    def plan(self, jaxpr: ClosedJaxpr, in_shardings: Shardings, out_shardings: Shardings) -> PlannedCall:
        """See `Partitioner`; the decorated function itself, `first`, is planned already."""
        if self.first is not None and jaxpr is self.first[0] and (in_shardings, out_shardings) == self.first[1][0]:
            return self.first[1]
        with no_collection():
            imported = import_and_propagate(jaxpr, self.view, self.options, in_shardings, out_shardings)
        main, whole = imported.program.main, cast(Any, jaxpr)
        ins = tuple(decided(a.sharding, aval.ndim) for a, aval in zip(main.arguments, whole.in_avals, strict=True))
        outs = tuple(decided(s, aval.ndim) for s, aval in zip(main.result_shardings, whole.out_avals, strict=True))
        return (ins, outs), functools.partial(self._region, jaxpr, imported, ins, outs)

    def _region(self, jaxpr: ClosedJaxpr, imported: Imported, ins: Shardings, outs: Shardings) -> ClosedJaxpr:
        if self.context is not None and not fits_inside(imported, self.context, ins, outs):
            return jaxpr
        closed = ClosedJaxpr(imported.scope.jaxpr, jaxpr.consts)
        view, platform = self.view, self.options.platform_of(self.view.user_mesh)

        @functools.cache
        def region() -> Partitioned:
            overlap = self.options.overlap
            return partitioned(closed, imported, view.auto_mesh, ins, outs, platform, view.user_mesh, self.context, overlap=overlap)

        why = obstacle(region) if self.lowering == "auto" else None
        if why is None and self.lowering != "jit":
            return in_parts(region().jaxpr)
        if why is not None:  # no plan of the user's lists it: this program came of a transformation
            _LOGGER.log(logging.INFO if why.severity == "info" else logging.WARNING, "of what a transformation made: %s", why.message)
        if self.context is not None:
            return jaxpr
        inner = DerivedRegions(view, self.options, self.devices)
        return constrained(closed, imported, view.auto_mesh, platform, inner)
