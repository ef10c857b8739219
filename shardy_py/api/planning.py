"""Makes the plan of a traced call, by propagation or by a planner's search, under the lowering that runs it."""

from __future__ import annotations

import functools
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax.interpreters import partial_eval
from jax.sharding import Mesh, NamedSharding

from shardy_py.api.agreement import statement
from shardy_py.api.constraining import as_plan_constrains, constrained_values, without_constraints
from shardy_py.api.logical_axes import idle_rules
from shardy_py.api.meshes import MESH_NAME
from shardy_py.api.name_rules import Annotated, unmatched, unused_rules
from shardy_py.api.partitioning import Planned, RegionBuilder, decided, import_and_propagate, physical_sharding
from shardy_py.api.peers import digest, peers_of
from shardy_py.api.placing import placed_arguments
from shardy_py.api.request import by_all_rules, leaf_shardings
from shardy_py.api.specs import call_specs, host_kind, to_fitting_sharding
from shardy_py.api.stored_trees import PlanTrees, devices_of, rebuilt, structure_of
from shardy_py.api.tracing import TracedCall
from shardy_py.api.trees import Leaf
from shardy_py.api.variants import PropagatedSeeds, TracedVariants, seeded_call
from shardy_py.backends.donation import why_off
from shardy_py.dialect import TensorSharding
from shardy_py.errors import SpecError
from shardy_py.facade import Plan
from shardy_py.ir import TensorType, Value
from shardy_py.passes.collection import no_collection
from shardy_py.passes.propagation.log import LogStep
from shardy_py.plan.donation import donations, handed_on, refusals
from shardy_py.plan.feeding import Feeding, stated
from shardy_py.plan.progress import Timings, observed
from shardy_py.plan.record import PlanRecord, PropagationOptions, Structure, Tree
from shardy_py.plan.search import CHOSEN, Search
from shardy_py.plan.store.document import SEARCH
from shardy_py.plan.values import PlannedValue
from shardy_py.planner.errors import PlannerBudgetError, PlannerInfeasible
from shardy_py.planner.judge import Candidate, objective, peak_of
from shardy_py.planner.options import Planner
from shardy_py.planner.pricing import Prices
from shardy_py.planner.propagated import Trial
from shardy_py.planner.result import search_of
from shardy_py.planner.search import Searcher
from shardy_py.planner.space import Annotations, Resolution, assigned, values_of
from shardy_py.planner.templates import HINT, UserTemplate


@dataclass(frozen=True)
class NamedPytrees:
    """A plan's shardings as pytrees of `NamedSharding`."""

    traced: TracedCall

    def trees(self, plan: PlanRecord) -> PlanTrees:
        """The arguments and the result as the user's function takes and returns them."""
        request, result = self.traced.request, self.traced.result.outline
        counts = {name: outline.tree.num_leaves for name, outline in zip(request.labels, request.outlines)}
        return PlanTrees(counts, self._arguments, functools.partial(rebuilt, result), lambda: request.view.expected)

    def _arguments(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[Any, Any]]:
        request, rest = self.traced.request, iter(leaves)
        trees = [rebuilt(outline, list(itertools.islice(rest, outline.tree.num_leaves))) for outline in request.outlines]
        count = len(request.names)
        return tuple(trees[:count]), dict(zip(request.labels[count:], trees[count:]))

    def place(self, plan: PlanRecord, args: Any, mesh: Any) -> Any:
        """The arguments where the plan has them."""
        return placed_arguments(plan, args, self.traced.request.view.runnable() if mesh is None else mesh)

    def structure(self, plan: PlanRecord) -> Structure:
        """The trees as a stored plan keeps them."""
        request = self.traced.request
        trees, mesh, count = tuple(map(structure_of, request.outlines)), request.view.user_mesh, len(request.names)
        inputs = Tree("tuple", (Tree("tuple", trees[:count]), Tree("dict", trees[count:], request.labels[count:])))
        kinds = tuple(kind.name for kind in mesh.axis_types)
        return Structure(inputs, structure_of(self.traced.result.outline), request.names, kinds, devices_of(mesh))


IN_TYPE = "the type"
"""The source of the sharding of a result that JAX's type of it states."""


def described_results(traced: TracedCall) -> tuple[list[Leaf], Annotated]:
    """The leaves of the result, with `out_shardings` and rules; raises SpecError if they do not fit."""
    request = traced.request
    result = traced.result
    leaves = [Leaf("result" + key, tuple(s.shape), str(s.dtype)) for key, s in zip(result.outline.keys, result.values, strict=True)]
    types = traced.out_types or (None,) * len(leaves)
    specs = [type_ if own is None else own for own, type_ in zip(traced.out_specs, types, strict=True)]
    if any(map(callable, specs)):
        specs = call_specs(specs, leaves, result.values)
    sources = ["out_shardings" if own is not None else IN_TYPE for own in traced.out_specs]
    pairs = [to_fitting_sharding(spec, leaf, "out_shardings", request) for spec, leaf in zip(specs, leaves, strict=True)]
    findings = [*request.findings, *(finding for _, dropped in pairs for finding in dropped)]
    leaves = [
        replace(leaf, memory_kind=host_kind(spec if isinstance(spec, NamedSharding) else aval))
        for leaf, spec, aval in zip(leaves, specs, traced.jaxpr.out_avals, strict=True)
    ]
    stated = [source if sharding else "" for (sharding, _), source in zip(pairs, sources, strict=True)]
    annotated = Annotated([sharding for sharding, _ in pairs], stated, findings)
    annotated = by_all_rules(request, leaves, traced.out_names, annotated, results=True)
    if rules := request.settings.rules:
        annotated = replace(annotated, findings=[*annotated.findings, *unused_rules(rules, request.leaves, leaves, request.place)])
    return leaves, annotated


def make_plan(traced: TracedCall, *, runs: bool = False) -> Planned:
    """Reads the jaxpr, propagates or searches (for all processes if the plan `runs` now), and describes the result."""
    began = time.monotonic()
    settings = traced.request.settings
    if isinstance(settings.in_shardings, PlanRecord):
        traced = as_plan_constrains(traced, settings.in_shardings)
        settings = traced.request.settings
    began -= settings.spent
    planner = settings.planner
    with no_collection(), observed(traced.request.name, settings.options.progress):
        if planner is None:
            return _CallPlanning(traced).planned(None)
        written, traced = traced, traced if planner.annotations == "keep" else without_constraints(traced)
        planning = _CallPlanning(traced)
        searcher = planning.searcher(planner, began, written)
        best, search = searched(searcher, traced, runs=runs)
        prices = Prices(searcher, best, search.lower_bound_seconds, planning.searcher_with)
        if settings.shapes is not None:
            search = settings.shapes.of_all_shapes(search, planner.gap)
        search = replace(search, pricer=prices)
        if not planner.constraints:
            planned = planning.seeded(searcher.annotations, *searcher.shardings(Trial(best.name, best.assignment, best.results)))
            return replace(planned, plan=replace(planned.plan, search=search))
        searcher.assign(best.assignment)
        return planning.planned(search) if searcher.region is None else planning.search_result(best.run, search)


class _CallPlanning:
    """A traced call on its way to a plan."""

    def __init__(self, traced: TracedCall) -> None:
        self.traced = traced
        self.timings = Timings()
        self.alike: tuple[tuple[int, int], ...] = ()
        self.feeding: Feeding | None = None
        self.groups: dict[int, list[Value]] = {}
        request = traced.request
        self.log: list[LogStep] | None = [] if request.settings.options.provenance else None
        with self.timings.step("describe"):
            self.result_leaves, self.results = described_results(traced)
            unpinned = [leaf for leaf in (*request.leaves, *self.result_leaves) if leaf.memory_kind == "unpinned_host"]
            if unpinned and request.settings.options.platform_of(request.view.user_mesh) == "tpu":
                raise SpecError(
                    "memory kind 'unpinned_host'",
                    where=f"{unpinned[0]}, {request.location}",
                    why="the TPU compiler lays such arrays out as it lays out those of devices, and refuses them",
                    fix='give it memory_kind="pinned_host"',
                )
        names = [leaf.path for leaf in request.leaves]
        self.imported = import_and_propagate(
            traced.jaxpr,
            request.view,
            request.settings.options,
            request.shardings,
            self.results.shardings,
            self.timings,
            self.log,
            names,
            self.groups,
        )

    def planned(self, search: Search | None, enough: float = 0.0) -> Planned:
        """The plan with the shardings that the program has now; `enough` as in `region`."""
        settings = self.traced.request.settings
        if search is not None and settings.planner is not None:
            return self.search_result(self.region(search, enough), search)
        partitioning = RegionBuilder(self.imported, self.traced)
        return Planned(self.plan(search, partitioning), self.imported, self.traced, partitioning)

    def search_result(self, region: PlanRecord, search: Search) -> Planned:
        """A plan of `region` as the result of a search."""
        assert isinstance(region, Plan)
        assert isinstance(region.partitioner, RegionBuilder)
        return Planned(replace(region, search=search), self.imported, self.traced, region.partitioner)

    def region(self, search: Search | None, enough: float = 0.0) -> Plan:
        """The plan of the shardings that a planner chose as a region, unless it is left to XLA: the cheaper of two, if it fits.

        One runs equations by the fewest bytes, and one along the axes that the planner's model runs them along. There is no second one
        where the first takes at most `enough` seconds, nor where all values are whole, which are computed in one way.
        """
        planner = self.traced.request.settings.planner
        assert planner is not None
        main = self.imported.program.main
        values = (*main.arguments, *(result for op in self.imported.program.walk() for result in op.results))
        is_sharded = any(value.sharding is not None and not value.sharding.is_fully_replicated for value in values)
        regions = [self.plan(search, RegionBuilder(self.imported, self.traced, by_planner=not is_sharded))]
        if is_sharded and objective(regions[0], planner) > enough:
            regions.append(self.plan(search, RegionBuilder(self.imported, self.traced, by_planner=True)))
            regions.sort(key=lambda each: objective(each, planner))
        return next((each for each in regions if planner.fits(peak_of(each, planner))), regions[0])

    def plan(self, search: Search | None, partitioning: RegionBuilder | None = None) -> Plan:
        """The plan itself."""
        traced, imported, results = self.traced, self.imported, self.results
        request = traced.request
        with self.timings.step("collect"):
            main = imported.program.main
            sides: tuple[tuple[Any, ...], ...] = (
                ("input", request.leaves, [argument.sharding for argument in main.arguments], request.shardings, request.sources),
                ("output", self.result_leaves, main.result_shardings, results.shardings, results.sources),
            )
            inputs, outputs = (
                tuple(
                    PlannedValue(
                        leaf.path, kind, TensorType(leaf.shape, leaf.dtype), planned, given=given, given_by=by, memory_kind=leaf.memory_kind
                    )
                    for leaf, planned, given, by in zip(*rest)
                )
                for kind, *rest in sides
            )
            used: Sequence[bool] = [True] * len(inputs)
            if not request.settings.jit.get("keep_unused"):  # what JAX keeps when it compiles
                _, used = partial_eval.dce_jaxpr(traced.jaxpr.jaxpr, [True] * len(outputs))
            dropped = tuple(number for number, is_used in enumerate(used) if not is_used)
            findings, donated = list(results.findings), ()
            if request.settings.logical_axis_rules:
                names = (*request.axis_names, *traced.out_names)
                findings += idle_rules(request.settings.logical_axis_rules, names, imported.program, request.place)
            if request.settings.rules and request.settings.planner is None and request.view.dialect_mesh.size > 1:
                findings += unmatched(request.settings.rules, inputs, request.place)
            findings += imported.findings
            if request.layout.donated:
                is_donated = [slot in request.layout.donated for slot in request.leaf_slots]
                donated = donations(imported.program, inputs, outputs, is_donated, used, why_off())
                findings += refusals(donated, request.place)
            pytrees = NamedPytrees(traced)
            described = (inputs, outputs, tuple(findings), imported.program, self.log or (), self.timings, pytrees, donated, partitioning)
            options = request.settings.options
            propagation = PropagationOptions(options.strategy, options.conservative, options.op_priority, options.provenance)
            platform, variants = options.platform_of(request.view.user_mesh), TracedVariants(traced, _plan_alone, imported)
            parts = (*described, propagation, platform, variants, search, dropped, self.feeding, request.view.lattices)
            return Plan(request.name, request.view.dialect_mesh, *parts)

    def searcher(self, planner: Planner, began: float, written: TracedCall) -> Searcher:
        """The search for its shardings."""
        base = self.plan(None)
        donated = tuple((d.input, d.output) for d in base.donation if d.output is not None)
        self.alike = (*donated, *handed_on(base.program, base.inputs, base.outputs, base.donation))
        self.feeding = stated(base.feeding, base.inputs, base.outputs, planner.fed, planner.resident)
        base = replace(base, stated_feeding=self.feeding)
        user_templates = tuple(UserTemplate(name, self.template_shardings(name, specs)) for name, specs in planner.templates.items())
        if planner.annotations == "hint":
            inside = tuple(constrained_values(_CallPlanning(written).imported.scope, self.imported.scope))
            user_templates += (UserTemplate(HINT, (None,) * len(base.inputs), inside),) if inside else ()
        return self._searcher(base, self.annotations(), planner, began, user_templates)

    def _searcher(
        self, base: Plan, annotations: Annotations, planner: Planner, began: float, templates: tuple[UserTemplate, ...] = ()
    ) -> Searcher:
        return Searcher(
            base,
            annotations,
            planner,
            self.plan,
            functools.partial(self.replan, annotations),
            lambda plan: PropagatedSeeds(TracedVariants(self.traced, _plan_alone, self.imported), plan, self.feeding),
            MESH_NAME,
            began,
            templates,
            region=self.region,
            propagate=None if planner.constraints else lambda inputs, outputs: self.seeded(annotations, inputs, outputs).plan,
        )

    def seeded(self, annotations: Annotations, inputs: Sequence[TensorSharding], outputs: Mapping[int, TensorSharding]) -> Planned:
        """The plan that propagation gives from shardings of all arguments, and of some results."""
        settings = self.traced.request.settings
        ranks = [len(leaf.shape) for leaf in self.traced.request.leaves]
        specs = [
            decided(outputs[n], len(leaf.shape)) if n in outputs else None if own is None else own.with_dims(own.dims[: len(leaf.shape)])
            for n, (leaf, own) in enumerate(zip(self.result_leaves, annotations.outputs, strict=True))
        ]
        planned = make_plan(seeded_call(self.traced, settings.lowering, list(map(decided, inputs, ranks)), specs))
        plan = planned.plan
        own_inputs, own_results = (
            zip(self.traced.request.shardings, self.traced.request.sources),
            zip(self.results.shardings, self.results.sources),
        )
        described = {
            "inputs": tuple(replace(v, given=given, given_by=by) for v, (given, by) in zip(plan.inputs, own_inputs)),
            "outputs": tuple(replace(v, given=given, given_by=by) for v, (given, by) in zip(plan.outputs, own_results)),
        }
        return replace(planned, plan=replace(plan, **described, stated_feeding=self.feeding))

    def template_shardings(self, name: str, in_shardings: Any) -> tuple[TensorSharding | None, ...]:
        """The shardings of the arguments in a template of the user's."""
        shardings = leaf_shardings(self.traced.request, in_shardings, f"Planner(templates=...)[{name!r}]")
        return tuple(physical_sharding(s, v.aval) for s, v in zip(shardings, self.traced.jaxpr.jaxpr.invars, strict=True))

    def searcher_with(self, annotations: Annotations) -> Searcher:
        """A search for the same call with other annotations."""
        planning, planner = self._again(), self.traced.request.settings.planner
        assert planner is not None
        return planning._searcher(planning.plan(None), annotations, planner, time.monotonic())

    def annotations(self) -> Annotations:
        """The user's shardings of arguments and results."""
        jaxpr = self.traced.jaxpr.jaxpr
        inputs = tuple(physical_sharding(s, v.aval) for s, v in zip(self.traced.request.shardings, jaxpr.invars, strict=True))
        outputs = tuple(physical_sharding(s, v.aval) for s, v in zip(self.results.shardings, jaxpr.outvars, strict=True))
        number_of = {value: number for number, value in enumerate(values_of(self.imported.program))}
        members = (tuple(number_of[value] for value in group if value in number_of) for group in self.groups.values())
        return Annotations(inputs, outputs, self.alike, tuple(members))

    def _again(self) -> _CallPlanning:
        """The call with a program of its own."""
        planning = _CallPlanning(self.traced)
        planning.alike, planning.feeding = self.alike, self.feeding
        return planning

    def replan(self, annotations: Annotations, resolution: Resolution, assignment: Sequence[int], enough: float) -> Plan:
        """The plan of an assignment of the space of some annotations, of a program of its own; `enough` as in `region`."""
        planning = self._again()
        assigned(planning.imported.program, MESH_NAME, self.traced.request.view.dialect_mesh, annotations, resolution, assignment)
        return planning.planned(CHOSEN, enough).plan


def _plan_alone(traced: TracedCall) -> Plan:
    """The plan of a traced call, for comparison: nothing runs it."""
    return make_plan(traced).plan


AHEAD = 10.0
"""Seconds past the time limit that a process waits for a search where the plan does not run now: it may be the only one that plans."""

Outcome = tuple[Candidate, Search] | PlannerInfeasible


def searched(searcher: Searcher, traced: TracedCall, *, runs: bool) -> tuple[Candidate, Search]:
    """The result of a search, which the first process of a mesh makes for all if the plan `runs` now."""
    request = traced.request
    mesh, timeout, limit = request.view.expected, request.settings.options.peer_timeout, searcher.planner.time_limit_s
    devices = tuple(mesh.devices.flat) if isinstance(mesh, Mesh) and timeout != 0 else ()
    peers = peers_of(devices)
    if peers is None:
        best, bound = searcher.run()
        return best, search_of(searcher, best, bound)
    text = f"searched by {searcher.planner!r}\n{statement(searcher.base, traced, devices)}\nannotations {searcher.annotations!r}"
    key = f"search/{digest(text)}"
    outcome: Outcome | None = None
    result = peers.receive(key, 0.0)
    if result is None and peers.own == peers.processes[0]:
        outcome = _outcome(searcher)
        result = _written(searcher, outcome)
        peers.send(key, result)
    if runs:
        peers.agree(text, request.location, timeout=None if timeout is None else timeout + limit)
    if outcome is None:
        result = result or peers.receive(key, limit + AHEAD)
        outcome = _outcome(searcher) if result is None else _read(searcher, result)
    if isinstance(outcome, PlannerInfeasible):
        raise outcome
    return outcome


def _outcome(searcher: Searcher) -> Outcome:
    try:
        best, bound = searcher.run()
        return best, search_of(searcher, best, bound)
    except PlannerInfeasible as error:
        return error


def _written(searcher: Searcher, outcome: Outcome) -> str:
    """The result of a search as JSON."""
    if isinstance(outcome, PlannerInfeasible):
        parts = ("what", "where", "why", "fix", "minimum_bytes", "budget_bytes", "bound_bytes", "contributors")
        return json.dumps(
            {"infeasible": {name: getattr(outcome, name) for name in parts}, "proven": not isinstance(outcome, PlannerBudgetError)}
        )
    best, search = outcome
    resolution = searcher.space.resolution
    chosen = {
        "cuts": resolution.cuts,
        "layers": resolution.layers,
        "mixes": resolution.mixes,
        "name": best.name,
        "assignment": best.assignment,
        "results": best.results,
    }
    return json.dumps({**chosen, "search": SEARCH.write(None, search.priced()), "timings": dict(search.timings)})


def _read(searcher: Searcher, text: str) -> Outcome:
    """The inverse of `_written`, for the same search in another process."""
    data = json.loads(text)
    if "infeasible" in data:
        parts = {**data["infeasible"], "contributors": [tuple(each) for each in data["infeasible"]["contributors"]]}
        return (PlannerInfeasible if data["proven"] else PlannerBudgetError)(**parts)
    searcher.prepare(Resolution(tuple(map(tuple, data["cuts"])), data["layers"], data["mixes"]))
    trial = Trial(data["name"], tuple(data["assignment"]), data["results"])
    best = searcher.candidate(trial.name, trial.assignment) if searcher.propagate is None else searcher.propagated(trial)
    return best, replace(SEARCH.read(None, data["search"]), timings=data["timings"])
