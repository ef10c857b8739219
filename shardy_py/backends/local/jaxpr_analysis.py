"""Facts about the jaxprs of a region that no interpretation changes: local rules of equations, live equations, use counts."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from shardy_py.backends.local.local_rule import Builder, Equation, LocalRule
from shardy_py.dialect import Mesh
from shardy_py.frontends.context import current_settings, settings, trace_context, under_settings
from shardy_py.frontends.expansions import expansion_of
from shardy_py.frontends.importer import Scope
from shardy_py.frontends.jaxprs import bodies, live_positions, open_jaxpr
from shardy_py.frontends.lowered import lower_fragment
from shardy_py.frontends.transforms import abstract_argument
from shardy_py.ir.jax_calls import PLAIN_CALLS, body_parameter

NO_CONTEXT = contextlib.nullcontext()
"""The context of an equation that was traced under the current settings of JAX."""

_MISSING = object()

_REARRANGING = frozenset(("convert_element_type", "neg", "reshape", "squeeze", "transpose"))
"""Primitives that partial sums pass through on their way to where they are added."""

EquationCaches = dict[Any, dict[Any, Any]]
"""Signature of an equation -> its local rule and strategies."""

MAX_SHARED_CACHES = 1024
"""Equation caches that outlive a region, the latest ones, per configuration of JAX and mesh."""


@functools.lru_cache(maxsize=4)
def _caches_under(context: Hashable, mesh: Mesh) -> EquationCaches:
    """Caches of earlier regions; lowering a program again, as in a notebook, or a similar one starts from them."""
    return {}


def _is_plain(eqn: JaxprEqn) -> bool:
    """Whether an equation has no functions or jaxprs as parameters, and so keeps no arrays alive."""
    return not bodies(eqn) and not any(callable(value) and not isinstance(value, type) for value in eqn.params.values())


class JaxprAnalysis:
    """Facts about jaxprs that all interpreters of a region share: local rules of equations, live equations, use counts."""

    def __init__(self, local_rules: Mapping[str, Builder], handlers: Mapping[str, Any], mesh: Mesh, whole: Container[str] = ()) -> None:
        self.local_rules = local_rules
        self.handlers = handlers
        self._whole = whole
        self._settings = current_settings()
        self._equations: dict[int, Equation] = {}
        self._caches: EquationCaches = {}
        self._shared_caches = _caches_under(trace_context(), mesh)
        self._bodies: dict[tuple[int, str], ClosedJaxpr | None] = {}
        self._uses: dict[int, tuple[Jaxpr, dict[Var, int]]] = {}
        self._used: dict[int, tuple[bool, ...]] = {}
        self._live: dict[int, list[tuple[int, JaxprEqn]]] = {}
        self._steps: dict[int, list[Step]] = {}
        self._scopes: dict[int, Scope] = {}
        self._late: dict[int, list[Var]] = {}

    def settings_of(self, eqn: JaxprEqn) -> contextlib.AbstractContextManager[Any]:
        """A context with the settings of JAX under which the equation was traced, where they differ from the current ones."""
        return NO_CONTEXT if settings(eqn) == self._settings else under_settings(eqn)

    def equation(self, eqn: JaxprEqn) -> Equation:
        """The `Equation` of an equation, made once."""
        equation = self._equations.get(id(eqn))
        if equation is None:
            equation = self._equations[id(eqn)] = Equation(eqn, self._used.get(id(eqn)))
        return equation

    def local_rule(self, equation: Equation) -> LocalRule | None:
        """The local rule of an equation, or None if it has to run whole."""
        local_rule = equation.cache.get("local_rule", _MISSING)
        if local_rule is _MISSING:
            self._attach_cache(equation)
            local_rule = equation.cache["local_rule"]
        return local_rule

    def _attach_cache(self, equation: Equation) -> None:
        """Gives an equation the cache of its signature, which holds its local rule."""
        build = self.local_rules.get(equation.name)
        if build is None:
            equation.cache["local_rule"] = None
            return
        eqn = equation.eqn
        weak = tuple([getattr(v.aval, "weak_type", False) for v in eqn.outvars])
        types = (*equation.shapes, *equation.dtypes, weak)
        key = (build, equation.name, *equation.params.items(), types, tuple(map(_literal, eqn.invars)), equation.used, settings(eqn))
        try:
            cache = self._shared_caches.get(key) or self._caches.get(key)
        except TypeError as error:
            if "hash" not in str(error):
                raise
            key, cache = None, None
        if cache is None:
            with self.settings_of(eqn):
                cache = {"local_rule": build(equation)}
            if key is not None:
                shared = _is_plain(eqn)
                if shared and len(self._shared_caches) >= MAX_SHARED_CACHES:
                    self._shared_caches.pop(next(iter(self._shared_caches)), None)
                (self._shared_caches if shared else self._caches)[key] = cache
        equation.cache = cache

    def body(self, eqn: JaxprEqn, platform: str) -> ClosedJaxpr | None:
        """The jaxpr that JAX lowers an equation without a local rule by, such as a package's own primitive; None if it has to run whole."""
        key = id(eqn), platform
        if key not in self._bodies:
            self._bodies[key] = None if eqn.effects or eqn.primitive.name in self._whole else body_of(eqn, platform)
        return self._bodies[key]

    def scope(self, jaxpr: Jaxpr) -> Scope:
        """An empty scope for a jaxpr that was not planned, such as the body of a call with a rule; the same one for all interpreters."""
        scope = self._scopes.get(id(jaxpr))
        if scope is None:
            scope = self._scopes[id(jaxpr)] = Scope(jaxpr, {})
        return scope

    def uses(self, jaxpr: Jaxpr) -> dict[Var, int]:
        """Uses of each variable of a jaxpr by live equations and results."""
        entry = self._uses.get(id(jaxpr))
        if entry is None:
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
            entry = self._uses[id(jaxpr)] = (jaxpr, counts)
        return entry[1]

    def summed_late(self, jaxpr: Jaxpr, n_consts: int, n_carry: int) -> list[Var]:
        """The variables of a scan body whose only use is to be added to a carry: their sums over devices move behind the loop (`hoist`)."""
        late = self._late.get(id(jaxpr))
        if late is None:
            uses, terms = self.uses(jaxpr), list[Any]()
            sums: dict[Any, JaxprEqn] = {eqn.outvars[0]: eqn for eqn in jaxpr.eqns if eqn.primitive.name in ("add", "add_any")}
            carries: list[Any] = jaxpr.invars[n_consts : n_consts + n_carry]
            for carried, out in zip(carries, jaxpr.outvars):
                add = None if isinstance(out, Literal) else sums.get(out)
                if add is not None and carried in add.invars and uses.get(carried) == uses.get(add.outvars[0]) == 1:
                    terms += [v for v in add.invars if v is not carried]
            late = self._late[id(jaxpr)] = list(self._linear_in(jaxpr, terms)) if terms else []
        return late

    def _linear_in(self, jaxpr: Jaxpr, results: Iterable[Any]) -> Iterator[Var]:
        """Variables that have no other use than to be rearranged to one of these, in the bodies of calls too."""
        uses = self.uses(jaxpr)
        producers: dict[Any, JaxprEqn] = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
        for v in results:
            while not isinstance(v, Literal) and uses.get(v) == 1 and (eqn := producers.get(v)) is not None:
                yield v
                if eqn.primitive.name in PLAIN_CALLS:
                    body = open_jaxpr(eqn.params[body_parameter(eqn.params)])
                    yield from self._linear_in(body, [body.outvars[eqn.outvars.index(v)]])
                if eqn.primitive.name not in _REARRANGING:
                    break
                v = eqn.invars[0]

    def live(self, jaxpr: Jaxpr) -> list[tuple[int, JaxprEqn]]:
        """The equations of a jaxpr that a result depends on or that have effects, with their positions."""
        equations = self._live.get(id(jaxpr))
        if equations is None:
            live = live_positions(jaxpr.eqns, jaxpr.outvars, keeps=lambda eqn: eqn.effects or not eqn.outvars)
            equations = self._live[id(jaxpr)] = [(index, jaxpr.eqns[index]) for index in live]
        return equations

    def steps(self, jaxpr: Jaxpr) -> list[Step]:
        """The live equations of a jaxpr as steps, made once."""
        steps = self._steps.get(id(jaxpr))
        if steps is None:
            uses = self.uses(jaxpr)
            steps = self._steps[id(jaxpr)] = []
            for index, eqn in self.live(jaxpr):
                equation = self.equation(eqn) if eqn.primitive.name not in self.handlers else None
                literal = any(isinstance(v, Literal) for v in eqn.invars)
                steps.append((index, eqn, equation, eqn.invars, literal, [(v, uses.get(v, 0)) for v in eqn.outvars]))
        return steps


Step = tuple[int, JaxprEqn, Equation | None, Sequence[Any], bool, list[tuple[Var, int]]]
"""Position, equation, its `Equation` (None where it has a handler), operands, whether any is a literal, results with their uses."""


def _literal(v: Any) -> Any:
    """The value of a scalar literal, as a Python number where it is one; None for other atoms."""
    if not isinstance(v, Literal) or getattr(v.aval, "shape", None) != ():
        return None
    return v.val.item() if hasattr(v.val, "item") else v.val


def body_of(eqn: JaxprEqn, platform: str) -> ClosedJaxpr | None:
    """A jaxpr from the operands of an equation to its results.

    Returns:
        The function that the rule traces (`mlir.lower_fun`), or the operands themselves, where the rule hands them on. None for rules that
        write ops, and for arrays of other than numbers.
    """
    avals: list[Any] = [v.aval for v in (*eqn.invars, *eqn.outvars)]
    if not all(isinstance(getattr(aval, "dtype", None), np.dtype) for aval in avals):
        return None
    expansion = expansion_of(eqn, platform)
    return _handed_on(eqn, platform) if expansion is None else expansion.jaxpr


def _handed_on(eqn: JaxprEqn, platform: str) -> ClosedJaxpr | None:
    try:
        main = lower_fragment(eqn.primitive, eqn.params, [v.aval for v in eqn.invars], platform).main
    except Exception:  # whatever a lowering rule raises
        return None
    arguments, (last, *others) = main.body.arguments, reversed(main.body.ops)
    if others or any(value not in arguments for value in last.operands):
        return None
    order = [arguments.index(value) for value in last.operands]
    return jax.make_jaxpr(lambda *xs: [xs[i] for i in order])(*(abstract_argument(v.aval) for v in eqn.invars))
