"""Constraints on values of a traced function, by number: those of a planner's plan, as if the user had written them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.sharding import AbstractMesh

from shardy_py.api.partitioning import decided
from shardy_py.api.tracing import TracedCall
from shardy_py.backends.named_shardings import NamedShardings
from shardy_py.backends.rewriting import ENTERED, Copied, Copier, Pins, only_results, op_of, scopes_of
from shardy_py.dialect import TensorSharding
from shardy_py.errors import SpecError
from shardy_py.frontends.jaxpr import Scope, lowered
from shardy_py.frontends.jaxprs import bodies, open_jaxpr
from shardy_py.frontends.loops import scan_counts
from shardy_py.frontends.mesh_context import traced_on
from shardy_py.ir import Block, Op, Value
from shardy_py.passes.dataflow import NAMED_COMPUTATION, WHILE
from shardy_py.plan.record import PlanRecord
from shardy_py.planner.propagated import Variable

Path = tuple[tuple[int, int], ...]
"""The way to a jaxpr inside of another: number of an equation, and of one of its bodies, from the outermost."""


@dataclass(frozen=True, slots=True)
class Site:
    """A place in a jaxpr where a constraint may stand.

    Attributes:
        eqn: The equation that makes it, or whose body starts with it; the one that reads it, where the constraint is for that alone.
        result: Its number among the results of the equation; None where the constraint is for a reader, or of an argument of a body.
        reader: `(equation index, operand number)` of the reader; the index after the last is the jaxpr's return.
        loop: The way to the loop that reads it, its index, and the number of its operand that is carried; None of another reader.
    """

    path: Path
    variable: Var
    eqn: JaxprEqn
    result: int | None = None
    reader: tuple[int, int] | None = None
    loop: tuple[Path, int, int] | None = None

    @property
    def is_unnamed(self) -> bool:
        """Whether its equation gives it no name in the user's code: residuals that a scan stacks, and what bodies start with."""
        if self.result is None:
            return self.reader is None
        return self.eqn.primitive.name == "scan" and self.result >= scan_counts(self.eqn)[1]


OF_SEVERAL_OPS = frozenset({"gather"})
"""Primitives that are imported as several ops, between which a value may lie apart from operands and results: rows that are gathered before
those out of range are replaced. A constraint on the result does not reach it, one on the operand does."""


def sites(jaxpr: Jaxpr, path: Path = (), free: frozenset[Var] = frozenset()) -> Iterator[Site]:
    """The places where constraints may stand, in program order: results of equations, what loops carry, and what bodies start with.

    A trip of a loop starts with constants, and with slices of stacked operands, which need not lie as in front of the loop, and what is
    computed anew, as by `jax.checkpoint`, with operands behind a barrier. Of primitives that are imported as several ops, operands are
    places too.
    """
    for index, eqn in enumerate(jaxpr.eqns):
        start = _first_carry(eqn)
        if start is not None:
            for number, variable in enumerate(eqn.invars):
                if not isinstance(variable, Literal):
                    yield Site(path, variable, eqn, reader=(index, number), loop=(path, index, number))
        if eqn.primitive.name in ENTERED:
            for k, (name, _, body) in enumerate(bodies(eqn)):
                inner = open_jaxpr(body)
                inside = (*path, (index, k))
                unconstrained = only_results(eqn, inner)
                for number in _starts(eqn, name, inner) if inner.eqns else ():
                    variable = inner.invars[number]
                    if variable not in unconstrained:
                        yield Site(inside, variable, eqn)
                yield from sites(inner, inside, unconstrained)
                if start is not None and name in ("jaxpr", "body_jaxpr"):
                    for number, variable in enumerate(inner.outvars[: scan_counts(eqn)[1] if eqn.primitive.name == "scan" else None]):
                        if not isinstance(variable, Literal):
                            returned = (len(inner.eqns), number)
                            yield Site(inside, variable, eqn, reader=returned, loop=(path, index, start + number))
        if eqn.primitive.name in OF_SEVERAL_OPS and not isinstance(eqn.invars[0], Literal):
            yield Site(path, eqn.invars[0], eqn, reader=(index, 0))
        for number, variable in enumerate(eqn.outvars):
            if variable not in free:
                yield Site(path, variable, eqn, number)


def _starts(eqn: JaxprEqn, body: str, inner: Jaxpr) -> Sequence[int]:
    """The arguments of a body that are not carried through a loop: constants of a loop, slices of stacked operands, operands of calls."""
    if eqn.primitive.name == "scan":
        consts, carry = scan_counts(eqn)
        return [*range(consts), *range(consts + carry, len(eqn.invars))]
    if eqn.primitive.name == "while":
        return range(eqn.params["body_nconsts"] if body == "body_jaxpr" else 0)
    return range(len(inner.invars))


def _first_carry(eqn: JaxprEqn) -> int | None:
    """The first operand of a loop that it carries; None of another equation."""
    if eqn.primitive.name == "scan":
        return scan_counts(eqn)[0]
    return eqn.params["cond_nconsts"] + eqn.params["body_nconsts"] if eqn.primitive.name == "while" else None


@dataclass(frozen=True, eq=False)
class Constrained:
    """A jaxpr with constraints at some of its sites."""

    source: Jaxpr
    copied: Copied
    closed: ClosedJaxpr

    def variables(self, scope: Scope) -> list[Variable | None]:
        """The value at each site in a program that was read from the copy; None where nothing uses it."""
        scopes = {path: (inner, copied) for path, inner, copied in _scopes(scope, self.copied)}
        return [_variable(site, scopes) for site in sites(self.source)]


def constrained(closed: ClosedJaxpr, shardings: Mapping[int, TensorSharding], auto_mesh: AbstractMesh) -> Constrained:
    """A jaxpr with constraints at some of its sites."""
    pins = Pins()
    for number, site in enumerate(sites(closed.jaxpr)):
        if number in shardings:
            inside = pins
            for index, body in site.path:
                inside = inside.child(index, body)
            sharding = decided(shardings[number], len(_shape(site.variable)))
            if site.reader is None:
                inside.variables[site.variable] = sharding
            else:
                inside.operands[site.reader] = sharding
    with traced_on(auto_mesh):
        copied = Copier(NamedShardings(auto_mesh), lambda eqn, scope: None).copy(closed.jaxpr, pins, None)
    return Constrained(closed.jaxpr, copied, ClosedJaxpr(copied.jaxpr, closed.consts))


def _scopes(scope: Scope, copied: Copied, path: Path = ()) -> Iterator[tuple[Path, Scope, Copied]]:
    yield path, scope, copied
    for (index, body), child in copied.children.items():
        at = copied.position[index]
        inner = scopes_of(scope, at, bodies(copied.jaxpr.eqns[at]))[body]
        if inner is not None:
            yield from _scopes(inner, child, (*path, (index, body)))


def _variable(site: Site, scopes: Mapping[Path, tuple[Scope, Copied]]) -> Variable | None:
    if site.path not in scopes:
        return None
    value = scopes[site.path][0].env.get(site.variable)
    if value is None or not value.type.rank or not value.type.size:
        return None
    if site.loop is None and site.reader is not None:
        scope, copied = scopes[site.path]
        return _read(value, copied.jaxpr.eqns[copied.position[site.reader[0]]], scope)
    if site.loop is None:
        op = value.defining_op
        if op is None:
            constant = _constant(value)
            return None if constant is None else Variable(value, constant[1], constant[0], site.eqn.primitive.name, site.is_unnamed)
        return Variable(value, value, op, site.eqn.primitive.name, site.is_unnamed) if value.uses else None
    path, index, number = site.loop
    scope, copied = scopes[path]
    eqn = copied.jaxpr.eqns[copied.position[index]]
    operand = eqn.invars[number]
    loop = None if isinstance(operand, Literal) else op_of(eqn, scope, WHILE)
    if loop is None or isinstance(operand, Literal) or scope.env.get(operand) not in loop.operands:
        return None
    carried = loop.operands.index(scope.env[operand])
    is_sliced = eqn.primitive.name == "scan" and number >= sum(scan_counts(eqn))
    holder = _slice(loop.regions[1].arguments[carried]) if is_sliced else loop.results[carried]
    return None if holder is None else Variable(value, holder, loop, eqn.primitive.name)


def _read(value: Value, eqn: JaxprEqn, scope: Scope) -> Variable | None:
    """The operand of an equation for a result that another of its ops makes; None of other operands."""
    results = [scope.env.get(v) for v in eqn.outvars]
    for op, number in value.uses:
        reader = op_of(eqn, scope, op.name)
        if reader is op and not any(result in results for result in op.results):
            return Variable(value, value, op, eqn.primitive.name, operand=number)
    return None


def _constant(argument: Value) -> tuple[Op, Value] | None:
    """The loop, and its result, whose body starts with an argument; None of other bodies."""
    loop = argument.owner.parent if isinstance(argument.owner, Block) else None
    if not isinstance(loop, Op):
        return None
    if loop.name == NAMED_COMPUTATION:
        return _constant(loop.operands[argument.index])
    return (loop, loop.results[argument.index]) if loop.name == WHILE else None


def _shape(variable: Any) -> tuple[int, ...]:
    return getattr(variable.aval, "shape", ())


def _slice(stacked: Value) -> Value | None:
    """The part of a stacked operand of a scan that one trip reads."""
    for op, number in stacked.uses:
        part = op.result if op.name == _SLICE else _slice(op.regions[0].arguments[number]) if op.name == NAMED_COMPUTATION else None
        if part is not None:
            return part
    return None


_SLICE = "stablehlo.dynamic_slice"


def _is_constraint(eqn: JaxprEqn) -> bool:
    """Whether an equation is a `with_sharding_constraint` in the user code; others state the shardings in types."""
    name = eqn.primitive.name
    return name == "sharding_constraint" or (name == "sdy_sharding_constraint" and eqn.params["origin"] == "sharding_constraint")


def without_constraints(traced: TracedCall) -> TracedCall:
    """A call of the same function without the user's constraints on values inside; those inside of a `shard_map` stay."""
    closed = lowered(traced.jaxpr)
    auto_mesh = traced.request.view.auto_mesh
    with traced_on(auto_mesh):
        copier = Copier(NamedShardings(auto_mesh), lambda eqn, scope: (lambda x: [x]) if _is_constraint(eqn) else None)
        copied = copier.copy(closed.jaxpr, Pins(), None)
    return replace(traced, jaxpr=ClosedJaxpr(copied.jaxpr, closed.consts))


def constrained_values(written: Scope, dropped: Scope) -> Iterator[tuple[Value, TensorSharding]]:
    """The values that the user constrains, in a program without the constraints, and their shardings."""
    values: dict[Var, list[Value]] = {}
    for scope in dropped.walk():
        for variable, value in scope.env.items():
            values.setdefault(variable, []).append(value)
    sources: dict[Var, Var] = {}
    for scope in written.walk():
        for eqn in scope.jaxpr.eqns:
            if _is_constraint(eqn) and isinstance(eqn.invars[0], Var):
                source = sources[eqn.outvars[0]] = sources.get(eqn.invars[0], eqn.invars[0])
                sharding = scope.env[eqn.outvars[0]].sharding if eqn.outvars[0] in scope.env else None
                if sharding is not None:
                    yield from ((value, sharding) for value in values.get(source, ()))


def as_plan_constrains(traced: TracedCall, plan: PlanRecord) -> TracedCall:
    """A call whose `in_shardings` are a plan, with its constraints. Raises SpecError if the plan is of another function."""
    request = traced.request
    if plan.search is None:
        return traced
    if plan.search.annotations != "keep":
        traced = without_constraints(traced)
    if not plan.search.constraints:
        return traced
    closed = lowered(traced.jaxpr)
    places = list(sites(closed.jaxpr))
    for constraint in plan.search.constraints:
        site = places[constraint.number] if constraint.number < len(places) else None
        if site is None or site.eqn.primitive.name != constraint.primitive or len(_shape(site.variable)) != constraint.sharding.rank:
            raise SpecError(
                f"in_shardings is a plan of another function: it constrains {constraint}",
                where=f"in_shardings, {request.location}",
                why="a planner's constraints refer to values by their order in the computation, and another value is in this place",
                fix="plan again with planner=sp.Planner(...), or pass plan.input_shardings, which leaves values inside to propagation",
            )
    copy = constrained(closed, {each.number: each.sharding for each in plan.search.constraints}, request.view.auto_mesh)
    settings = replace(request.settings, in_shardings=None)  # the shardings of this call's leaves have been taken from it
    return replace(traced, jaxpr=copy.closed, request=replace(request, settings=settings))
