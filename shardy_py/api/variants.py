"""A plan with something changed: values cut otherwise, bodies of scans checkpointed, arguments donated; and a plan as code to paste."""

from __future__ import annotations

import ast
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var

from shardy_py.api.constraining import Path, constrained, sites
from shardy_py.api.meshes import MESH_NAME
from shardy_py.api.partitioning import decided
from shardy_py.api.tracing import TracedCall
from shardy_py.backends.recomputed import recomputed
from shardy_py.backends.rewriting import ENTERED
from shardy_py.dialect import TensorSharding
from shardy_py.dialect.format import short_location
from shardy_py.errors import ShardyError
from shardy_py.frontends.jaxpr import Imported, lowered
from shardy_py.frontends.jaxprs import bodies, open_jaxpr
from shardy_py.frontends.locations import spans
from shardy_py.ir import Value
from shardy_py.ir.pieces import local_bytes
from shardy_py.partition.mispartitioned import as_sharded, is_mispartitioned
from shardy_py.plan.checks.specs import extended, spec_text
from shardy_py.plan.checks.thresholds import NOTABLE
from shardy_py.plan.code import Code, Span, Style, edits_of, setup_of, without_jax, wrapped
from shardy_py.plan.costing import analyse as cost_of
from shardy_py.plan.donation import donatable
from shardy_py.plan.feeding import Feeding
from shardy_py.plan.jit_program import jit_program_of, left_to_xla
from shardy_py.plan.modules import is_backward
from shardy_py.plan.record import PlanRecord, Variant
from shardy_py.plan.values import location_of
from shardy_py.planner.pins import ALL_TOLERANCE, Outcome, Place, fewest_pins
from shardy_py.planner.seeds import Seeds, Variable

DEEPEST = 4
"""Calls around an expression whose own places are looked at too."""


@dataclass(frozen=True)
class Expression:
    """An expression of the source, with the numbers of the places in the jaxpr at which its values are made.

    Attributes:
        cotangents: The numbers of those at which the cotangents of its values are made, which JAX constrains like the values.
    """

    span: Span
    numbers: tuple[int, ...]
    cotangents: tuple[int, ...]


def expressions(closed: ClosedJaxpr) -> list[Expression]:
    """The expressions that make values of a jaxpr, in program order; of several with the same values the innermost."""
    number_of = {(site.path, site.variable): n for n, site in enumerate(sites(closed.jaxpr)) if site.result is not None}
    numbers: dict[Span, tuple[list[int], list[int]]] = {}
    for path, inside in _jaxprs(closed.jaxpr):
        for span, some in inside.values().items():
            for known, variables in zip(numbers.setdefault(span, ([], [])), some, strict=True):
                known += [number_of[path, v] for v in variables if (path, v) in number_of]
    innermost: dict[tuple[int, ...], Expression] = {}
    for span, (values, cotangents) in sorted(
        numbers.items(), key=lambda item: (item[1], item[0].end_line - item[0].line, item[0].end_column)
    ):
        if values and isinstance(span.node, (ast.BinOp, ast.Call, ast.Compare, ast.Subscript, ast.UnaryOp, ast.Attribute)):
            innermost.setdefault(tuple(values), Expression(span, tuple(values), tuple(cotangents)))
    return list(innermost.values())


@dataclass(frozen=True, eq=False)
class _Inside:
    """A jaxpr, with the spans of the equations around it and their names."""

    jaxpr: Jaxpr
    around: frozenset[Span] = frozenset()
    scope: str = ""

    def values(self) -> Mapping[Span, tuple[Sequence[Var], Sequence[Var]]]:
        """The variables that are values of expressions, which what comes behind the expression reads, and the cotangents of these."""
        eqns = self.jaxpr.eqns
        roles = [_role(f"{self.scope}/{eqn.source_info.name_stack}") for eqn in eqns]
        makers = {v: index for index, eqn in enumerate(eqns) for v in eqn.outvars}
        readers: dict[Var, list[int]] = {}
        members: dict[Span, list[int]] = {}
        for index, eqn in enumerate(eqns):
            for v in eqn.invars:
                if isinstance(v, Var):
                    readers.setdefault(v, []).append(index)
            for span in _spans(eqn):
                if span not in self.around:
                    members.setdefault(span, []).append(index)
        values: dict[Span, tuple[Sequence[Var], Sequence[Var]]] = {}
        for span, indices in members.items():
            inside = set(indices)
            made = [v for index in indices if roles[index] == "forward" for v in eqns[index].outvars]
            read = [v for v in made if any(index not in inside and roles[index] == "forward" for index in readers.get(v, ()))]
            own = read or [v for v in made if v in self.jaxpr.outvars][:1]  # what a scan returns for its backward pass comes later
            types = {str(v.aval) for v in own}
            operands = [v for i in indices if roles[i] == "backward" for v in eqns[i].invars if isinstance(v, Var) and str(v.aval) in types]
            outer = [v for v in operands if v in makers and makers[v] not in inside and roles[makers[v]] == "backward"]
            values[span] = own, list(dict.fromkeys(outer))
        return values


def _jaxprs(jaxpr: Jaxpr, path: Path = (), around: frozenset[Span] = frozenset(), scope: str = "") -> Iterator[tuple[Path, _Inside]]:
    """The jaxpr and those inside."""
    yield path, _Inside(jaxpr, around, scope)
    for index, eqn in enumerate(jaxpr.eqns):
        if eqn.primitive.name in ENTERED:
            for k, (_, _, body) in enumerate(bodies(eqn)):
                inner = f"{scope}/{eqn.source_info.name_stack}"
                yield from _jaxprs(open_jaxpr(body), (*path, (index, k)), around.union(_spans(eqn)), inner)


def _spans(eqn: JaxprEqn) -> list[Span]:
    return [Span(*span) for span in spans(eqn.source_info)[:DEEPEST]]


def _role(scope: str) -> Literal["forward", "backward", ""]:
    """Whether an equation computes what the source says, or a cotangent; neither under `vmap`, where the source sees fewer dimensions."""
    if "vmap(" in scope:
        return ""
    return "forward" if "rematted_computation" in scope or not is_backward(scope) else "backward"


@dataclass(frozen=True, eq=False)
class _Written:
    """An expression whose values a plan shards alike."""

    expression: Expression
    sharding: TensorSharding
    kind: int

    @property
    def spec(self) -> str:
        """As code."""
        return f"jax.{spec_text(self.sharding)}"

    def differing(self, variables: Sequence[Variable | None], shardings: Sequence[TensorSharding | None]) -> TensorSharding | None:
        """The sharding of the first value that is not as planned; the planned one if all are."""
        ours = (shardings[n] for n in (*self.expression.numbers, *self.expression.cotangents) if variables[n] is not None)
        return next((each for each in ours if not self.sharding.is_equivalent(each)), self.sharding)


def _writable(seeds: Seeds, closed: ClosedJaxpr) -> list[_Written]:
    """The expressions of a plan's program whose values it shards alike, along whole axes."""
    variables = seeds.variables()
    kinds: dict[object, int] = {}
    writable: list[_Written] = []
    for each in expressions(closed):
        values = [v.holder for n in each.numbers if (v := variables[n]) is not None and v.operand is None]
        shardings = {v.sharding or TensorSharding.closed("mesh", v.type.rank) for v in values}
        first = next(iter(shardings), None)
        if first is None or any(not first.is_equivalent(s) for s in shardings) or spec_text(first) is None:
            continue
        if len({v.type.rank for v in values}) == 1:
            kind = kinds.setdefault((values[0].type, str(first.closed_like())), len(kinds))
            writable.append(_Written(each, first.closed_like(), kind))
    return writable


def pasted(seeds: Seeds, closed: ClosedJaxpr, plan: PlanRecord, style: Style) -> Code:
    """The plan as code, see `Plan.as_code`."""
    setup = setup_of(plan, "Auto")
    writable = _writable(seeds, closed)
    planned = _cost(dataclasses.replace(plan, partitioner=None))

    @functools.cache
    def propagated(chosen: frozenset[int]) -> Outcome:
        expressions = [(writable[i].expression, writable[i].sharding) for i in sorted(chosen)]
        run, variables = seeds.plan({n: sharding for each, sharding in expressions for n in (*each.numbers, *each.cotangents)})
        by_xla = left_to_xla(run.program)
        jit_program_of.keep(run, by_xla)
        values = {value: as_run for as_run, value in by_xla.lineage.values.items()}
        shardings = [None if v is None else values.get(v.holder, v.holder).sharding for v in variables]
        more = max((own + 1) / (least + 1) for own, least in zip(_cost(run), planned, strict=True))
        differing = {i: each.differing(variables, shardings) for i, each in enumerate(writable)}
        return Outcome(max(more, 1.0), True, differing)

    places = [Place(i, each.sharding, (each.kind,), True) for i, each in enumerate(writable)]
    chosen = fewest_pins(places, lambda numbers: propagated(frozenset(numbers)), 1.0)
    splices = [
        s for i in chosen for s in wrapped(writable[i].expression.span, "jax.lax.with_sharding_constraint(", f", {writable[i].spec})")
    ]
    more = propagated(frozenset(chosen)).seconds
    remarks = [] if more <= 1 + ALL_TOLERANCE else [_FARTHER.format(more)]
    edits = edits_of(splices)
    return Code(style, setup, edits, (*remarks, *_apart(plan), *without_jax(edits)))


_FARTHER = (
    "XLA moves or computes {:.2f} times what the plan does: values that no line of the source makes, or one line in several shardings, "
    "would need constraints of their own."
)


def _apart(plan: PlanRecord) -> Iterator[str]:
    """What is partitioned apart where this library runs the plan."""
    parts = as_sharded(plan.program.meshes)
    ops = (op for op in plan.program.walk() if is_mispartitioned(op, parts))
    for place, op in {location_of(plan.program, op): op for op in ops}.items():
        yield f"XLA alone partitions {op.primitive or op.name} at {place}: it may move more than planned, or be wrong."


def _cost(plan: PlanRecord) -> tuple[float, float]:
    """Bytes that a call moves, and operations."""
    cost = cost_of(plan)
    return cost.communicated_bytes, cost.flops


SHARE = 0.01
"""An argument that is a smaller part of the peak is not cut further, nor is one donated that is a smaller part of what can be."""


@dataclass(frozen=True, eq=False)
class TracedVariants:
    """Plans variants of a traced call."""

    traced: TracedCall
    plan_of: Callable[[TracedCall], PlanRecord]
    imported: Imported

    def variants(self, plan: PlanRecord, peak: int) -> Iterator[Variant]:
        """See `plan.record.Variants`."""
        yield from self._checkpointed()
        yield from self._donating(plan)
        yield from self._cut(plan, peak)

    def with_shardings(self, plan: PlanRecord, shardings: Mapping[str, TensorSharding]) -> PlanRecord | None:
        """See `plan.record.Variants`."""
        request = self.traced.request
        inputs, outputs, pins = list(request.shardings), list(self.traced.out_specs), dict[int, TensorSharding]()
        for path, sharding in shardings.items():
            value, planned = plan.by_path[path]
            if isinstance(value, int):
                outputs[value] = sharding
            elif planned.kind == "input":
                inputs[value.index] = sharding
            else:  # of an op that is several in the program, the next with a name in the user's code that has its line and type
                line, values = (planned.location, planned.type), dict(plan.intermediates)
                later = itertools.islice(values.items(), list(values).index(value), None)
                named = (v for v, each in later if v in self._sites and (v is value or (each.location, each.type) == line))
                if (holder := next(named, None)) is None:
                    return None
                pins[self._sites[holder]] = sharding
        jaxpr = constrained(lowered(self.traced.jaxpr), pins, request.view.auto_mesh).closed if pins else self.traced.jaxpr
        request = dataclasses.replace(request, shardings=tuple(inputs))
        try:
            return self.plan_of(dataclasses.replace(self.traced, request=request, jaxpr=jaxpr, out_specs=tuple(outputs)))
        except ShardyError:  # something else that the user says contradicts it
            return None

    def code(self, plan: PlanRecord, style: Style) -> Code:
        """See `plan.record.Variants`."""
        seeds = PropagatedSeeds(self, plan)
        return pasted(seeds, seeds.closed, plan, style)

    @functools.cached_property
    def _sites(self) -> dict[Value, int]:
        """The values that have a name in the user's code -> the number of the place where each may be constrained."""
        copy = constrained(lowered(self.traced.jaxpr), {}, self.traced.request.view.auto_mesh)
        variables = enumerate(copy.variables(self.imported.scope))
        return {v.value: n for n, v in variables if v is not None and v.value is v.holder and v.operand is None and not v.is_unnamed}

    def _checkpointed(self) -> Iterator[Variant]:
        variant = recomputed(self.traced.jaxpr)
        if variant is not None:
            first, *others = variant.places
            more = "".join(f" and that at {short_location(place)}" for place in others)
            plan = self.plan_of(dataclasses.replace(self.traced, jaxpr=variant.jaxpr))
            yield Variant(f"jax.checkpoint around its body{more}", plan, first, of_residuals=True)

    def _donating(self, plan: PlanRecord) -> Iterator[Variant]:
        request = self.traced.request
        layout, slot_of = request.layout, request.leaf_slots
        saved = dict.fromkeys(layout.dynamic, 0)
        for leaf, size in donatable(plan.program, plan.inputs, plan.outputs, plan.donation).items():
            saved[slot_of[leaf]] += size
        slots = [slot for slot, size in saved.items() if size > SHARE * sum(saved.values())]
        if slots:
            names = ", ".join(layout.labels[slot] for slot in slots)
            numbers = tuple(slots) if len(slots) > 1 else slots[0]
            yield Variant(f"donating {names} (donate_argnums={numbers})", self._donated((*layout.donated, *slots)))

    def _donated(self, slots: Sequence[int]) -> PlanRecord:
        """The plan with these arguments donated."""
        request = self.traced.request
        layout = dataclasses.replace(request.layout, donated=tuple(sorted(slots)))
        return self.plan_of(dataclasses.replace(self.traced, request=dataclasses.replace(request, layout=layout)))

    def _cut(self, plan: PlanRecord, peak: int) -> Iterator[Variant]:
        shardings, changes = dict[str, TensorSharding](), list[tuple[int, str]]()
        for value in plan.inputs:
            size = local_bytes(value.type, value.sharding, plan.program.meshes)
            meant = value.given is not None and value.given.is_fully_replicated and all(dim.is_closed for dim in value.given.dims)
            more = None if meant or size < max(NOTABLE, SHARE * peak) else extended(value.shape, value.sharding, plan.mesh, MESH_NAME)
            if more is not None and (text := spec_text(more)) is not None:
                shardings[value.path] = more
                changes.append((size, f"{value.path} by {text}"))
        variant = self.with_shardings(plan, shardings) if changes else None
        if variant is not None:
            texts = [text for _, text in sorted(changes, key=lambda change: -change[0])]
            more = f" and {len(texts) - 2} more arrays" if len(texts) > 2 else ""
            yield Variant(f"cutting {', '.join(texts[:2])}{more}", variant)


class PropagatedSeeds:
    """Plans propagated from a part of the shardings of a plan."""

    def __init__(self, variants: TracedVariants, plan: PlanRecord, feeding: Feeding | None = None) -> None:
        self.variants = variants
        self.feeding = feeding
        self.inputs, self.outputs = (
            tuple(decided(value.sharding, len(value.shape)) for value in values) for values in (plan.inputs, plan.outputs)
        )

    @functools.cached_property
    def closed(self) -> ClosedJaxpr:
        """The jaxpr that was planned."""
        return lowered(self.variants.traced.jaxpr)

    def variables(self) -> Sequence[Variable | None]:
        """The variables that may be constrained, in the plan's own program."""
        return constrained(self.closed, {}, self.variants.traced.request.view.auto_mesh).variables(self.variants.imported.scope)

    def plan(self, pins: Mapping[int, TensorSharding], *, results: bool = True) -> tuple[PlanRecord, Sequence[Variable | None]]:
        """See `planner.seeds.Seeds`."""
        traced = self.variants.traced
        copy = constrained(self.closed, pins, traced.request.view.auto_mesh)
        seeded = seeded_call(traced, "jit", self.inputs, self.outputs if results else traced.out_specs)
        plan = self.variants.plan_of(dataclasses.replace(seeded, jaxpr=copy.closed))
        assert isinstance(plan.variants, TracedVariants)
        return dataclasses.replace(plan, stated_feeding=self.feeding), copy.variables(plan.variants.imported.scope)


def seeded_call(traced: TracedCall, lowering: str, inputs: Sequence[TensorSharding], out_specs: Sequence[object]) -> TracedCall:
    """A call as if these shardings were the user's, and there were no planner."""
    request = traced.request
    settings = dataclasses.replace(request.settings, planner=None, lowering=lowering)
    request = dataclasses.replace(request, settings=settings, shardings=tuple(inputs))
    return dataclasses.replace(traced, request=request, out_specs=tuple(out_specs))
