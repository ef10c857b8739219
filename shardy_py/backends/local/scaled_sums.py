"""Scales sums over devices instead of the parts that each device adds to them, where the scaling is fused with the ops that read the sum.

A partial sum may pass through a scaling, and in `p - 0.1 * gradient` it does: the subtraction is the first op that needs the sum. It is
left alone then, which TPUs run slower than both ops together, and in front of a reduce-scatter a device scales more than its part.
"""

from __future__ import annotations

from typing import Any

from jax import numpy as jnp
from jax.extend.core import Jaxpr, JaxprEqn, Var

from shardy_py.backends.local import elementwise
from shardy_py.backends.local.jaxpr_rewriting import Rewritten, rewrite, rewrite_bodies


def scale_sums(jaxpr: Jaxpr) -> Jaxpr:
    """The jaxpr of a region with scalings behind the sums that are read by elementwise ops alone."""
    return rewrite_bodies(jaxpr, _scale_sums)


def _scale_sums(body: Jaxpr) -> Jaxpr:
    producers: dict[Any, JaxprEqn] = {v: eqn for eqn in body.eqns for v in eqn.outvars}
    unfused = {v for v in body.outvars if isinstance(v, Var)}
    uses: dict[Any, int] = dict.fromkeys(unfused, 1)
    for eqn in body.eqns:
        for v in eqn.invars:
            if isinstance(v, Var):
                uses[v] = uses.get(v, 0) + 1
                if eqn.primitive.name not in elementwise.LOCAL_RULES:
                    unfused.add(v)

    def replace(eqn: JaxprEqn) -> Rewritten | None:
        if eqn.primitive.name not in ("psum", "reduce_scatter") or len(eqn.invars) != 1 or eqn.outvars[0] in unfused:
            return None
        (part,), scalings = eqn.invars, []
        while uses.get(part) == 1 and (at := _scaled(producers.get(part))) is not None:
            scalings.append((producers[part], at))
            part = producers[part].invars[at]
        if not scalings:
            return None
        (total,) = eqn.outvars
        results = [Var(total.aval) for _ in scalings]
        eqns = [eqn.replace(invars=[part], outvars=results[:1])]
        for (scaling, at), source, result in zip(reversed(scalings), results, [*results[1:], total], strict=True):
            operands = [source if i == at else v for i, v in enumerate(scaling.invars)]
            eqns.append(scaling.replace(invars=operands, outvars=[result]))
        return eqns, [total]

    return rewrite(body, replace)


def _scaled(eqn: JaxprEqn | None) -> int | None:
    """The operand that an equation scales by a number; None where it does not, and for numbers of 16 bits or less whose sums overflow."""
    if eqn is None or eqn.primitive.name not in ("div", "mul", "neg"):
        return None
    result: Any = eqn.outvars[0].aval
    arrays = [i for i, v in enumerate(eqn.invars) if isinstance(v, Var)]
    if len(arrays) != 1 or (eqn.primitive.name == "div" and arrays[0]) or eqn.invars[arrays[0]].aval != result:
        return None
    return arrays[0] if jnp.issubdtype(result.dtype, jnp.inexact) and jnp.finfo(result.dtype).maxexp > 16 else None
