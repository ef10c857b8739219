"""The walk over a jaxpr that runs each equation on local arrays, inside the trace of one region."""

from __future__ import annotations

import contextlib
import enum
import functools
import itertools
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.extend.source_info_util import current_name_stack, user_context

from shardy_py.backends.local import ops
from shardy_py.backends.local.decide import FREE, Decision, Tensor, decide
from shardy_py.backends.local.emit import all_reduce, in_mesh_order, moved
from shardy_py.backends.local.form import Equation, Form, Local, Recorded, as_is, bind, bits_of
from shardy_py.backends.local.held import Held, Region
from shardy_py.backends.local.layouts import Axes, Layout, local_shape, names, replicated
from shardy_py.backends.local.moves import moves
from shardy_py.backends.local.runnable import layouts_under, runnable
from shardy_py.backends.rewriting import bodies
from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.frontends.context import current_settings, local_type, settings, trace_context, under_settings
from shardy_py.frontends.importer import Scope
from shardy_py.frontends.locations import locate
from shardy_py.frontends.primitive_bodies import body_of
from shardy_py.passes.propagation.factors import project
from shardy_py.plan.checks.thresholds import graded
from shardy_py.plan.findings import Finding, Severity
from shardy_py.plan.movements import format_bytes

Array = Any
Handler = Callable[["Walker", JaxprEqn, int, list[Held], Scope | None], list[Held]]
Builders = dict[str, Callable[[Equation], Form | None]]
Made = dict[int, dict[Var, Held]]
"""The values of the variables of jaxprs, by the identity of their scope, which tells call sites apart."""
Place = tuple[int, int]
"""An equation of a jaxpr at one call site: the identities of the scope and the equation."""


class Start(enum.Enum):
    """What an equation goes by before it is known how its results are used."""

    PLAN = "what moves the fewest bytes between its operands and its planned results"
    FORWARD = "what moves the fewest bytes of its operands"


Known = dict[Any, dict[Any, Any]]
"""What was found out about equations, by all that it depends on."""

SHARED = 1024
"""How many kinds of equations are remembered after a walk, the last ones met, under one configuration of JAX and on one mesh."""


@functools.lru_cache(maxsize=4)
def _known_under(context: Hashable, mesh: Mesh) -> Known:
    """What earlier walks found out, which a program finds that is lowered again, as in a notebook, or that is much like another."""
    return {}


def _is_plain(eqn: JaxprEqn) -> bool:
    """Whether an equation's parameters hold no functions or jaxprs, and so no arrays."""
    return not bodies(eqn) and not any(callable(value) and not isinstance(value, type) for value in eqn.params.values())


class Reading:
    """What walks over the same jaxprs know of them: forms of equations, and how often variables are used.

    Args:
        forms: Primitive -> builder of its form.
        handlers: Primitive -> what runs it, for equations that hold jaxprs or speak of shardings.
        mesh: The region's mesh.
        whole: Primitives that run whole, whatever JAX lowers them by.
    """

    def __init__(self, forms: Builders, handlers: dict[str, Handler], mesh: Mesh, whole: Container[str] = ()) -> None:
        self.forms = forms
        self.handlers = handlers
        self._whole = whole
        self._settings = current_settings()
        self._equations: dict[int, Equation] = {}
        self._known: Known = {}
        self._shared = _known_under(trace_context(), mesh)
        self._bodies: dict[tuple[int, str], ClosedJaxpr | None] = {}
        self._uses: dict[int, tuple[Jaxpr, dict[Var, int]]] = {}
        self._used: dict[int, tuple[bool, ...]] = {}
        self._live: dict[int, list[tuple[int, JaxprEqn]]] = {}
        self._steps: dict[int, list[_Step]] = {}
        self._scopes: dict[int, Scope] = {}

    def settings_of(self, eqn: JaxprEqn) -> contextlib.AbstractContextManager[Any]:
        """What is traced inside is lowered as the equation is to be, where it was traced under other settings than those of here."""
        return _NOWHERE if settings(eqn) == self._settings else under_settings(eqn)

    def equation(self, eqn: JaxprEqn) -> Equation:
        """An equation, read once."""
        found = self._equations.get(id(eqn))
        if found is None:
            found = self._equations[id(eqn)] = Equation(eqn, self._used.get(id(eqn)))
        return found

    def form(self, equation: Equation) -> Form | None:
        """The form of an equation; None where it has to run whole."""
        found = equation.known.get("form", _NOTHING)
        if found is _NOTHING:
            self._find(equation)
            found = equation.known["form"]
        return found

    def _find(self, equation: Equation) -> None:
        """Finds the form of an equation; what is known of equal ones is known of it."""
        build = self.forms.get(equation.name)
        if build is None:
            equation.known["form"] = None
            return
        eqn = equation.eqn
        weak = tuple([getattr(v.aval, "weak_type", False) for v in eqn.outvars])
        types = (*equation.shapes, *equation.dtypes, weak)
        key = (build, equation.name, *equation.params.items(), types, tuple(map(_literal, eqn.invars)), equation.used, settings(eqn))
        try:
            known = self._shared.get(key) or self._known.get(key)
        except TypeError as error:
            if "hash" not in str(error):
                raise
            key, known = None, None
        if known is None:
            with self.settings_of(eqn):
                known = {"form": build(equation)}
            if key is not None:
                shared = _is_plain(eqn)
                if shared and len(self._shared) >= SHARED:
                    self._shared.pop(next(iter(self._shared)), None)
                (self._shared if shared else self._known)[key] = known
        equation.known = known

    def body(self, eqn: JaxprEqn, platform: str) -> ClosedJaxpr | None:
        """What stands for an equation without a form, such as one of a package's own primitives; None where it has to run whole."""
        key = id(eqn), platform
        if key not in self._bodies:
            self._bodies[key] = None if eqn.effects or eqn.primitive.name in self._whole else body_of(eqn, platform)
        return self._bodies[key]

    def scope(self, jaxpr: Jaxpr) -> Scope:
        """The scope of a jaxpr that was not planned, such as the inside of a call with a rule: without values, the same in every walk."""
        scope = self._scopes.get(id(jaxpr))
        if scope is None:
            scope = self._scopes[id(jaxpr)] = Scope(jaxpr, {})
        return scope

    def uses(self, jaxpr: Jaxpr) -> dict[Var, int]:
        """How often each variable of a jaxpr is used by what runs, and as a result."""
        found = self._uses.get(id(jaxpr))
        if found is None:
            counts: dict[Var, int] = {}
            live = [eqn for _, eqn in self.live(jaxpr)]
            for eqn in live:
                for v in eqn.invars:
                    if not isinstance(v, Literal):
                        counts[v] = counts.get(v, 0) + 1
            for v in jaxpr.outvars:
                if not isinstance(v, Literal):
                    counts[v] = counts.get(v, 0) + 1
            for eqn in live:
                if len(eqn.outvars) > 1:
                    self._used[id(eqn)] = tuple(v in counts for v in eqn.outvars)
            found = self._uses[id(jaxpr)] = (jaxpr, counts)
        return found[1]

    def live(self, jaxpr: Jaxpr) -> list[tuple[int, JaxprEqn]]:
        """The equations of a jaxpr that make a result of it, or do something else, and where they stand."""
        found = self._live.get(id(jaxpr))
        if found is None:
            used = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
            found = self._live[id(jaxpr)] = []
            for index, eqn in zip(reversed(range(len(jaxpr.eqns))), reversed(jaxpr.eqns)):
                if eqn.effects or not eqn.outvars or not used.isdisjoint(eqn.outvars):
                    used.update([v for v in eqn.invars if not isinstance(v, Literal)])
                    found.append((index, eqn))
            found.reverse()
        return found

    def steps(self, jaxpr: Jaxpr) -> list[_Step]:
        """The equations of a jaxpr that run, read once."""
        found = self._steps.get(id(jaxpr))
        if found is None:
            uses = self.uses(jaxpr)
            found = self._steps[id(jaxpr)] = []
            for index, eqn in self.live(jaxpr):
                known = self.equation(eqn) if eqn.primitive.name not in self.handlers else None
                literal = any(isinstance(v, Literal) for v in eqn.invars)
                found.append((index, eqn, known, eqn.invars, literal, [(v, uses.get(v, 0)) for v in eqn.outvars]))
        return found


_Step = tuple[int, JaxprEqn, Equation | None, Sequence[Any], bool, list[tuple[Var, int]]]
"""An equation: where it stands, itself, itself as forms see it (None where it has a handler), what it reads and whether literals are
among that, its results and their uses."""


class Walker:
    """Runs jaxprs on local arrays.

    Args:
        region: The axes and the platform.
        layout_of: Gives the layout of a planned sharding, for a value of a rank.
        reading: What is known of the jaxprs.
        start: What counts where it is not known what a value will be asked for in.
        before: A walk over the same, whose values tell what each will be asked for in.
        ranks: Equations that do not run in the cheapest way, but in the next one, or the one after it.
        repeats: The dry walk that this one repeats for real.

    Attributes:
        findings: Equations that had to run whole, with their price.
        made: In a dry run, the values of variables that equations make, and of those that loops bring in.
        charges: In a dry run, bytes that a device receives for the sake of each equation.
    """

    def __init__(
        self,
        region: Region,
        layout_of: Callable[[TensorSharding | None, int], Layout],
        reading: Reading,
        before: Walker | None = None,
        start: Start = Start.PLAN,
        ranks: Mapping[Place, int] | None = None,
        repeats: Walker | None = None,
    ) -> None:
        self.ranks = ranks or {}
        self.charges: dict[Place, int] = {}
        self.region = region
        self.start = start
        self.previous = before
        self.before = before.made if before is not None else {}
        self._asks = before.asks if before is not None else {}
        self._repeats = repeats
        self.made: Made = {}
        self.layout_of = layout_of
        self.reading = reading
        self.findings: list[Finding] = []
        self._sizes = dict(region.mesh.shape)
        self._scalars: dict[tuple[Any, int], Held] = {}

    @property
    def mesh(self) -> Mesh:
        """The region's mesh."""
        return self.region.mesh

    @property
    def told(self) -> Hashable:
        """All that a walk after this one learns from it: where every value came out, and where it was asked for."""
        first = [next(iter(held.versions), None) for values in self.made.values() for held in values.values()]
        return tuple(first), tuple([tuple(asks.values()) for asks in self.asks.values()])

    @functools.cached_property
    def asks(self) -> dict[int, dict[Var, tuple[Layout, ...]]]:
        """Where every value was asked for, when all has run."""
        return {where: {v: tuple(held.asked) for v, held in values.items()} for where, values in self.made.items()}

    def hold(self, array: Array, at: Layout, shape: tuple[int, ...], dtype: Any, *, uses: int = 0) -> Held:
        """A value that is at hand in one layout."""
        return Held(self.region, shape, dtype, at, array, uses=uses)

    def constant(self, value: Any, aval: Any) -> Held:
        """A value that every device has."""
        shape = tuple(getattr(aval, "shape", ()))
        return self.hold(value, replicated(len(shape)), shape, getattr(aval, "dtype", None), uses=2)

    def jaxpr(self, jaxpr: Jaxpr, consts: Sequence[Held], arguments: Sequence[Held], scope: Scope | None) -> list[Held]:
        """Runs a jaxpr; its results may still have sums that wait.

        Args:
            jaxpr: The jaxpr, of global shapes.
            consts: Its constants.
            arguments: Its arguments.
            scope: Its values in the plan; None where it was not planned.
        """
        if scope is None:
            scope = self.reading.scope(jaxpr)
        elif scope.jaxpr is not jaxpr and len(scope.jaxpr.invars) == len(jaxpr.invars):
            jaxpr = scope.jaxpr
        uses = self.reading.uses(jaxpr)
        env: dict[Any, Held] = {}
        for v, held in zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *arguments), strict=True):
            held.uses = uses.get(v, 0) if held.uses == 1 else max(held.uses, 2)
            env[v] = held
        count = len(env)
        steps = self.reading.steps(jaxpr)
        if self.region.dry:
            self._foresee(steps, env, scope)
        else:
            self._trace(steps, env, scope)
        if self.region.dry:
            self.made.setdefault(id(scope), {}).update(itertools.islice(env.items(), count, None))
        return [self._literal(v) if isinstance(v, Literal) else env[v] for v in jaxpr.outvars]

    def _trace(self, steps: Sequence[_Step], env: dict[Any, Held], scope: Scope | None) -> None:
        """Runs equations."""
        literals, prefix = self._literal, current_name_stack()
        for index, eqn, known, reads, literal, results in steps:
            operands = [literals(v) if isinstance(v, Literal) else env[v] for v in reads] if literal else [env[v] for v in reads]
            out = None if known is None else self.again(known, operands, scope, prefix)
            if out is None:
                with self.place(eqn):
                    out = self.handled(eqn, index, operands, scope) if known is None else self.formed(known, operands, scope)
            for (v, used), held in zip(results, out, strict=True):
                if held.uses < 2:
                    held.uses = used
                env[v] = held

    def _foresee(self, steps: Sequence[_Step], env: dict[Any, Held], scope: Scope | None) -> None:
        """Runs equations dry."""
        literals, region, way = self._literal, self.region, self.way
        for index, eqn, known, reads, literal, results in steps:
            operands = [literals(v) if isinstance(v, Literal) else env[v] for v in reads] if literal else [env[v] for v in reads]
            form = None if known is None or known.is_empty else known.known.get("form")
            found = None if known is None or form is None else way(known, form, operands, scope)
            if known is None or found is None:
                out = self.handled(eqn, index, operands, scope) if known is None else self.formed(known, operands, scope)
                for (v, used), held in zip(results, out, strict=True):
                    if held.uses < 2:
                        held.uses = used
                    env[v] = held
            else:
                decision = found[1]
                self._count(eqn, operands, decision, scope)
                for (v, used), at, shape, dtype in zip(results, decision.results, known.result_shapes, known.result_dtypes):
                    env[v] = Held(region, shape, dtype, at, uses=used)

    def _count(self, eqn: JaxprEqn, operands: Sequence[Held], decision: Decision, scope: Scope | None) -> None:
        """Counts what an equation costs in a dry run."""
        region = self.region
        spent = region.spent
        for held, at in zip(operands, decision.operands):
            if at in held.versions:
                held.asked[at] = None
            else:
                held.get(at)
        trips = region.trips
        region.work += decision.work * trips
        if decision.inside:
            region.spent += decision.inside * trips
        if region.spent > spent:
            self.charges[id(scope), id(eqn)] = region.spent - spent

    def note(self, v: Var, held: Held, scope: Scope | None) -> None:
        """Makes known to walks after a dry one a value that no equation makes."""
        if scope is not None and self.region.dry:
            self.made.setdefault(id(scope), {})[v] = held

    def noted(self, v: Any, scope: Scope | None) -> Held | None:
        """The value of a variable in the walk before; None where there was none."""
        values = self.before.get(id(scope))
        return None if values is None else values.get(v)

    def foreseen(self, v: Any, scope: Scope | None) -> Held | None:
        """The value of a variable in the dry walk that this one repeats; None where there was none, and in dry walks."""
        values = None if self._repeats is None else self._repeats.made.get(id(scope))
        return None if values is None else values.get(v)

    def _literal(self, v: Literal) -> Held:
        if not self.region.dry or getattr(v.aval, "shape", ()):
            return self.constant(_plain(v), v.aval)
        key = (getattr(v.aval, "dtype", None), self.region.trips)
        found = self._scalars.get(key)
        if found is None:
            found = self._scalars[key] = self.constant(None, v.aval)
        return found

    def place(self, eqn: JaxprEqn) -> contextlib.AbstractContextManager[Any]:
        """What is traced inside comes from where the equation comes from."""
        if self.region.dry:
            return _NOWHERE
        return user_context(eqn.source_info.traceback, name_stack=current_name_stack() + eqn.source_info.name_stack)

    def handled(self, eqn: JaxprEqn, index: int, operands: list[Held], scope: Scope | None) -> list[Held]:
        """Runs one equation by its primitive's handler."""
        handler = self.reading.handlers[eqn.primitive.name]
        if self.region.dry and not getattr(handler, "runs_dry", False):
            return self.unknown(eqn, operands, scope)
        return handler(self, eqn, index, operands, scope)

    def formed(self, equation: Equation, operands: list[Held], scope: Scope | None, form: Form | None = None) -> list[Held]:
        """Runs one equation by a form, its primitive's where none is given."""
        eqn = equation.eqn
        if equation.is_empty:
            return [self.arbitrary(s, d) for s, d in zip(equation.result_shapes, equation.result_dtypes, strict=True)]
        if form is None:
            form = equation.known.get("form") or self.reading.form(equation)
            if form is None:
                body = self.reading.body(eqn, self.region.platform)
                if body is None:
                    return self.whole(equation, operands)
                consts = [self.constant(c, v.aval) for c, v in zip(body.consts, body.jaxpr.constvars, strict=True)]
                return self.jaxpr(body.jaxpr, consts, operands, None)
        found = self.way(equation, form, operands, scope)
        if found is None:
            return [self._remakable(equation, form, operands, i) for i in range(len(eqn.outvars))]
        form, decision = found
        shapes, dtypes = equation.result_shapes, equation.result_dtypes
        region = self.region
        if region.dry:
            self._count(eqn, operands, decision, scope)
            return [Held(region, s, d, at) for at, s, d in zip(decision.results, shapes, dtypes)]
        if not any(decision.axes) and any(form.rule.factor_sizes[f] > 1 for f in form.rule.need_replication):
            why = f"{equation.name} runs whole on every device", "shard dimensions that it does not work along, if there are any"
            self.gathers(eqn, operands, "whole-dimension", *why, severity="info")
        arrays = [held.get(at) for held, at in zip(operands, decision.operands, strict=True)]
        made = self.run(equation, form, id(decision), decision.axes, arrays)
        if decision.reduced:
            made = [all_reduce(x, in_mesh_order(decision.reduced, self.mesh), form.combine, region.platform) for x in made]
        return [self.hold(x, at, s, d) for x, at, s, d in zip(made, decision.results, shapes, dtypes, strict=True)]

    def again(self, equation: Equation, operands: list[Held], scope: Scope | None, prefix: Any) -> list[Held] | None:
        """Runs an equation as it or one alike ran before; None where that is not known, or something has to be moved for it.

        Args:
            equation: The equation.
            operands: Its operands.
            scope: Where it stands.
            prefix: The name stack there.
        """
        form = equation.known.get("form")
        found = None if form is None or equation.is_empty else self.way(equation, form, operands, scope)
        if found is None or found[1].reduced:
            return None
        form, decision = found
        known = equation.known.get(("recorded", id(form), id(decision), self.region.platform)) or self._as_is(equation, form, decision)
        if known is None:
            return None
        arrays = []
        for held, at in zip(operands, decision.operands):
            if at not in held.versions:
                return None
            arrays.append(held.versions[at])
        info = equation.eqn.source_info
        made = known.run(equation.eqn, arrays, info.replace(name_stack=prefix + info.name_stack) if len(prefix) else info)
        if made is None:
            return None
        shapes, dtypes, region = equation.result_shapes, equation.result_dtypes, self.region
        return [Held(region, s, d, at, x) for x, at, s, d in zip(made, decision.results, shapes, dtypes)]

    def _as_is(self, equation: Equation, form: Form, decision: Decision) -> Recorded | None:
        """How an equation is recorded that runs as it is; None where it does not."""
        if form.run is not as_is or self.reading.settings_of(equation.eqn) is not _NOWHERE:
            return None
        avals, mesh = [v.aval for v in equation.eqn.outvars], self.mesh
        types = [local_type(a, local_shape(s, at, mesh)) for a, s, at in zip(avals, equation.result_shapes, decision.results)]
        found = equation.known["recorded", id(form), id(decision), self.region.platform] = Recorded({}, types)
        return found

    def run(self, equation: Equation, form: Form, way: Hashable, axes: Sequence[Any], arrays: list[Array]) -> list[Array]:
        """Runs a form under the axes of its factors.

        Args:
            equation: The equation.
            form: Its form.
            way: What tells the axes from others.
            axes: The axes of each factor.
            arrays: The operands.
        """
        key = ("recorded", id(form), way, self.region.platform)
        known = equation.known.get(key)
        made = None if known is None else known.run(equation.eqn, arrays)
        if made is not None:
            return made
        usual = self.reading.settings_of(equation.eqn)
        local = Local(equation, form, [names(a) for a in axes], self._sizes, self.region.platform)
        with usual:
            made = form.run(local, arrays)
        only = local.only(arrays, made)
        if usual is _NOWHERE and only is not None:
            equation.known[key] = only
        return made

    def way(self, equation: Equation, form: Form, operands: Sequence[Held], scope: Scope | None) -> tuple[Form, Decision] | None:
        """How an equation runs, under which axes, and where its operands and results lie then.

        Args:
            equation: The equation.
            form: Its form.
            operands: Its operands.
            scope: Where it stands.

        Returns:
            The form, or one of its alternatives, and how it runs; None where results can be computed where they are needed, of operands
            that can be had anywhere.
        """
        trips, anywhere = self.region.trips, True
        key: list[Any] = [id(form)]
        for held in operands:
            if held.remake is None:
                at = next(iter(held.versions))
                if held.shape or at.unreduced:
                    anywhere = False
                key.append(at if len(held.versions) == 1 and not at.unreduced and trips == held.trips else held.state)
            else:
                key.append(held.state)
        if anywhere and self._is_remakable(equation, form):
            return None
        asks = self._asks.get(id(scope))
        for v, used in zip(equation.eqn.outvars, equation.used):
            if not used:
                key.append(())
            else:
                known = None if asks is None else asks.get(v)
                key.append(self.asked(v, scope) if known is None else known)
        found = equation.known.get(tuple(key))
        if found is None:
            found = equation.known[tuple(key)] = self._ways(equation, form, [held.state for held in operands], key[1 + len(operands) :])
        return found[min(self.ranks.get((id(scope), id(equation.eqn)), 0), len(found) - 1)] if self.ranks else found[0]

    def _ways(self, equation: Equation, form: Form, has: Sequence[Any], wanted: Sequence[Any]) -> list[tuple[Form, Decision]]:
        """Ways to run an equation, the cheapest first.

        Args:
            equation: The equation.
            form: Its form.
            has: The states of its operands.
            wanted: Where its results will be asked for.
        """
        operands = tuple([Tensor(s, bits_of(d), *state) for s, d, state in zip(equation.shapes, equation.dtypes, has, strict=True)])
        results = tuple(map(Tensor, equation.result_shapes, map(bits_of, equation.result_dtypes), wanted))
        found = [
            (way, decision)
            for way in (form, *form.alternatives)
            for decision in decide(way.rule, operands, results, self.mesh, way.combine, way.uneven, way.linear, way.moved, way.weight)
        ]
        return sorted(found, key=lambda one: one[1].cost)

    def asked(self, v: Any, scope: Scope | None) -> tuple[Layout, ...] | None:
        """Where a result will be asked for, as far as that is known."""
        asks = self._asks.get(id(scope))
        known = None if asks is None else asks.get(v)
        if known is not None:
            return known
        planned = None if self.start is Start.FORWARD else self.planned(v, scope)
        return FREE if planned is None else (planned,)

    def planned(self, v: Any, scope: Scope | None) -> Layout | None:
        """The layout that the plan gives a variable; None where it gives none, and for literals."""
        if scope is None or isinstance(v, Literal):
            return None
        value = scope.env.get(v)
        if value is None:
            return None
        return self.layout_of(value.sharding, len(getattr(v.aval, "shape", ())))

    def whole(self, equation: Equation, operands: Sequence[Held]) -> list[Held]:
        """Runs an equation as it is on every device; what that moves is a finding."""
        eqn = equation.eqn
        fix = "shard its operands otherwise, or call it on parts inside of sp.manual_computation"
        self.gathers(eqn, operands, "runs-whole", f"{equation.name} runs whole on every device", fix)
        arrays = [held.whole() for held in operands]
        with self.reading.settings_of(eqn):
            made = [None] * len(eqn.outvars) if self.region.dry else bind(eqn, arrays, eqn.params)
        return [self.result(x, v) for x, v in zip(made, eqn.outvars, strict=True)]

    def gathers(self, eqn: JaxprEqn, operands: Sequence[Held], kind: str, why: str, fix: str, severity: Severity | None = None) -> None:
        """Finds that an equation brings whole operands to every device, if it does; by default the bytes say how severe that is."""
        price = 0 if self.region.dry else sum(held.price(replicated(held.rank)) for held in operands)
        if price:
            message, where = f"{why}, which brings {format_bytes(price)} to each", locate(eqn.source_info)
            self.findings.append(Finding(kind, message, "", "" if where is None else where.place, severity or graded(price), price, fix))

    def unknown(self, eqn: JaxprEqn, operands: Sequence[Held], scope: Scope | None) -> list[Held]:
        """In a dry run, an equation whose handler cannot be run dry: whole operands, results as planned."""
        for held in operands:
            held.whole()
        out = []
        for v in eqn.outvars:
            shape = tuple(getattr(v.aval, "shape", ()))
            at = self.planned(v, scope) or replicated(len(shape))
            out.append(self.hold(None, at, shape, getattr(v.aval, "dtype", None)))
        return out

    def result(self, array: Array, v: Any) -> Held:
        """A result that every device has."""
        shape = tuple(getattr(v.aval, "shape", ()))
        return self.hold(array, replicated(len(shape)), shape, getattr(v.aval, "dtype", None))

    def arbitrary(self, shape: tuple[int, ...], dtype: Any) -> Held:
        """A value whose elements do not matter: it has none, or no result depends on them."""
        held = Held(self.region, shape, dtype, uses=2)
        held.remake = lambda target: None if self.region.dry else ops.full(local_shape(shape, target, self.mesh), 0, dtype)
        return held

    def _is_remakable(self, equation: Equation, form: Form) -> bool:
        """Whether results can be computed anywhere, as far as the equation is concerned."""
        return not (equation.eqn.effects or form.rule.reduction or form.moved is not None or not any(equation.result_shapes))

    def _remakable(self, equation: Equation, form: Form, operands: Sequence[Held], i: int) -> Held:
        """A result that is computed where it is needed, in the layout in which it is needed."""
        shape, dtype = equation.result_shapes[i], equation.result_dtypes[i]
        held = Held(self.region, shape, dtype, uses=2)
        eqn = equation.eqn

        def make(target: Layout) -> Array:
            key = ("remade", id(form), i, target)
            found = equation.known.get(key)
            if found is None:
                axes = self._axes_for(form, i, target, shape)
                placed = layouts_under(form.rule, axes)
                found = equation.known[key] = placed[len(operands) + i], axes, placed[: len(operands)]
            at, axes, layouts = found
            if self.region.dry:
                for operand, where in zip(operands, layouts, strict=True):
                    operand.get(where)
                return None
            with self.place(eqn):
                arrays = [operand.get(where) for operand, where in zip(operands, layouts, strict=True)]
                made = self.run(equation, form, (i, target), axes, arrays)[i]
                return made if at is target else moved(made, at, target, shape, self.mesh, self.region.platform)

        held.remake = make
        return held

    def _axes_for(self, form: Form, i: int, target: Layout, shape: tuple[int, ...]) -> tuple[Axes, ...]:
        """The axes of every factor under which a result comes out in a layout, or in one from which that can be sliced."""
        rule, mesh = form.rule, self.mesh
        axes: list[Axes] = [()] * rule.num_factors
        mapping = rule.result_mappings[i]
        for factor, sharding in project(mapping, target, rule.factor_sizes, mesh, True).factors.items() if mapping else ():
            if all(axis.is_full for axis in sharding.axes):
                axes[factor] = sharding.axes
        found = runnable(rule, axes, mesh, form.uneven, form.moved is not None)
        at = layouts_under(rule, found)[len(rule.operand_mappings) + i]
        is_sliced = all(move.kind == "all_slice" for move in moves(at, target, shape, mesh))
        return found if is_sliced else ((),) * rule.num_factors


_NOTHING = object()

_NOWHERE = contextlib.nullcontext()


def _plain(v: Literal) -> Any:
    """The value of a literal that does not remember the mesh it was traced under, which JAX would have it cast from at every use."""
    value, aval = v.val, cast(Any, v.aval)
    if not isinstance(value, np.ndarray) and not hasattr(value, "__array__"):
        return value
    plain = np.asarray(value)
    return value if aval.weak_type or plain.dtype != aval.dtype else plain


def _literal(v: Any) -> Any:
    """The value of a scalar that stands in the program."""
    if not isinstance(v, Literal) or getattr(v.aval, "shape", None) != ():
        return None
    return v.val.item() if hasattr(v.val, "item") else v.val


def runs_dry(handler: Handler) -> Handler:
    """Marks a handler that can be run dry, with None for arrays."""
    handler.runs_dry = True  # type: ignore[attr-defined]
    return handler
