"""Hoists collectives of loop invariants in front of the loop, and defers reductions of carried sums behind it.

XLA moves neither: an all-gather of a parameter that a scan uses runs on every trip, and gradients that are accumulated over microbatches
are reduced once for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax import lax
from jax import numpy as jnp
from jax.core import eval_jaxpr
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var
from jax.extend.source_info_util import current_name_stack, user_context

from shardy_py.backends.local.jaxpr_rewriting import (
    COLLECTIVES,
    Atom,
    Replacement,
    Rewritten,
    copy_equations,
    has_effects,
    is_pure,
    retraced,
    rewrite,
    rewrite_bodies,
    rewrite_by_name,
    sub_jaxpr,
)
from shardy_py.backends.local.local_rule import bind
from shardy_py.frontends.jaxprs import live_equations, open_jaxpr, with_jaxpr
from shardy_py.frontends.loops import scan_counts, with_more_consts

LARGEST_PARTIAL = 16 << 20
"""Bytes that a partial sum may take on each device while its reduce-scatter is deferred to the end of a loop."""

SMALL = 64 << 10
"""Bytes of each part up to which sums that a loop stacks are taken behind it, all at once."""

_REARRANGING = ("bitcast_convert_type", "reshape", "transpose")
"""Primitives that put the result of a collective in order."""


def hoist_collectives(jaxpr: Jaxpr, sizes: Mapping[str, int]) -> Jaxpr:
    """Hoists collectives that depend only on constants of a loop in front of it, from the innermost loop outwards."""
    return rewrite_by_name(jaxpr, sizes, _HOIST)


def _invariant(body: Jaxpr, consts: Sequence[Var]) -> tuple[list[JaxprEqn], list[Var]]:
    """The equations of a body that compute collectives of its constants, and the results of theirs that the rest of the body reads."""
    invariant: set[Any] = set(consts)
    pure_eqns = []
    for eqn in body.eqns:
        if is_pure(eqn) and all(isinstance(v, Literal) or v in invariant for v in eqn.invars):
            invariant.update(eqn.outvars)
            pure_eqns.append(eqn)
    gathered: dict[Any, None] = {}
    for eqn in pure_eqns:
        name = eqn.primitive.name
        if name in COLLECTIVES or (name in _REARRANGING and not isinstance(eqn.invars[0], Literal) and eqn.invars[0] in gathered):
            gathered.update(dict.fromkeys(eqn.outvars))
    hoisted_eqns = live_equations(pure_eqns, list(gathered), consts)
    if not hoisted_eqns:
        return [], []
    moved_ids = {id(eqn) for eqn in hoisted_eqns}
    moved_results = {v for eqn in hoisted_eqns for v in eqn.outvars}
    used: dict[Var, None] = {}
    for v in [v for eqn in body.eqns if id(eqn) not in moved_ids for v in eqn.invars] + list(body.outvars):
        if not isinstance(v, Literal) and v in moved_results:
            used[v] = None
    return hoisted_eqns, list(used)


def _split(body: Jaxpr, consts: Sequence[Var]) -> tuple[Jaxpr, Jaxpr] | None:
    """The part of a body to run before the loop, and the rest, which takes the results of the former as its first arguments."""
    if body.constvars:
        return None
    hoisted_eqns, values = _invariant(body, consts)
    if not hoisted_eqns:
        return None
    here = {id(eqn) for eqn in hoisted_eqns}
    rest = [eqn for eqn in body.eqns if id(eqn) not in here]
    return sub_jaxpr(body, hoisted_eqns, consts, values), sub_jaxpr(body, rest, [*values, *body.invars], body.outvars)


def _hoist_scan(eqn: JaxprEqn, sizes: Mapping[str, int]) -> Rewritten | None:
    n_consts, n_carry = scan_counts(eqn)
    body = open_jaxpr(eqn.params["jaxpr"])
    split = _split(body, body.invars[:n_consts])
    if split is None:
        return None
    before, rest = split
    placed = _in_place(eqn, n_consts, before, rest)
    if placed is not None:
        return placed

    def run(*operands: Any) -> list[Any]:
        consts = operands[:n_consts]
        ready = eval_jaxpr(before, (), *consts)
        return scan(eqn, lambda *xs: eval_jaxpr(rest, (), *ready, *consts, *xs), operands[n_consts:], n_carry)

    return retraced(run, eqn, sizes)


def _in_place(eqn: JaxprEqn, n_consts: int, before: Jaxpr, rest: Jaxpr) -> Rewritten | None:
    """The scan with hoisted code in const slots that only it read; None where constants would have to be added and cannot be."""
    values: list[Any] = rest.invars[: len(before.outvars)]
    arguments: list[Any] = rest.invars[len(values) :]
    used = _uses(rest)
    free = [i for i, v in enumerate(arguments[:n_consts]) if v not in used]
    new = max(len(values) - len(free), 0)
    params = with_more_consts(eqn.params, new) if new else eqn.params
    if params is None:
        return None
    hoisted_eqns, hoisted_results = copy_equations(before, eqn, eqn.invars[:n_consts])
    operands = list(eqn.invars)
    for i, value, now in zip(free, values[new:], hoisted_results[new:]):
        arguments[i], operands[i] = value, now
    body = sub_jaxpr(rest, rest.eqns, [*values[:new], *arguments], rest.outvars)
    params = {**params, "jaxpr": with_jaxpr(body, eqn.params["jaxpr"])}
    return [*hoisted_eqns, eqn.replace(invars=[*hoisted_results[:new], *operands], params=params)], list(eqn.outvars)


def scan(eqn: JaxprEqn, step: Callable[..., list[Any]], operands: Sequence[Any], n_carry: int) -> list[Any]:
    """Runs a scan with another body."""

    def body(carry: Any, slices: Any) -> Any:
        outputs = step(*carry, *slices)
        return outputs[:n_carry], outputs[n_carry:]

    params = eqn.params
    first, stacked = list(operands[:n_carry]), list(operands[n_carry:])
    last, ys = lax.scan(body, first, stacked, length=params["length"], reverse=params["reverse"], unroll=params["unroll"])
    return [*last, *ys]


def _hoist_while(eqn: JaxprEqn, sizes: Mapping[str, int]) -> Rewritten | None:
    """The loop with results of hoisted code as further constants of its condition and of its body."""
    before: list[JaxprEqn] = []
    operands, params, state = list[Any](), dict(eqn.params), list(eqn.invars)
    for part in ("cond", "body"):
        count, whole = params[f"{part}_nconsts"], open_jaxpr(params[f"{part}_jaxpr"])
        consts, state = state[:count], state[count:]
        split = _split(whole, whole.invars[:count])
        if split is not None:
            eqns, results = copy_equations(split[0], eqn, consts)
            before += eqns
            operands += results
            params[f"{part}_nconsts"] = count + len(results)
            params[f"{part}_jaxpr"] = with_jaxpr(split[1], params[f"{part}_jaxpr"])
        operands += consts
    return ([*before, eqn.replace(invars=[*operands, *state], params=params)], list(eqn.outvars)) if before else None


def sink_broadcasts(jaxpr: Jaxpr) -> Jaxpr:
    """Repeats broadcasts that are constants of a scan in its body, where they are part of what reads them.

    JAX moves masks and the like in front of a loop, where each would lie in memory as large as what it masks.
    """
    return rewrite_bodies(jaxpr, _with_broadcasts_sunk)


def _with_broadcasts_sunk(jaxpr: Jaxpr) -> Jaxpr:
    makers = {v: eqn for eqn in jaxpr.eqns if eqn.primitive.name == "broadcast_in_dim" for v in eqn.outvars}

    def sink(eqn: JaxprEqn) -> Rewritten | None:
        if eqn.primitive.name != "scan":
            return None
        operands, body = list[Any](eqn.invars), open_jaxpr(eqn.params["jaxpr"])
        arguments, repeated = list[Any](body.invars), list[JaxprEqn]()
        for i in range(scan_counts(eqn)[0]):
            while not isinstance(operands[i], Literal) and (maker := makers.get(operands[i])) is not None and len(maker.invars) == 1:
                operands[i], result, arguments[i] = maker.invars[0], arguments[i], Var(maker.invars[0].aval)
                repeated.insert(0, maker.replace(invars=[arguments[i]], outvars=[result]))
        inner = _with_broadcasts_sunk(sub_jaxpr(body, [*repeated, *body.eqns], arguments, body.outvars))
        params = {**eqn.params, "jaxpr": with_jaxpr(inner, eqn.params["jaxpr"])}
        return ([eqn.replace(invars=operands, params=params)], list(eqn.outvars)) if repeated else None

    return rewrite(jaxpr, sink)


_HOIST: dict[str, Replacement] = {"scan": _hoist_scan, "while": _hoist_while}


def defer_sums(jaxpr: Jaxpr, sizes: Mapping[str, int], largest: int = LARGEST_PARTIAL) -> Jaxpr:
    """Accumulates partial sums in the carry of a scan, and reduces them over devices once, behind the scan.

    Sums that a scan stacks are reduced behind it where they are small, and in nested loops, where an outer loop may accumulate them in
    turn: a scan over layers in one over microbatches reduces the gradients once.
    """

    def run(body: Jaxpr, small: float) -> Jaxpr:
        return rewrite(body, lambda eqn: _sum_late(eqn, sizes, largest, small) if eqn.primitive.name == "scan" else None)

    return rewrite_bodies(jaxpr, lambda body: run(body, math.inf), lambda body: run(body, SMALL))


@dataclass(frozen=True)
class _Sum:
    """A sum over devices that a scan adds to its carry, or stacks.

    Attributes:
        add: The addition to the carry; None where the sum is stacked.
        rest: The equations from `partial` to the new carry, or to the stacked value.
    """

    index: int
    add: JaxprEqn | None
    partial: Any
    rest: list[JaxprEqn]


def _sum_late(eqn: JaxprEqn, sizes: Mapping[str, int], largest: int, small: float) -> Rewritten | None:
    body = open_jaxpr(eqn.params["jaxpr"])
    if body.constvars or eqn.params["length"] < 2:
        return None
    n_consts, n_carry = scan_counts(eqn)
    sums = [*_sums(body, n_consts, n_carry, largest), *_stacked(body, n_carry, small)]
    if not sums:
        return None
    arguments: list[Any] = list(body.invars)
    outs: list[Any] = list(body.outvars)
    eqns = list(body.eqns)
    operands: list[Any] = list(eqn.invars)
    results: list[Any] = list(eqn.outvars)
    before: list[JaxprEqn] = []
    behind: list[tuple[int, Jaxpr, list[Atom]]] = []
    for s in sums:
        aval, (result,) = s.partial.aval, results[s.index : s.index + 1]
        if s.add is None:
            outs[s.index] = s.partial
            results[s.index] = Var(result.aval)
            behind.append((s.index, sub_jaxpr(body, s.rest, [s.partial], [body.outvars[s.index]]), [results[s.index]]))
            continue
        at = n_consts + s.index
        zeros, (start,) = retraced(lambda aval=aval: [jnp.zeros(aval.shape, aval.dtype)], eqn, sizes, [])
        tail = sub_jaxpr(body, s.rest, [body.invars[at], s.partial], [body.outvars[s.index]])
        arguments[at], outs[s.index], results[s.index] = Var(aval), Var(aval), Var(aval)
        behind.append((s.index, tail, [operands[at], results[s.index]]))
        before += zeros
        operands[at] = start
        add = s.add.replace(invars=[arguments[at], s.partial], outvars=[outs[s.index]])
        eqns = [add if e is s.add else e for e in eqns]
    inner = sub_jaxpr(body, live_equations(eqns, outs, keeps=has_effects), arguments, outs)
    loop = eqn.replace(invars=operands, outvars=results, params={**eqn.params, "jaxpr": with_jaxpr(inner, eqn.params["jaxpr"])})
    after: list[JaxprEqn] = []
    final: list[Atom] = list(results)
    for i, tail, tail_operands in behind:
        tail_eqns, (final[i],) = retraced(lambda *xs, tail=tail: _applied(tail, xs), eqn, sizes, tail_operands)
        after += tail_eqns
    return [*before, loop, *after], final


def _applied(jaxpr: Jaxpr, arrays: Sequence[Any]) -> list[Any]:
    """The results of equations that work along no dimension, so that arrays may be stacked."""
    env: dict[Any, Any] = dict(zip(jaxpr.invars, arrays, strict=True))
    for eqn in jaxpr.eqns:
        operands = [v.val if isinstance(v, Literal) else env[v] for v in eqn.invars]
        with user_context(eqn.source_info.traceback, name_stack=current_name_stack() + eqn.source_info.name_stack):
            env.update(zip(eqn.outvars, bind(eqn, operands, eqn.params), strict=True))
    return [v.val if isinstance(v, Literal) else env[v] for v in jaxpr.outvars]


def _stacked(body: Jaxpr, n_carry: int, small: float) -> list[_Sum]:
    """The sums of a scan body that are stacked and have no other use."""
    producers, uses = _producers(body), _uses(body)
    sums = []
    outs: list[Any] = body.outvars
    for i, out in enumerate(outs[n_carry:], n_carry):
        if isinstance(out, Literal) or uses[out] != 1:
            continue
        partial = _partial(out, producers, uses, out.aval.dtype)
        if partial is None or partial.aval.shape != out.aval.shape or math.prod(out.aval.shape) * out.aval.dtype.itemsize > small:
            continue
        sums.append(_Sum(i, None, partial, live_equations(body.eqns, [out], [partial])))
    return sums


def _producers(body: Jaxpr) -> dict[Var, JaxprEqn]:
    return {v: eqn for eqn in body.eqns for v in eqn.outvars}


def _uses(body: Jaxpr) -> dict[Var, int]:
    uses: dict[Var, int] = {}
    for v in [v for eqn in body.eqns for v in eqn.invars] + list(body.outvars):
        if not isinstance(v, Literal):
            uses[v] = uses.get(v, 0) + 1
    return uses


def _sums(body: Jaxpr, n_consts: int, n_carry: int, largest: int) -> list[_Sum]:
    producers, uses = _producers(body), _uses(body)
    arguments, outs = list[Any](body.invars), list[Any](body.outvars)
    sums = []
    for i in range(n_carry):
        carried, out = arguments[n_consts + i], outs[i]
        add = _producer(out, producers)
        if add is None or add.primitive.name not in ("add", "add_any") or not jnp.issubdtype(out.aval.dtype, jnp.inexact):
            continue
        read = _read(carried, body, uses)  # as the addition reads it
        if uses.get(carried) != 1 or uses.get(read) != 1 or uses.get(out) != 1 or read not in add.invars:
            continue
        term = next((v for v in add.invars if v is not read), None)
        if term is None or isinstance(term, Literal):
            continue
        partial = _partial(term, producers, uses, out.aval.dtype)
        if partial is None:
            continue
        scattered = math.prod(partial.aval.shape) > math.prod(out.aval.shape)
        if scattered and math.prod(partial.aval.shape) * partial.aval.dtype.itemsize > largest:
            continue
        sums.append(_Sum(i, add, partial, live_equations(body.eqns, [out], [carried, partial])))
    return sums


def _producer(v: Any, producers: Mapping[Var, JaxprEqn]) -> Any:
    return None if isinstance(v, Literal) else producers.get(v)


def _read(v: Any, body: Jaxpr, uses: Mapping[Var, int]) -> Any:
    """A variable, seen through a conversion that only makes its type strong."""
    if uses.get(v) == 1:
        for eqn in body.eqns:
            results = list[Any](eqn.outvars)
            if eqn.primitive.name == "convert_element_type" and eqn.invars[0] is v and results[0].aval.dtype == v.aval.dtype:
                return results[0]
    return v


def _partial(v: Any, producers: Mapping[Var, JaxprEqn], uses: Mapping[Var, int], dtype: Any) -> Any:
    """The partial sum that a value is the reduction of, in its type; None if it is no reduction, or the partial sum has other uses."""
    summed = False
    while not summed or v.aval.dtype != dtype:
        eqn = producers.get(v)
        if eqn is None or (not summed and uses[v] != 1):
            return None
        name = eqn.primitive.name
        if name in ("psum", "reduce_scatter") and not summed and len(eqn.invars) == 1:
            summed = True
        elif name != "convert_element_type":
            return None
        operand = eqn.invars[0]
        if isinstance(operand, Literal):
            return None
        v = operand
    return v
