"""Jaxprs without calls: the equations of a program in one row, each with the line it comes from and its planned shardings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from shardy_py.dialect import TensorSharding
from shardy_py.frontends.jaxpr import Scope
from shardy_py.frontends.jaxprs import bodies, live_positions, open_jaxpr
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
    row = _Row()
    outs = row.walk(closed.jaxpr, closed.consts, closed.jaxpr.invars, scope, "")
    jaxpr = with_variables(closed.jaxpr, closed.jaxpr.invars, outs, constvars=row.constvars, eqns=row.eqns)
    flat = Scope(jaxpr, row.env, row.children)
    return FlatProgram(ClosedJaxpr(jaxpr, row.consts), flat, tuple(row.locations), tuple(in_shardings), tuple(out_shardings))


class _Row:
    def __init__(self) -> None:
        self.eqns: list[JaxprEqn] = []
        self.locations: list[str] = []
        self.constvars: list[Var] = []
        self.consts: list[Any] = []
        self.env: dict[Var, Any] = {}
        self.children: dict[int, list[Scope]] = {}

    def walk(self, jaxpr: Jaxpr, consts: Sequence[Any], operands: Sequence[Any], scope: Scope, location: str) -> list[Any]:
        now: dict[Any, Any] = dict(zip(jaxpr.invars, operands, strict=True))
        for v, atom in now.items():
            if v is atom:
                self._plan(v, v, scope)
        for v, const in zip(jaxpr.constvars, consts, strict=True):
            copy = now[v] = Var(v.aval)
            self.constvars.append(copy)
            self.consts.append(const)
            self._plan(copy, v, scope)

        def use(v: Any) -> Any:
            return v if isinstance(v, Literal) else now[v]

        for index, eqn in enumerate(jaxpr.eqns):
            place = locate(eqn.source_info)
            line = location if place is None else f"{place.file}:{place.line}"
            invars = [use(v) for v in eqn.invars]
            body = _callee(eqn, scope, index)
            if body is not None:
                inner, values, child = body
                now.update(zip(eqn.outvars, self.walk(inner, values, invars, child, line)))
                continue
            outs = [Var(v.aval) for v in eqn.outvars]
            for v, copy in zip(eqn.outvars, outs):
                now[v] = copy
                self._plan(copy, v, scope)
            if index in scope.children:
                self.children[len(self.eqns)] = scope.children[index]
            self.eqns.append(eqn.replace(invars=invars, outvars=outs))
            self.locations.append(line)
        return [use(v) for v in jaxpr.outvars]

    def _plan(self, copy: Var, v: Var, scope: Scope) -> None:
        value = scope.env.get(v)
        if value is not None:
            self.env[copy] = value


def _callee(eqn: JaxprEqn, scope: Scope, index: int) -> tuple[Jaxpr, Sequence[Any], Scope] | None:
    """The body of a call with its constants and its planned values; None for what is no call, or has shardings of its own."""
    if eqn.primitive.name not in CALLS:
        return None
    inner_bodies, children = bodies(eqn), scope.children.get(index, ())
    call_shardings = (*eqn.params.get("in_shardings", ()), *eqn.params.get("out_shardings", ()))
    if len(inner_bodies) != 1 or len(children) != 1 or any(isinstance(s, jax.sharding.Sharding) for s in call_shardings):
        return None
    body = inner_bodies[0][2]
    inner = open_jaxpr(body)
    if children[0].jaxpr is not inner or len(inner.invars) != len(eqn.invars):
        return None
    return inner, body.consts if isinstance(body, ClosedJaxpr) else (), children[0]


def single(eqn: JaxprEqn, like: Jaxpr) -> tuple[Jaxpr, list[Var]]:
    """The jaxpr of a single equation, and its distinct operands."""
    operands = list(dict.fromkeys(v for v in eqn.invars if not isinstance(v, Literal)))
    return with_variables(like, operands, eqn.outvars, constvars=[], eqns=[eqn]), operands


def element_types(eqn: JaxprEqn) -> Iterator[Any]:
    """The element types of all operands and results, those in bodies too."""
    for v in (*eqn.invars, *eqn.outvars):
        dtype = getattr(v.aval, "dtype", None)
        if dtype is not None:
            yield dtype
    for _, _, body in bodies(eqn):
        for inner in open_jaxpr(body).eqns:
            yield from element_types(inner)
