"""A plan as code to paste: the expressions of the source that make its values, and the fewest of them to constrain."""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np
from jax.extend import core
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from shardy_py.api.constraining import Path, sites
from shardy_py.api.logical_axes import LogicalRule, rules_of
from shardy_py.api.meshes import MESH_NAME
from shardy_py.api.request import PlanRequest
from shardy_py.backends.named_shardings import NamedShardings
from shardy_py.backends.rewriting import ENTERED
from shardy_py.dialect import TensorSharding
from shardy_py.errors import SpecError
from shardy_py.frontends.jaxprs import bodies, open_jaxpr
from shardy_py.frontends.locations import spans
from shardy_py.frontends.loops import scan_counts
from shardy_py.partition.mispartitioned import as_sharded, is_mispartitioned
from shardy_py.plan.checks.specs import spec_text
from shardy_py.plan.code import Change, Code, SourceSpan, Style, edits_of, filled, setup_of, spec_code, stated, without_jax
from shardy_py.plan.costing import analyse as cost_of
from shardy_py.plan.executed import explicit_of
from shardy_py.plan.paths import is_backward
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.values import location_of
from shardy_py.planner.pins import ALL_TOLERANCE, PinnedOutcome, Place, fewest_pins
from shardy_py.planner.propagated import Seeds, Variable

DEEPEST = 4
"""Calls around an expression whose own places are looked at too."""


@dataclass(frozen=True)
class Expression:
    """An expression of the source, with the numbers of the places in the jaxpr at which its values are made.

    Attributes:
        cotangents: The numbers of those at which the cotangents of its values are made, which JAX constrains like the values.
    """

    span: SourceSpan
    numbers: tuple[int, ...]
    cotangents: tuple[int, ...]

    @property
    def all_numbers(self) -> tuple[int, ...]:
        """Those of both."""
        return (*self.numbers, *self.cotangents)


def expressions(closed: ClosedJaxpr) -> list[Expression]:
    """The expressions that make values of a jaxpr, in program order; of several with the same values the innermost."""
    number_of = {(site.path, site.variable): n for n, site in enumerate(sites(closed.jaxpr)) if site.result is not None}
    numbers: dict[SourceSpan, tuple[list[int], list[int], list[int]]] = {}
    for path, inside in _values(closed.jaxpr):
        for span, (values, cotangents, size) in inside.items():
            own = numbers.setdefault(span, ([], [], []))
            own[0].extend(number_of[path, v] for v in values if (path, v) in number_of)
            own[1].extend(number_of[path, v] for v in cotangents if (path, v) in number_of)
            own[2].append(size)
    several = ((n, site.eqn) for n, site in enumerate(sites(closed.jaxpr)) if site.eqn.primitive.name in ("cond", "scan", "while"))
    of_several = {n for n, eqn in several if eqn.primitive.name == "scan" or len(eqn.outvars) > 1}
    innermost: dict[tuple[int, ...], Expression] = {}
    for span, (values, cotangents, _) in sorted(numbers.items(), key=lambda item: (item[1][0], sum(item[1][2]))):
        if (
            values
            and not of_several.intersection(values)
            and isinstance(span.node, (ast.BinOp, ast.Call, ast.Compare, ast.Subscript, ast.UnaryOp, ast.Attribute))
        ):
            innermost.setdefault(tuple(values), Expression(span, tuple(values), tuple(cotangents)))
    return list(innermost.values())


_Values = Mapping[SourceSpan, tuple[Sequence[Var], Sequence[Var], int]]


def _values_in(jaxpr: Jaxpr, around: frozenset[SourceSpan], scope: str) -> _Values:
    """The variables that are values of expressions, which what comes behind reads; their cotangents; the number of its equations."""
    eqns = jaxpr.eqns
    roles = [_role(f"{scope}/{eqn.source_info.name_stack}") for eqn in eqns]
    makers = {v: index for index, eqn in enumerate(eqns) for v in eqn.outvars}
    readers: dict[Var, list[int]] = {}
    members: dict[SourceSpan, list[int]] = {}
    for index, eqn in enumerate(eqns):
        for v in eqn.invars:
            if isinstance(v, Var):
                readers.setdefault(v, []).append(index)
        for span in _spans(eqn):
            if span not in around:
                members.setdefault(span, []).append(index)
    values: dict[SourceSpan, tuple[Sequence[Var], Sequence[Var], int]] = {}
    for span, indices in members.items():
        inside = set(indices)
        results = [v for index in indices if roles[index] == "forward" for v in eqns[index].outvars]
        read = [v for v in results if any(index not in inside and roles[index] == "forward" for index in readers.get(v, ()))]
        returned = [v for v in results if v in jaxpr.outvars]
        own = read or returned[: 1 if scope else None]  # what a scan returns for its backward pass comes later
        types = {str(v.aval) for v in own}
        operands = [v for i in indices if roles[i] == "backward" for v in eqns[i].invars if isinstance(v, Var) and str(v.aval) in types]
        outer = [v for v in operands if v in makers and makers[v] not in inside and roles[makers[v]] == "backward"]
        values[span] = own, list(dict.fromkeys(outer)), len(indices)
    return values


def _values(jaxpr: Jaxpr, path: Path = (), around: frozenset[SourceSpan] = frozenset(), scope: str = "") -> Iterator[tuple[Path, _Values]]:
    """Those of the jaxpr and of those inside."""
    yield path, _values_in(jaxpr, around, scope)
    for index, eqn in enumerate(jaxpr.eqns):
        if eqn.primitive.name in ENTERED:
            for k, (_, _, body) in enumerate(bodies(eqn)):
                inner = f"{scope}/{eqn.source_info.name_stack}"
                yield from _values(open_jaxpr(body), (*path, (index, k)), around.union(_spans(eqn)), inner)


def _spans(eqn: JaxprEqn) -> list[SourceSpan]:
    return [SourceSpan(*span) for span in spans(eqn.source_info)[:DEEPEST]]


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

    def wrapped(self, function: str) -> Change:
        """The expression as the argument of a function that shards it."""
        return functools.partial(filled, f"{function}(_0, {self.spec})")

    def differing(self, variables: Sequence[Variable | None], shardings: Sequence[TensorSharding | None]) -> TensorSharding | None:
        """The sharding of the first value that is not as planned; the planned one if all are."""
        ours = (shardings[n] for n in self.expression.all_numbers if variables[n] is not None)
        return next((each for each in ours if not self.sharding.is_equivalent(each)), self.sharding)


def _writable(seeds: Seeds, closed: ClosedJaxpr) -> list[_Written]:
    """The expressions of a plan's program whose values it shards alike, along whole axes."""
    variables = seeds.variables()
    kinds: dict[object, int] = {}
    writable: list[_Written] = []
    for each in expressions(closed):
        values = [v.holder for n in each.numbers if (v := variables[n]) is not None and v.operand is None]
        if not values:  # of a loss the gradient alone may be used
            values = [v.holder for n in each.cotangents if (v := variables[n]) is not None]
        shardings = {v.sharding or TensorSharding.closed("mesh", v.type.rank) for v in values}
        first = next(iter(shardings), None)
        if first is None or any(not first.is_equivalent(s) for s in shardings) or spec_text(first) is None:
            continue
        if len({v.type.rank for v in values}) == 1:
            kind = kinds.setdefault((values[0].type, str(first.closed_like())), len(kinds))
            writable.append(_Written(each, first.closed_like(), kind))
    return writable


CONSTRAINTS = frozenset({"sharding_constraint", "sdy_sharding_constraint"})

SUMS = frozenset({"sdy.all_reduce", "sdy.reduce_scatter"})

STATED = "sharding_constraint"
"""The origin of user constraints; others come from types."""

At = tuple[Path, Var]
"""A variable of a jaxpr inside of another."""


class ExplicitTypes:
    """The specs of the values that forward computations make; where JAX has no rule for an equation, the planned ones.

    Attributes:
        specs: Of each variable, in the jaxpr or inside.
        on_auto_axes: The variables inside of expressions that state their shardings, which JAX gives no types.
        unequal: Expressions whose values a loop carries in another type than before.
        failures: For each equation that JAX refuses, the places of the expression that it is of and of the calls around it.
    """

    def __init__(
        self,
        mesh: AbstractMesh,
        planned: Mapping[At, PartitionSpec],
        stated: Mapping[At, PartitionSpec],
        settled: frozenset[SourceSpan],
    ) -> None:
        self.mesh = mesh
        self.planned = planned
        self.stated = stated
        self.settled = settled
        self.specs: dict[At, PartitionSpec] = {}
        self.failures: list[Sequence[SourceSpan]] = []
        self.unequal: set[SourceSpan] = set()
        self.makers: dict[tuple[Path, Any], Sequence[SourceSpan]] = {}
        self.on_auto_axes: set[At] = set()

    def results(
        self, jaxpr: Jaxpr, operands: Sequence[PartitionSpec], path: Path = (), scope: str = "", around: Sequence[SourceSpan] = ()
    ) -> list[PartitionSpec]:
        """The specs of the results of a jaxpr."""
        self.specs.update(((path, v), spec) for v, spec in zip(jaxpr.invars, operands, strict=True))

        def spec_of(v: Any) -> PartitionSpec:
            return PartitionSpec() if isinstance(v, core.Literal) else self.specs.get((path, v), PartitionSpec())

        for index, eqn in enumerate(jaxpr.eqns):
            inner, own = f"{scope}/{eqn.source_info.name_stack}", _spans(eqn)
            spans = [*own, *around]
            specs: Sequence[PartitionSpec | None] = [None] * len(eqn.outvars)
            if _role(inner) == "forward":
                try:
                    specs = self._specs(eqn, list(map(spec_of, eqn.invars)), path, index, inner, spans)
                except Exception as error:  # a primitive may fail outside of its function, too; only JAX's own word counts
                    if "ShardingTypeError" in type(error).__name__ and self.settled.isdisjoint(spans):
                        self.failures.append(own or around)
            for v, spec in zip(eqn.outvars, specs):
                self.makers[path, v] = own
                planned = self.planned.get((path, v), PartitionSpec())
                self.specs[path, v] = self.stated.get((path, v), planned if spec is None else spec)
                if not self.settled.isdisjoint(spans) and (path, v) not in self.stated:
                    self.on_auto_axes.add((path, v))
        return list(map(spec_of, jaxpr.outvars))

    def _specs(
        self, eqn: JaxprEqn, operands: Sequence[PartitionSpec], path: Path, index: int, scope: str, spans: Sequence[SourceSpan]
    ) -> Sequence[PartitionSpec]:
        inner = [open_jaxpr(body) for *_, body in bodies(eqn)] if eqn.primitive.name in ENTERED else []

        def body(k: int, specs: Sequence[PartitionSpec]) -> list[PartitionSpec]:
            return self.results(inner[k], specs, (*path, (index, k)), scope, spans)

        def carried(k: int, specs: Sequence[PartitionSpec], first: int, count: int) -> list[PartitionSpec]:
            results = body(k, specs)
            for n, v in enumerate(inner[k].outvars[:count]):  # states what the loop starts with, then what a trip makes
                last = next((_spans(e) for e in inner[k].eqns if v in e.outvars), [])
                if parts(results[n]) != parts(specs[first + n]):
                    start = self.makers.get((path, eqn.invars[len(eqn.invars) - len(specs) + first + n]), ())
                    unequal = [some for some in (start or last, last) if some and self.settled.isdisjoint(some)][:1]
                    self.failures += unequal
                    self.unequal.update(span for some in unequal for span in some)
            return [*specs[first : first + count], *results[count:]]

        if eqn.primitive.name == "scan":
            first, count = scan_counts(eqn)
            slices = [PartitionSpec(*list(spec)[1:]) for spec in operands[first + count :]]
            results = carried(0, [*operands[: first + count], *slices], first, count)
            return [*results[:count], *(PartitionSpec(None, *spec) for spec in results[count:])]
        if eqn.primitive.name == "while":
            consts, own = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
            return carried(1, operands[consts:], own, len(operands) - consts - own)
        if eqn.primitive.name in CONSTRAINTS:  # JAX refuses one that changes a type: such an expression states its sharding
            return operands
        if inner:
            is_cond = eqn.primitive.name == "cond"
            return body(0, operands[is_cond:])
        avals: list[Any] = [v.aval for v in eqn.invars]
        arguments = [
            np.asarray(v.val, aval.dtype)
            if isinstance(v, core.Literal)
            else jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type, sharding=NamedSharding(self.mesh, spec))
            for v, aval, spec in zip(eqn.invars, avals, operands, strict=True)
        ]
        with jax.sharding.use_abstract_mesh(self.mesh):
            results: list[Any] = jax.make_jaxpr(lambda *xs: eqn.primitive.bind(*xs, **eqn.params))(*arguments).out_avals
        return [result.sharding.spec for result in results]


def parts(spec: PartitionSpec) -> tuple[tuple[str, ...], ...]:
    """The axes of each dimension, without the last ones that are whole."""
    dims = [() if entry is None else entry if isinstance(entry, tuple) else (entry,) for entry in spec]
    while dims and not dims[-1]:
        dims.pop()
    return tuple(dims)


class Writer:
    """Finds what to write of a plan.

    Attributes:
        request: What the plan was asked with.
    """

    def __init__(self, seeds: Seeds, closed: ClosedJaxpr, plan: PlanRecord, request: PlanRequest) -> None:
        self.seeds = seeds
        self.closed = closed
        self.plan = plan
        self.request = request
        self.mesh = request.view.auto_mesh
        self.named = NamedShardings(self.mesh)
        self.writable = _writable(seeds, closed)
        self.alone = dataclasses.replace(plan, partitioner=None)
        self.planned = _cost(self.alone)
        self.places = [Place(i, each.sharding, (each.kind,), True) for i, each in enumerate(self.writable)]

    def code(self, style: Style) -> Code:
        """The plan as code, see `Plan.as_code`."""
        self.refused: list[str] = []
        rules, named = self._rules() if style == "logical" else ((), ())
        setup = setup_of(self.plan, "Explicit" if style == "explicit" else "Auto", rules, named)
        if any(site.eqn.params.get("origin", STATED) != STATED for site in sites(self.closed.jaxpr)):
            if style != "explicit":
                raise SpecError(
                    f"{self.plan.name} says shardings in types",
                    where="Plan.as_code",
                    why="jax.reshard and out_sharding= are for Explicit axes, which the other styles do not have",
                    fix='use style="explicit"',
                )
            return Code(style, setup)
        more, changes = self._explicit() if style == "explicit" else self._constraints()
        remarks = [] if more <= 1 + ALL_TOLERANCE else [_FARTHER.format(more)]
        if self.plan.search is not None and self.plan.search.annotations != "keep":
            remarks.append("The plan leaves out the constraints of the function: remove these lines.")
        edits = edits_of(changes)
        return Code(style, setup, edits, (*remarks, *self.refused, *_apart(self.plan), *without_jax(edits)))

    def _rules(self) -> tuple[Sequence[LogicalRule], Sequence[int]]:
        """The rules for names of dimensions, and the arguments whose shardings follow from them."""
        names, values = self.request.axis_names, self.plan.inputs
        arrays = [(value.path, n, self._spec(value.sharding, len(value.shape))) for n, value in zip(names, values, strict=True) if n]
        if not arrays:
            raise SpecError(
                "no array of the arguments names its dimensions",
                where="Plan.as_code",
                why="logical axis rules use the names that nn.with_logical_partitioning or a flax.nnx variable gives",
                fix='use style="constraints"',
            )
        rules = rules_of(arrays, self.request.settings.logical_axis_rules or ())
        slots = [slot for slot, value, n in zip(self.request.leaf_slots, values, names) if not n and spec_code(value) != "jax.P()"]
        return rules, sorted({slot for slot, n in zip(self.request.leaf_slots, names) if n}.difference(slots))

    def _constraints(self) -> tuple[float, dict[SourceSpan, Change]]:
        @functools.cache
        def propagated(chosen: frozenset[int]) -> PinnedOutcome:
            return self._outcome(pins(chosen))

        def pins(chosen: Iterable[int]) -> Mapping[int, TensorSharding]:
            return {n: self.writable[i].sharding for i in sorted(chosen) for n in self.writable[i].expression.all_numbers}

        sums = frozenset[int]() if self.plan.search is None else self._sums()
        chosen = sorted(sums.union(fewest_pins(self.places, lambda numbers: propagated(sums.union(numbers)), 1.0)))
        function = "jax.lax.with_sharding_constraint"
        changes = {self.writable[i].expression.span: self.writable[i].wrapped(function) for i in chosen}
        return self._more(pins(chosen)), with_constraints(changes, self._constrained("sdy_sharding_constraint"), function)

    def _sums(self) -> frozenset[int]:
        """The expressions whose partial sums are added up between devices: what reads them decides how they lie.

        XLA propagates a simplified program, in which another reader may decide.
        """
        ops = {cause for op, cause in explicit_of(self.alone).causes.items() if op.name in SUMS}
        numbers = {n for n, variable in enumerate(self.seeds.variables()) if variable is not None and variable.op in ops}
        return frozenset(i for i, each in enumerate(self.writable) if not numbers.isdisjoint(each.expression.numbers))

    def _constrained(self, *primitives: str) -> list[_Written]:
        """The expressions that are user constraints."""
        eqns = [site.eqn for site in sites(self.closed.jaxpr)]
        return [each for each in self.writable if all(eqns[n].primitive.name in primitives for n in each.expression.numbers)]

    def _outcome(self, pins: Mapping[int, TensorSharding]) -> PinnedOutcome:
        """What propagation makes of a program with these constraints, with one for each line that makes values which lie otherwise."""
        _, variables = self.seeds.plan(pins)
        shardings = [None if v is None else v.holder.sharding for v in variables]
        differing = {i: each.differing(variables, shardings) for i, each in enumerate(self.writable)}
        return PinnedOutcome(1.0 + sum(not each.sharding.is_equivalent(differing[i]) for i, each in enumerate(self.writable)), differing)

    def _more(self, pins: Mapping[int, TensorSharding]) -> float:
        """How many times what the plan moves or computes a program with these constraints does, with the reshards of Shardy."""
        run, _ = self.seeds.plan(pins)
        return max((own + 1) / (least + 1) for own, least in zip(_cost(run), self.planned, strict=True))

    def _explicit(self) -> tuple[float, dict[SourceSpan, Change]]:
        number_of = {(site.path, site.variable): n for n, site in enumerate(sites(self.closed.jaxpr)) if site.result is not None}
        place_of = {n: place for place, n in number_of.items()}
        planned = {
            place_of[n]: self._spec(v.holder.sharding, v.value.type.rank)
            for n, v in enumerate(self.seeds.variables())
            if v and n in place_of
        }
        spans = {each.expression.span: i for i, each in enumerate(self.writable)}
        mesh = AbstractMesh(self.mesh.axis_sizes, self.mesh.axis_names, axis_types=(AxisType.Explicit,) * len(self.mesh.axis_names))
        constrained = self._constrained(*CONSTRAINTS)
        inputs = [self._spec(value.sharding, len(value.shape)) for value in self.plan.inputs]

        unequal: set[SourceSpan] = set()

        @functools.cache
        def typed(chosen: frozenset[int]) -> tuple[ExplicitTypes, frozenset[int]]:
            """The types with some expressions resharded, and all those that need a sharding of their own."""
            settled = [each.expression for each in (*constrained, *(self.writable[i] for i in chosen))]
            stated = {place_of[n]: planned[place_of[n]] for each in settled for n in each.numbers if place_of[n] in planned}
            types = ExplicitTypes(mesh, planned, stated, frozenset(each.span for each in settled))
            types.results(self.closed.jaxpr, inputs)
            unequal.update(types.unequal)
            refused = {spans[span] for some in types.failures for span in [next((s for s in some if s in spans), None)] if span} - chosen
            return typed(chosen | refused) if refused else (types, chosen)

        @functools.cache
        def propagated(chosen: frozenset[int]) -> PinnedOutcome:
            return self._outcome(pins_of(chosen))

        def pins_of(chosen: frozenset[int]) -> Mapping[int, TensorSharding]:
            types, _ = typed(chosen)
            specs = {at: spec for at, spec in types.specs.items() if at in number_of and at in planned and at not in types.on_auto_axes}
            pins = {number_of[at]: _sharding(spec, len(planned[at])) for at, spec in specs.items()}
            for each in self.writable:
                pins |= {n: pins[each.expression.numbers[0]] for n in each.expression.cotangents if each.expression.numbers[0] in pins}
            return pins

        chosen = frozenset(fewest_pins(self.places, lambda numbers: propagated(frozenset(numbers)), 1.0))
        _, needed = typed(frozenset())
        types, every = typed(chosen)
        places = [some[0] for some in types.failures if some]
        self.refused = [
            f"JAX has no rule for a type at {each.file}:{each.line}, and no line can state one." for each in dict.fromkeys(places)
        ]
        changes = {self.writable[i].expression.span: self.writable[i].wrapped("jax.reshard") for i in chosen - needed}
        for each in (self.writable[i] for i in sorted(every - (chosen - needed))):
            span = each.expression.span
            changes[span] = each.wrapped("jax.reshard") if span in unequal else functools.partial(stated, each.spec)
        return self._more(pins_of(chosen)), with_constraints(changes, constrained, "jax.reshard")

    def _spec(self, sharding: TensorSharding | None, rank: int) -> PartitionSpec:
        return PartitionSpec(*[*self.named(sharding, rank).spec, *[None] * rank][:rank])


def _sharding(spec: PartitionSpec, rank: int) -> TensorSharding:
    return TensorSharding(MESH_NAME, [*map(list, parts(spec)), *[[]] * rank][:rank])


def with_constraints(changes: dict[SourceSpan, Change], constraints: Sequence[_Written], function: str) -> dict[SourceSpan, Change]:
    """The changes with another function in place of the one of user constraints, whose first arguments need no change then."""
    for each in constraints:
        node = each.expression.span.node
        if isinstance(node, ast.Call) and node.args:
            changes.pop(each.expression.span.of(node.args[0]), None)
            changes[each.expression.span] = functools.partial(_recalled, f"{function}(_0, {each.spec})")
    return changes


def _recalled(template: str, node: ast.expr) -> ast.expr:
    assert isinstance(node, ast.Call)
    return filled(template, node.args[0])


_FARTHER = (
    "XLA may move or compute {:.2f} times what the plan does: values that no line of the source makes, or one line in several shardings, "
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
