"""Inlines the calls of a jaxpr."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var


def without_calls(closed: ClosedJaxpr) -> ClosedJaxpr:
    """A jaxpr whose calls of jitted functions, those of its own equations and theirs in turn, are replaced by what they call.

    Jaxprs that are called twice, or have constants, stay calls.
    """
    jaxpr = closed.jaxpr
    bodies = [eqn.params["jaxpr"] if eqn.primitive.name == "jit" else None for eqn in jaxpr.eqns]
    calls = Counter(id(body.jaxpr) for body in bodies if body is not None)
    inner = [None if body is None or body.consts or calls[id(body.jaxpr)] > 1 else body.jaxpr for body in bodies]
    if not any(inner):
        return closed
    now: dict[Var, Any] = {}
    eqns: list[JaxprEqn] = []
    defined: set[Any] = {*jaxpr.constvars, *jaxpr.invars}

    def use(v: Any) -> Any:
        return v if isinstance(v, Literal) else now.get(v, v)

    def run(inner_eqns: Sequence[JaxprEqn]) -> None:
        for eqn in inner_eqns:
            invars = list(map(use, eqn.invars))
            outvars = [Var(v.aval) if v in defined else v for v in eqn.outvars]  # bodies that were copied of one share variables
            now.update((v, out) for v, out in zip(eqn.outvars, outvars) if v is not out)
            defined.update(outvars)
            eqns.append(eqn.replace(invars=invars, outvars=outvars))

    for eqn, body in zip(jaxpr.eqns, inner, strict=True):
        if body is None:
            run([eqn])
        else:
            now.update(zip(body.invars, map(use, eqn.invars), strict=True))
            run(body.eqns)
            now.update(zip(eqn.outvars, map(use, body.outvars), strict=True))
    return without_calls(ClosedJaxpr(jaxpr.replace(eqns=eqns, outvars=list(map(use, jaxpr.outvars))), closed.consts))
