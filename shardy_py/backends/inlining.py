"""Inlines the calls of a jaxpr."""

from __future__ import annotations

from collections import Counter
from typing import Any

from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from shardy_py.frontends.jaxprs import inlined


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
    now: dict[Any, Any] = {}
    eqns: list[JaxprEqn] = []
    for eqn, body in zip(jaxpr.eqns, inner, strict=True):
        operands = [v if isinstance(v, Literal) else now.get(v, v) for v in eqn.invars]
        if body is None:
            eqns.append(eqn.replace(invars=operands))
        else:
            copies, results = inlined(body, operands, lambda source: source)
            eqns += copies
            now.update(zip(eqn.outvars, results, strict=True))
    outvars = [v if isinstance(v, Literal) else now.get(v, v) for v in jaxpr.outvars]
    return without_calls(ClosedJaxpr(jaxpr.replace(eqns=eqns, outvars=outvars), closed.consts))
