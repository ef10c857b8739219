"""Scales sums over devices instead of the parts that each device adds to them, where the scaling is fused with the ops that read the sum.

A partial sum may pass through a scaling, and in `p - 0.1 * gradient` it does: the subtraction is the first op that needs the sum. It is
left alone then, which TPUs run slower than both ops together, and in front of a reduce-scatter a device scales more than its part.

The factor is a literal, or a scalar that is equal on the devices of the sum: it follows from arguments that their specs replicate, and from
other sums, along every axis.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from jax import numpy as jnp
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var
from jax.sharding import PartitionSpec

from shardy_py.backends.local import elementwise
from shardy_py.backends.local.jaxpr_rewriting import COLLECTIVES, Rewritten, axes_of, is_pure, rewrite, rewrite_bodies
from shardy_py.frontends.jaxprs import bodies, open_jaxpr
from shardy_py.frontends.loops import scan_counts

Axes = frozenset[str]


def scale_sums(jaxpr: Jaxpr, axes: Axes, specs: Sequence[PartitionSpec]) -> Jaxpr:
    """The jaxpr of a region with scalings behind the sums that are read by elementwise ops alone."""

    @functools.cache
    def varying() -> _Varying:
        cut = [frozenset(axis for dim in spec if dim for axis in (dim if isinstance(dim, tuple) else (dim,))) for spec in specs]
        varying = _Varying(axes)
        varying.results(jaxpr, cut or [axes] * len(jaxpr.invars))
        return varying

    return rewrite_bodies(jaxpr, lambda body: _scale_sums(body, varying))


class _Varying:
    """The axes along which the values of variables may differ between devices."""

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        self.of: dict[Any, Axes] = {}

    def along(self, v: Any) -> Axes:
        """The axes of an atom; all where nothing is proved."""
        return frozenset() if isinstance(v, Literal) else self.of.get(v, self.axes)

    def results(self, jaxpr: Jaxpr, arguments: Sequence[Axes]) -> list[Axes]:
        """The axes of the results of a jaxpr, given those of its arguments."""
        self.of.update((v, self.of.get(v, frozenset()) | own) for v, own in zip(jaxpr.invars, arguments, strict=True))
        for eqn in jaxpr.eqns:
            self.of.update(zip(eqn.outvars, self._outputs(eqn)))
        return list(map(self.along, jaxpr.outvars))

    def _outputs(self, eqn: JaxprEqn) -> Sequence[Axes]:
        name, operands = eqn.primitive.name, list(map(self.along, eqn.invars))
        inner = [open_jaxpr(body) for _, _, body in bodies(eqn)]
        if name in ("closed_call", "jit"):
            return self.results(inner[0], operands)
        if name == "cond":
            branches = zip(*(self.results(body, operands[1:]) for body in inner), strict=True)
            return [operands[0].union(*each) for each in branches]
        if name == "scan":
            n_consts, n_carry = scan_counts(eqn)
            carry, results = slice(n_consts, n_consts + n_carry), self.results(inner[0], operands)
            while (carried := [a | b for a, b in zip(operands[carry], results)]) != operands[carry]:
                operands[carry] = carried
                results = self.results(inner[0], operands)
            return results
        along: Axes = frozenset().union(*operands)
        if name in _TOTALS and eqn.params["axis_index_groups"] is None:
            along -= set(axes_of(eqn))
        elif name in COLLECTIVES or name == "axis_index" or not is_pure(eqn):
            along = self.axes
        return [along] * len(eqn.outvars)


_TOTALS = frozenset({"all_gather", "pmax", "pmin", "pmul", "psum"})
"""Collectives that leave the same on all devices."""


def _scale_sums(body: Jaxpr, varying: Callable[[], _Varying]) -> Jaxpr:
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
        while uses.get(part) == 1 and (at := _scaled(producers.get(part), frozenset(axes_of(eqn)), varying)) is not None:
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


def _scaled(eqn: JaxprEqn | None, axes: Axes, varying: Callable[[], _Varying]) -> int | None:
    """The operand that an equation scales by a number that is equal along axes, or None.

    None also for numbers of 16 bits or less, whose sums overflow.
    """
    if eqn is None or eqn.primitive.name not in ("div", "mul", "neg"):
        return None
    result: Any = eqn.outvars[0].aval
    operands: list[Any] = eqn.invars
    arrays = [i for i, v in enumerate(operands) if v.aval.shape or not axes.isdisjoint(varying().along(v))]
    if len(arrays) != 1 or (eqn.primitive.name == "div" and arrays[0]) or operands[arrays[0]].aval != result:
        return None
    return arrays[0] if jnp.issubdtype(result.dtype, jnp.inexact) and jnp.finfo(result.dtype).maxexp > 16 else None
