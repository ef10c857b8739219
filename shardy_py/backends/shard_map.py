"""Runs a plan through one `jax.shard_map` region: every equation on local arrays, every collective written out."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
from jax.sharding import Mesh as JaxMesh

from shardy_py.backends.local import regions
from shardy_py.backends.local.effects import inspect_sharding
from shardy_py.backends.local.frames import framed
from shardy_py.backends.local.interpreter import EquationSite, Interpreter, LayoutHint
from shardy_py.backends.local.jaxpr_analysis import JaxprAnalysis
from shardy_py.backends.local.moved_values import MovedValues, MovementRecorder
from shardy_py.backends.local.overlap import Overlap
from shardy_py.backends.local.passes import merged_as_by_xla, optimize_region
from shardy_py.backends.local.read_collectives import read_collectives, spelled
from shardy_py.backends.local.sharded_value import RegionContext
from shardy_py.backends.local.table import HANDLERS, LOCAL_RULES, RUNS_WHOLE
from shardy_py.backends.named_shardings import AnyMesh, NamedShardings, coordinates_of, cuts_of, parts_of, refine
from shardy_py.cost.collectives import collective_seconds
from shardy_py.cost.hardware import HardwareError, lay_out
from shardy_py.cost.hardware_table import hardware
from shardy_py.cost.links import lattices, levels_of, ring
from shardy_py.dialect import AxisRef, Mesh, TensorSharding
from shardy_py.frontends.context import local_type, types_enabled
from shardy_py.frontends.importer import Scope
from shardy_py.frontends.jaxpr import Imported
from shardy_py.frontends.mesh_context import no_mesh
from shardy_py.frontends.transforms import axes_bound, hoisted, shard_map_equation, traced_locally
from shardy_py.ir import Value
from shardy_py.ir.jax_collectives import COLLECTIVE_KINDS
from shardy_py.partition.layouts import parts
from shardy_py.partition.region.layouts import Layout, layout, names, num_shards, replicated
from shardy_py.passes.collection import no_collection
from shardy_py.plan.collectives import Collective, axes_of
from shardy_py.plan.findings import Finding


@dataclass(frozen=True)
class Partitioned:
    """A jaxpr on global arrays that consists of one region on local arrays, over the plan's mesh with its used axis parts as axes."""

    jaxpr: ClosedJaxpr
    mesh: AbstractMesh
    spelling: Mapping[str, str]
    platform: str
    findings: tuple[Finding, ...]
    moved: MovedValues

    @property
    def body(self) -> Jaxpr:
        """The region, on the arrays of one device."""
        (eqn,) = self.jaxpr.eqns
        return eqn.params["jaxpr"]

    def collectives(self, name: Callable[[Value], str]) -> tuple[Collective, ...]:
        """The collectives."""
        with no_collection():
            merged = _within(self.jaxpr, lambda body: merged_as_by_xla(body, self.platform))
            return read_collectives(merged.jaxpr, self.mesh.shape, self.spelling, self.moved, name)

    def as_call(self, used: Sequence[bool]) -> ClosedJaxpr:
        """The region as a function of constants and arguments of the planned jaxpr."""
        jaxpr, own = self.jaxpr.jaxpr, len(self.jaxpr.consts) + len(self.jaxpr.jaxpr.invars) - len(used)
        invars = list(itertools.compress((*jaxpr.constvars[own:], *jaxpr.invars), used))
        constvars, consts = jaxpr.constvars[:own], self.jaxpr.consts[:own]  # those of the region stand before those of the planned jaxpr
        (eqn,) = jaxpr.eqns
        body, operands = eqn.params["jaxpr"], {*constvars, *invars}
        reads = [v in operands for v in eqn.invars]
        info = jaxpr.debug_info.with_unknown_names()
        body = body.replace(invars=list(itertools.compress(body.invars, reads)), debug_info=body.debug_info.with_unknown_names())
        params = {**eqn.params, "jaxpr": body, "in_specs": tuple(itertools.compress(eqn.params["in_specs"], reads))}
        eqn = eqn.replace(invars=list(itertools.compress(eqn.invars, reads)), params=params)
        return ClosedJaxpr(jaxpr.replace(constvars=constvars, invars=invars, eqns=[eqn], debug_info=info), consts)


class Layouts:
    """Planned shardings as layouts of a region."""

    def __init__(self, auto_mesh: AbstractMesh, shardings: Sequence[TensorSharding | None], manual: Collection[str] = ()) -> None:
        cuts = cuts_of(axis for sharding in shardings if sharding is not None for dim in sharding.dims for axis in dim.axes)
        cuts = cuts if manual else _prime_cuts(auto_mesh, cuts or {})  # a mesh inside of another region has to be that region's
        mesh, self.parts = refine(auto_mesh, cuts) if cuts else (auto_mesh, None)
        assert isinstance(mesh, AbstractMesh)
        self.auto_mesh = mesh
        self.mesh = Mesh(tuple((name, size) for name, size in zip(mesh.axis_names, mesh.axis_sizes) if name not in manual))
        pieces = [(axis, piece) for axis, pieces in (self.parts or {}).items() for piece in pieces]
        self.spelling = {name: f"{axis}:({low}){high // low}" for axis, (low, high, name) in pieces}
        """Texts of parts of axes in terms of the plan's mesh."""
        self._layouts: dict[tuple[TensorSharding | None, int], Layout] = {}

    def rename(self, axes: Sequence[str]) -> tuple[str, ...]:
        """The parts in the region's mesh of axes of the plan's."""
        return parts_of(map(AxisRef, axes), self.parts)

    def __call__(self, sharding: TensorSharding | None, rank: int) -> Layout:
        """The layout of a value of a rank; dimensions that a sharding has beyond it are those of PRNG keys."""
        key = (sharding, rank)
        result = self._layouts.get(key)
        if result is None:
            if sharding is None or sharding.rank < rank:  # such as one on a single device
                result = replicated(rank)
            else:
                dims = [tuple(AxisRef(n) for n in parts_of(dim.axes, self.parts) if self.mesh.shape[n] > 1) for dim in sharding.dims[:rank]]
                result = layout(dims)
            self._layouts[key] = result
        return result

    def cuts(self, value: Value) -> tuple[int, ...]:
        """The number of parts of each dimension of a value."""
        return tuple(num_shards(dim.axes, self.mesh) for dim in self(value.sharding, value.type.rank).dims)


@no_collection()
def partitioned(
    closed: ClosedJaxpr,
    planned: Imported,
    auto_mesh: AbstractMesh,
    inputs: Sequence[TensorSharding | None],
    outputs: Sequence[TensorSharding | None],
    platform: str,
    mesh: AnyMesh | None = None,
    context: AbstractMesh | None = None,
    used: Sequence[bool] | None = None,
    by_planner: bool = False,
    by_xla: bool = False,
    overlap: bool | None = None,
) -> Partitioned:
    """The traced jaxpr as one region over all axes of the mesh; `by_xla` where it stands for a program that XLA partitions."""
    manual = () if context is None else context.manual_axes
    layouts = Layouts(auto_mesh, [*inputs, *outputs, *(value.sharding for value in _values(planned.scope))], manual)
    sharding_handler = inspect_sharding(NamedShardings(auto_mesh if mesh is None else mesh))
    handlers = {**HANDLERS, **regions.handlers(layouts.rename), "inspect_sharding": sharding_handler}
    analysis = JaxprAnalysis(LOCAL_RULES, handlers, layouts.mesh, RUNS_WHOLE)
    walks: list[Interpreter] = []

    def chosen(scope: Scope) -> tuple[LocalRun, RunChoice]:
        run = LocalRun(scope, layouts, inputs, outputs, used)
        return run, _cheapest_choice(layouts, platform, analysis, run, walks, by_planner, by_xla)

    with types_enabled({value.type.dtype for value in _values(planned.scope)}):
        in_frames = framed(planned.scope, layouts.cuts)
    scopes = [planned.scope] if in_frames is planned.scope else [planned.scope, in_frames]
    run, choice = min((chosen(scope) for scope in scopes), key=lambda each: each[1].last.region.cost)
    movements = MovementRecorder()
    region_context = RegionContext(layouts.mesh, platform, movements=movements)
    interpreter = Interpreter(region_context, layouts, analysis, choice.before, choice.start, choice.ranks, choice.last)

    def local(*parts: Any) -> list[Any]:
        return run(interpreter, parts)

    traced = region(
        local,
        layouts.auto_mesh if context is None else context,
        layouts.mesh.axis_names,
        [v.aval for v in run.variables],
        [v.aval for v in closed.jaxpr.outvars],
        list(map(spec, (*run.constants, *run.inputs))),
        list(map(spec, run.outputs)),
    )
    for walk in walks:
        walk.release()
    moved: MovedValues = {}

    def optimized(body: Jaxpr) -> Jaxpr:
        nonlocal moved
        in_specs, rings = (
            traced.jaxpr.eqns[0].params["in_specs"],
            _overlap(False if by_xla else overlap, platform, mesh, auto_mesh, layouts),
        )
        body = optimize_region(body, layouts.mesh.shape, platform, layouts.spelling, in_specs, rings)
        body, moved = movements.read_off(body, COLLECTIVE_KINDS)
        return body

    jaxpr, count = _within(traced, optimized).jaxpr, len(run.constants)
    jaxpr = jaxpr.replace(constvars=[*jaxpr.constvars, *jaxpr.invars[:count]], invars=jaxpr.invars[count:])
    whole = ClosedJaxpr(jaxpr, [*traced.consts, *closed.consts])
    return Partitioned(whole, layouts.auto_mesh, layouts.spelling, platform, tuple(dict.fromkeys(interpreter.findings)), moved)


def _overlap(choice: bool | None, platform: str, mesh: AnyMesh | None, auto_mesh: AbstractMesh, layouts: Layouts) -> Overlap | None:
    """How products overlap with collectives, by `Options.overlap`; None where they do not."""
    if choice is False or (choice is None and (platform != "tpu" or not isinstance(mesh, JaxMesh))):
        return None
    coordinates, machine, sizes = coordinates_of(mesh), None, dict(auto_mesh.shape)
    if choice is None and isinstance(mesh, JaxMesh):
        try:
            machine = hardware(mesh.devices.flat[0].device_kind)
        except HardwareError:  # a chip without prices
            return None
    links = {} if machine is None else lay_out(sizes, machine, lattices(sizes, coordinates) if coordinates else None)

    def seconds(kind: str, axes: tuple[str, ...], size: int) -> float:
        over = axes_of(Collective(kind, spelled(axes, layouts.spelling), 0, size), sizes)
        return collective_seconds(kind, size, levels_of(over, links, sizes))

    return Overlap(machine, seconds, lambda axes: ring(layouts.auto_mesh.shape, axes, coordinates))


class LocalRun:
    """A run of a planned jaxpr on the arrays of one device, dry or to be traced, with arguments and results in planned shardings.

    Attributes:
        variables: The constants, which are whole, then the arguments.
        sources: The equation that each variable comes from.
    """

    def __init__(
        self,
        scope: Scope,
        layouts: Layouts,
        inputs: Sequence[TensorSharding | None],
        outputs: Sequence[TensorSharding | None],
        used: Sequence[bool] | None,
    ) -> None:
        jaxpr = self.jaxpr = scope.jaxpr
        self.scope = scope
        self.dtypes = {value.type.dtype for value in _values(scope)}
        self.variables: tuple[Any, ...] = (*jaxpr.constvars, *jaxpr.invars)
        ranks = [getattr(v.aval, "ndim", 0) for v in (*self.variables, *jaxpr.outvars)]  # tokens have none
        count = len(jaxpr.constvars)
        self.constants = list(map(replicated, ranks[:count]))
        self.inputs, self.outputs = list(map(layouts, inputs, ranks[count:])), list(map(layouts, outputs, ranks[len(self.variables) :]))
        self.reads = (True,) * len(self.variables) if used is None else used
        self.sources = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}

    def __call__(self, interpreter: Interpreter, parts: Sequence[Any]) -> list[Any]:
        """The local results, in their layouts."""
        with types_enabled(self.dtypes):
            operands = [
                interpreter.new_value(x, at, tuple(v.aval.shape), v.aval.dtype, uses=1)
                if read
                else interpreter.arbitrary(tuple(v.aval.shape), v.aval.dtype)
                for x, at, v, read in zip(parts, (*self.constants, *self.inputs), self.variables, self.reads, strict=True)
            ]
            count = len(self.constants)
            results = interpreter.jaxpr(self.jaxpr, operands[:count], operands[count:], self.scope)
            local_results = []
            for result, at, v in zip(results, self.outputs, self.jaxpr.outvars, strict=True):
                eqn = None if isinstance(v, Literal) else self.sources.get(v)
                # The reshard of a result has the source of the result.
                with contextlib.nullcontext() if eqn is None else interpreter.at_source(eqn):
                    local_results.append(result.get(at))
            return local_results


def fits_inside(
    planned: Imported, context: AbstractMesh, inputs: Sequence[TensorSharding | None], outputs: Sequence[TensorSharding | None]
) -> bool:
    """Whether a plan uses whole axes only, and only those that the surrounding region leaves."""
    shardings = (*inputs, *outputs, *(value.sharding for value in _values(planned.scope)))
    used = [axis for sharding in shardings if sharding is not None for dim in sharding.dims for axis in dim.axes]
    return cuts_of(used) is None and not any(axis.name in context.manual_axes for axis in used)


def _within(whole: ClosedJaxpr, run: Callable[[Jaxpr], Jaxpr]) -> ClosedJaxpr:
    """Runs a pass on the jaxpr of the region."""
    (eqn,) = whole.jaxpr.eqns
    with axes_bound(eqn.params["mesh"].shape):
        eqn = eqn.replace(params={**eqn.params, "jaxpr": run(eqn.params["jaxpr"])})
    return ClosedJaxpr(whole.jaxpr.replace(eqns=[eqn]), whole.consts)


def _prime_cuts(mesh: AbstractMesh, cuts: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Cuts after which every axis has a prime size: layouts in between two others may need parts that neither of them has."""
    sizes, cuts_by_axis = Mesh(tuple(mesh.shape.items())), dict[str, tuple[int, ...]]()
    for name, total in mesh.shape.items():
        bounds = itertools.pairwise(sorted({1, *cuts.get(name, ()), total}))
        pieces = [piece for low, high in bounds for piece in parts(AxisRef(name, low, high // low), sizes)]
        if len(pieces) > 1:
            cuts_by_axis[name] = tuple(piece.pre_size or 1 for piece in pieces[1:])
    return cuts_by_axis


@dataclass(frozen=True)
class RunChoice:
    """The start of a walk, and its exceptions."""

    before: Interpreter | None
    start: LayoutHint
    ranks: Mapping[EquationSite, int]
    last: Interpreter


IMPROVEMENT_BUDGET = 100
"""Equations to be looked at for improving a choice afterwards: with 100 small programs send up to two thirds less than with none. 300 would
spare 0.01 % more of what a set of small programs sends, and cost 1 % of the time to compile one."""

WORK_TOLERANCE = 1.01
"""Work of a choice by bytes, relative to that along planned axes: gathering an operand in place of summing multiplies it."""

FEEDBACK_ROUNDS = 3
"""Number of times that layouts are chosen, each with the layouts that the last choice wanted of each value."""


def _cheapest_choice(
    layouts: Layouts, platform: str, analysis: JaxprAnalysis, run: LocalRun, walks: list[Interpreter], by_planner: bool, by_xla: bool
) -> RunChoice:
    """The cheapest of several dry runs, as the walk to repeat: its predecessor and its initial hint.

    By a planner's choices there is one walk. XLA partitions along planned axes, which are also taken in its place unless the same work is
    possible with fewer bytes.

    An equation cannot see how its results will be used. So all is chosen several times, each time with what the choice before asked of
    every value in place of what was planned for it; and from several starts, for a choice settles near its start. A walk that would know
    the same of every value as one before it ends as that one did.
    """

    def walk(before: Interpreter | None, start: LayoutHint, ranks: Mapping[EquationSite, int]) -> Interpreter:
        interpreter = Interpreter(RegionContext(layouts.mesh, platform, dry=True), layouts, analysis, before, start, ranks)
        walks.append(interpreter)
        run(interpreter, [None] * len(run.variables))
        return interpreter

    best: RunChoice | None = None
    after: dict[Any, Interpreter] = {}
    planned = RunChoice(None, LayoutHint.PLANNER, {}, walk(None, LayoutHint.PLANNER, {})) if by_planner or by_xla else None
    if by_planner and planned is not None:
        return planned
    for start in (LayoutHint.PLAN, LayoutHint.FORWARD):
        before: Interpreter | None = None
        for _ in range(FEEDBACK_ROUNDS):
            feedback = (start,) if before is None else before.layout_feedback
            interpreter = after.get(feedback)
            if interpreter is None:
                interpreter = after[feedback] = walk(before, start, {})
            if best is None or interpreter.region.cost < best.last.region.cost:
                best = RunChoice(before, start, {}, interpreter)
            if not interpreter.region.spent or (before is not None and before.region.cost == interpreter.region.cost):
                break
            before = interpreter
        if best is not None and not best.last.region.spent:
            break
    assert best is not None
    best = _improved_choice(best, walk, IMPROVEMENT_BUDGET // max(sum(map(len, best.last.values.values())), 1))
    return best if planned is None or best.last.region.work <= WORK_TOLERANCE * planned.last.region.work else planned


def _improved_choice(
    best: RunChoice, walk: Callable[[Interpreter | None, LayoutHint, Mapping[EquationSite, int]], Interpreter], walks: int
) -> RunChoice:
    """The choice improved by giving expensive equations their next strategies, as long as the total falls."""
    tried: set[EquationSite] = set()
    while walks > 0:
        costly = [place for place in best.last.charges if place not in tried]
        if not costly:
            break
        place = max(costly, key=best.last.charges.__getitem__)
        tried.add(place)
        for rank in (1, 2):
            ranks = {**best.ranks, place: rank}
            before = best.last
            for _ in range(min(2, walks)):
                interpreter = walk(before, best.start, ranks)
                walks -= 1
                if interpreter.region.cost < best.last.region.cost:
                    best = RunChoice(before, best.start, ranks, interpreter)
                before = interpreter
            if best.ranks is ranks:
                break
    return best


def spec(at: Layout) -> PartitionSpec:
    """A layout as a `PartitionSpec`."""
    return PartitionSpec(*(names(dim.axes) or None for dim in at.dims))


def _values(scope: Scope) -> Iterator[Value]:
    yield from scope.env.values()
    for inner in itertools.chain.from_iterable(scope.children.values()):
        yield from _values(inner)


def region(
    local: Callable[..., Sequence[Any]],
    mesh: AbstractMesh,
    axes: Sequence[str],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    in_specs: Sequence[PartitionSpec],
    out_specs: Sequence[PartitionSpec],
) -> ClosedJaxpr:
    """As `jax.make_jaxpr(jax.shard_map(local, ..., check_vma=False))`, in two thirds of the time.

    Under `jax.shard_map` the types of all values name the mesh, which each equation would have to inspect, although it carries no
    information where all of its axes are manual. So the function is traced as one of plain arrays, and the equation is made around what
    comes of it.
    """
    sizes = {name: mesh.shape[name] for name in axes}
    own = AbstractMesh(tuple(sizes.values()), tuple(sizes))  # without axes that are manual already, where the region stands in another
    parts = [NamedSharding(own, spec).shard_shape(aval.shape) for aval, spec in zip(inputs, in_specs, strict=True)]
    arguments = list(map(local_type, inputs, parts))
    with no_mesh(), axes_bound(sizes):
        traced: Any = traced_locally(local, arguments)
    for aval, whole, spec in zip(traced.out_avals, outputs, out_specs, strict=True):
        part = NamedSharding(own, spec).shard_shape(whole.shape)
        assert aval.shape == part, f"a result is {aval} on a device, and {whole} of spec {spec} in all"
    consts, specs = [Var(v.aval) for v in traced.jaxpr.constvars], [PartitionSpec() for _ in traced.consts]
    invars, outvars = [Var(aval) for aval in inputs], [Var(aval) for aval in outputs]
    with axes_bound(sizes):
        inside = hoisted(traced).jaxpr
    eqn = shard_map_equation(inside, mesh, axes, [*consts, *invars], outvars, [*specs, *in_specs], out_specs)
    return ClosedJaxpr(Jaxpr(consts, invars, outvars, [eqn], eqn.effects, traced.jaxpr.debug_info), traced.consts)
