"""Jaxprs without calls: the equations of a program in one row, each with the line it comes from and its planned shardings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from shardy_py.dialect import TensorSharding
from shardy_py.frontends.jaxpr import Scope
from shardy_py.frontends.jaxprs import bodies, equations, inlined, live_positions, open_jaxpr
from shardy_py.frontends.locations import locate
from shardy_py.ir.jax_calls import CALLS


@dataclass(frozen=True)
class FlatProgram:
    """A jaxpr whose calls are inlined."""

    closed: ClosedJaxpr
    scope: Scope
    locations: tuple[str, ...]
    in_shardings: tuple[TensorSharding | None, ...]
    out_shardings: tuple[TensorSharding | None, ...]

    @property
    def jaxpr(self) -> Jaxpr:
        """The jaxpr without its constants."""
        return self.closed.jaxpr

    def sharding(self, v: Any) -> TensorSharding | None:
        """The planned sharding of a variable."""
        value = None if isinstance(v, Literal) else self.scope.env.get(v)
        return None if value is None else value.sharding

    def giving(self, more: Sequence[Var]) -> ClosedJaxpr:
        """The jaxpr with further outputs."""
        return ClosedJaxpr(with_variables(self.jaxpr, self.jaxpr.invars, [*self.jaxpr.outvars, *more]), self.closed.consts)

    def live(self) -> list[int]:
        """The equations that the outputs depend on."""
        return live_positions(self.jaxpr.eqns, self.jaxpr.outvars)


def with_variables(jaxpr: Jaxpr, invars: Sequence[Any], outvars: Sequence[Any], **changed: Any) -> Jaxpr:
    """The jaxpr with other inputs and outputs; their names are dropped from its debug information."""
    names = jaxpr.debug_info._replace(arg_names=None, result_paths=None)
    return jaxpr.replace(invars=list(invars), outvars=list(outvars), debug_info=names, **changed)


def flatten(
    closed: ClosedJaxpr,
    scope: Scope,
    in_shardings: Sequence[TensorSharding | None],
    out_shardings: Sequence[TensorSharding | None],
) -> FlatProgram:
    """Puts the bodies of calls in their places, under variables of their own."""
    flat = without_calls(scope, _is_inlined)
    places = (locate(eqn.source_info) for eqn in flat.jaxpr.eqns)
    locations = tuple("" if place is None else f"{place.file}:{place.line}" for place in places)
    return FlatProgram(ClosedJaxpr(flat.jaxpr, closed.consts), flat, locations, tuple(in_shardings), tuple(out_shardings))


def _is_inlined(eqn: JaxprEqn) -> bool:
    """Whether an equation is a call without shardings of its own."""
    shardings = (*eqn.params.get("in_shardings", ()), *eqn.params.get("out_shardings", ()))
    return eqn.primitive.name in CALLS and not any(isinstance(s, jax.sharding.Sharding) for s in shardings)


def without_calls(
    scope: Scope, is_inlined: Callable[[JaxprEqn], bool], expanded: Callable[[JaxprEqn], Sequence[JaxprEqn]] = lambda eqn: [eqn]
) -> Scope:
    """The scope with the bodies of calls, and what each other equation expands to, in their place."""
    eqns: list[JaxprEqn] = []
    env, children, renamed = dict(scope.env), dict[int, list[Scope]](), dict[Any, Any]()

    def use(atoms: Sequence[Any]) -> list[Any]:
        return [v if isinstance(v, Literal) else renamed.get(v, v) for v in atoms]

    for index, eqn in enumerate(scope.jaxpr.eqns):
        eqn, inside = eqn.replace(invars=use(eqn.invars)), scope.children.get(index, [])
        child = inside[0].jaxpr if len(inside) == 1 and is_inlined(eqn) else None
        if child is None or child.constvars or len(child.invars) != len(eqn.invars):
            if inside:
                children[len(eqns)] = inside
            eqns += expanded(eqn)
            continue
        inner, stack = without_calls(inside[0], is_inlined, expanded), eqn.source_info.name_stack
        copies, results = inlined(inner.jaxpr, eqn.invars, lambda source, s=stack: source.replace(name_stack=s + source.name_stack))
        for old, new in zip(inner.jaxpr.eqns, copies):
            env.update((w, inner.env[v]) for v, w in zip(old.outvars, new.outvars) if v in inner.env)
        children.update((len(eqns) + i, scopes) for i, scopes in inner.children.items())
        eqns += copies
        renamed.update(zip(eqn.outvars, results))
    return Scope(scope.jaxpr.replace(eqns=eqns, outvars=use(scope.jaxpr.outvars)), env, children)


def single(eqn: JaxprEqn, like: Jaxpr) -> tuple[Jaxpr, list[Var]]:
    """The jaxpr of a single equation, and its distinct operands."""
    operands = list(dict.fromkeys(v for v in eqn.invars if not isinstance(v, Literal)))
    return with_variables(like, operands, eqn.outvars, constvars=[], eqns=[eqn]), operands


def element_types(eqn: JaxprEqn) -> Iterator[Any]:
    """The element types of all operands and results, those in bodies too."""
    for each in (eqn, *(inner for *_, body in bodies(eqn) for inner in equations(open_jaxpr(body)))):
        avals: list[Any] = [v.aval for v in (*each.invars, *each.outvars)]
        yield from (aval.dtype for aval in avals if hasattr(aval, "dtype"))
