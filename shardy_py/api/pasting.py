"""A plan as code to paste: the expressions of the source that make its values, and the fewest of them to constrain."""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
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
from shardy_py.frontends.cells import cell_name
from shardy_py.frontends.jaxprs import bodies, open_jaxpr
from shardy_py.frontends.locations import spans
from shardy_py.frontends.loops import scan_counts
from shardy_py.ir.types import local_bytes
from shardy_py.partition.mispartitioned import as_sharded, is_mispartitioned
from shardy_py.plan.checks.specs import spec_text
from shardy_py.plan.code import Change, Code, SourceSpan, Style, edits_of, filled, setup_of, spec_code, stated, without_jax
from shardy_py.plan.collectives import format_bytes
from shardy_py.plan.costing import analyse as cost_of
from shardy_py.plan.executed import explicit_of
from shardy_py.plan.paths import is_backward
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.values import location_of, name_of
from shardy_py.planner.pins import PinnedOutcome, Place, fewest_pins
from shardy_py.planner.propagated import Seeds, Variable

DEEPEST = 4
"""Calls around an expression whose own places are looked at too."""


@dataclass(frozen=True)
class Expression:
    """An expression of the source, with the numbers of the places in the jaxpr at which its values are made.

    Attributes:
        cotangents: The numbers of those at which the cotangents of its values are made, which JAX constrains like the values.
        others: The places of further expressions for the same value: where the body of a loop reads an argument of the function.
    """

    span: SourceSpan
    numbers: tuple[int, ...]
    cotangents: tuple[int, ...] = ()
    others: tuple[SourceSpan, ...] = ()

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


def _arguments_read(plan: PlanRecord, variables: Sequence[Variable | None], closed: ClosedJaxpr) -> Iterator[Expression]:
    """The expressions that read an argument of the function in the body of a loop, by the name that the plan gives it."""
    for number, (site, variable) in enumerate(zip(sites(closed.jaxpr), variables, strict=True)):
        if variable is None or site.result is not None or site.reader is not None or variable.value is variable.holder:
            continue
        path, body = name_of(variable.value, plan.names), open_jaxpr(bodies(site.eqn)[site.path[-1][1]][-1])
        readers = [SourceSpan(*span) for eqn in body.eqns if site.variable in eqn.invars for span in spans(eqn.source_info)[:1]]
        inside = ((span, node) for span in dict.fromkeys(readers) for node in ast.walk(span.node or ast.Constant(None)))
        reads = dict.fromkeys(span.of(node) for span, node in inside if isinstance(node, ast.expr) and ast.unparse(node) == path)
        if reads:
            first, *others = reads
            yield Expression(first, (number,), (), tuple(others))


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

    def changes(self, function: str) -> dict[SourceSpan, Change]:
        """The expression as the argument of a function that shards it."""
        return dict.fromkeys((self.expression.span, *self.expression.others), functools.partial(filled, f"{function}(_0, {self.spec})"))

    def differing(self, variables: Sequence[Variable | None], shardings: Sequence[TensorSharding | None]) -> TensorSharding | None:
        """The sharding of the first value that is not as planned; the planned one if all are."""
        ours = (shardings[n] for n in self.expression.all_numbers if variables[n] is not None)
        return next((each for each in ours if not self.sharding.is_equivalent(each)), self.sharding)


def _writable(seeds: Seeds, plan: PlanRecord, closed: ClosedJaxpr) -> tuple[list[_Written], Sequence[str]]:
    """The expressions of a plan's program whose values it shards alike, along whole axes; and the lines of those that it does not."""
    variables = seeds.variables()
    kinds: dict[object, int] = {}
    writable: list[_Written] = []
    shared: dict[str, None] = {}
    for each in (*expressions(closed), *_arguments_read(plan, variables, closed)):
        values = [v.holder for n in each.numbers if (v := variables[n]) is not None and v.operand is None]
        if not values:  # of a loss the gradient alone may be used
            values = [v.holder for n in each.cotangents if (v := variables[n]) is not None]
        shardings = {v.sharding or TensorSharding.closed("mesh", v.type.rank) for v in values}
        first = next(iter(shardings), None)
        if first is None or any(not first.is_equivalent(s) for s in shardings) or spec_text(first) is None:
            shared |= {f"{cell_name(each.span.file)}:{each.span.line}": None} if first is not None else {}
            continue
        if len({v.type.rank for v in values}) == 1:
            kind = kinds.setdefault((values[0].type, str(first.closed_like())), len(kinds))
            writable.append(_Written(each, first.closed_like(), kind))
    return writable, tuple(shared)


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
                    self.failures += unequal or [start or last or spans]
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
        self.writable, self.shared = _writable(seeds, plan, closed)
        self.places = [Place(i, each.sharding, (each.kind,), True) for i, each in enumerate(self.writable)]

    def code(self, style: Style) -> Code:
        """The plan as code, see `Plan.as_code`."""
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
        changes = self._explicit() if style == "explicit" else self._constraints()
        moved = cost_of(self.plan).communicated_bytes
        remarks = [f"XLA moves at least {format_bytes(moved)} to each device in a call."] if moved else []
        if self.shared and (self.plan.search is not None or style == "explicit"):
            remarks.append(f"It may move or compute more for lines that make values in several shardings: {', '.join(self.shared)}.")
        if self.plan.search is not None and self.plan.search.annotations != "keep":
            remarks.append("The plan leaves out the constraints of the function: remove these lines.")
        edits = edits_of(changes)
        return Code(style, setup, edits, (*remarks, *_apart(self.plan), *without_jax(edits)))

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

    def _constraints(self) -> dict[SourceSpan, Change]:
        @functools.cache
        def propagated(chosen: frozenset[int]) -> PinnedOutcome:
            return self._outcome({n: self.writable[i].sharding for i in sorted(chosen) for n in self.writable[i].expression.all_numbers})

        sums = frozenset[int]() if self.plan.search is None else self._sums()
        chosen = sorted(sums.union(fewest_pins(self.places, lambda numbers: propagated(sums.union(numbers)), 1.0)))
        function = "jax.lax.with_sharding_constraint"
        changes = {span: change for i in chosen for span, change in self.writable[i].changes(function).items()}
        return with_constraints(changes, self._constrained("sdy_sharding_constraint"), function)

    def _sums(self) -> frozenset[int]:
        """The expressions whose partial sums are added up between devices: what reads them decides how they lie.

        XLA propagates a simplified program, in which another reader may decide.
        """
        ops = {cause for op, cause in explicit_of(dataclasses.replace(self.plan, partitioner=None)).causes.items() if op.name in SUMS}
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

    def _explicit(self) -> dict[SourceSpan, Change]:
        number_of = {(site.path, site.variable): n for n, site in enumerate(sites(self.closed.jaxpr)) if site.reader is None}
        place_of = {n: place for place, n in number_of.items()}
        variables = self.seeds.variables()
        planned = {at: self._spec(v.holder.sharding, v.value.type.rank) for at, n in number_of.items() if (v := variables[n]) is not None}
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
            types, _ = typed(chosen)
            specs = {at: spec for at, spec in types.specs.items() if at in planned and at not in types.on_auto_axes}
            dims = {at: [*map(list, parts(spec)), *[[]] * len(planned[at])][: len(planned[at])] for at, spec in specs.items()}
            pins = {number_of[at]: TensorSharding(MESH_NAME, each) for at, each in dims.items()}
            for each in self.writable:
                pins |= {n: pins[each.expression.numbers[0]] for n in each.expression.cotangents if each.expression.numbers[0] in pins}
            return self._outcome(pins)

        chosen = frozenset(fewest_pins(self.places, lambda numbers: propagated(frozenset(numbers)), 1.0))
        _, needed = typed(frozenset())
        types, every = typed(chosen)
        place = next((some[0] for some in types.failures if some), None)
        if place is not None:
            raise SpecError(
                f"JAX refuses the types of values at {cell_name(place.file)}:{place.line}",
                where="Plan.as_code",
                why="no line can state them: it makes several values, or a loop starts with an argument of another type",
                fix='use style="constraints"',
            )
        changes: dict[SourceSpan, Change] = {}
        for i in sorted(every):
            each, span = self.writable[i], self.writable[i].expression.span
            is_reshard = i in chosen - needed or span in unequal
            changes |= each.changes("jax.reshard") if is_reshard else {span: functools.partial(stated, each.spec)}
        return with_constraints(changes, constrained, "jax.reshard")

    def _spec(self, sharding: TensorSharding | None, rank: int) -> PartitionSpec:
        return PartitionSpec(*[*self.named(sharding, rank).spec, *[None] * rank][:rank])


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


def _apart(plan: PlanRecord) -> Iterator[str]:
    """What is partitioned apart where this library runs the plan. What XLA cannot partition, it gathers whole."""
    parts, meshes = as_sharded(plan.program.meshes), plan.program.meshes
    ops = (op for op in plan.program.walk() if is_mispartitioned(op, parts))
    for place, op in {location_of(plan.program, op): op for op in ops}.items():
        more = sum(value.type.bytes - local_bytes(value.type, value.sharding, meshes) for value in op.operands)
        yield f"XLA alone partitions {op.primitive or op.name} at {place}: it may move {format_bytes(more)} more than planned, or be wrong."
