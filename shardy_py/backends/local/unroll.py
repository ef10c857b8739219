"""Unrolls scans as JAX's lowering does, so that the region shows the equal and dead equations that XLA will see."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax import lax
from jax.extend.core import Jaxpr, JaxprEqn, Var
from jax.extend.source_info_util import new_name_stack

from shardy_py.backends.local.jaxpr_rewriting import (
    Atom,
    Rewritten,
    copy_equations,
    retraced,
    rewrite_by_name,
    sub_jaxpr,
)
from shardy_py.frontends.jaxprs import open_jaxpr, with_jaxpr
from shardy_py.frontends.loops import scan_counts


def unroll_scans(jaxpr: Jaxpr, sizes: Mapping[str, int]) -> Jaxpr:
    """Unrolls scans as their `unroll` says; replaces a scan of one trip by its body.

    See `_scan_impl` in JAX: what is left over by the unrolled trips runs behind the loop, and no loop is left where one trip does all.
    """
    return rewrite_by_name(jaxpr, sizes, {"scan": _unrolled})


def _unrolled(eqn: JaxprEqn, sizes: Mapping[str, int]) -> Rewritten | None:
    length, unroll, reverse = eqn.params["length"], eqn.params["unroll"], eqn.params["reverse"]
    body = open_jaxpr(eqn.params["jaxpr"])
    trips, rest = divmod(length, unroll) if unroll else (0, length)
    if trips == 1 and not rest:
        trips, rest = 0, length
    if body.constvars or not length or (unroll == 1 and trips):
        return None
    n_consts, n_carry = scan_counts(eqn)
    consts, carry, stacked = _divided(eqn.invars, n_consts, n_carry)
    eqns: list[JaxprEqn] = []
    parts: list[list[Atom]] = []
    if trips:
        start, stop = (rest, length) if reverse else (0, length - rest)
        cut, blocks = retraced(lambda *xs: [_blocks(lax.slice_in_dim(x, start, stop), trips) for x in xs], eqn, sizes, stacked)
        loop = _loop(eqn, trips, [*consts, *carry, *blocks], sizes)
        carry = list(loop.outvars[:n_carry])
        eqns += [*cut, loop]
        parts.append(list(loop.outvars[n_carry:]))
    if rest:
        tail, carry, ys = _copies(eqn, range(rest) if reverse else range(length - rest, length), consts, carry, stacked, sizes)
        eqns += tail
        parts.insert(0 if reverse else 1, ys)
    if not trips:
        return eqns, [*carry, *parts[0]]
    looped = len(parts) - 1 if reverse else 0
    joined, ys = _joined(eqn, parts, sizes, lambda y, i: lax.reshape(y, (trips * unroll, *y.shape[2:])) if i == looped else y)
    return [*eqns, *joined], [*carry, *ys]


def _divided(values: Sequence[Atom], n_consts: int, n_carry: int) -> tuple[list[Atom], list[Atom], list[Atom]]:
    """Constants, carries and scanned values."""
    return list(values[:n_consts]), list(values[n_consts : n_consts + n_carry]), list(values[n_consts + n_carry :])


def _blocks(x: Any, count: int) -> Any:
    return lax.reshape(x, (count, x.shape[0] // count, *x.shape[1:]))


def _loop(eqn: JaxprEqn, trips: int, operands: Sequence[Atom], sizes: Mapping[str, int]) -> JaxprEqn:
    """A scan over blocks of slices, whose body is the unrolled trips over a block.

    Args:
        eqn: The scan.
        trips: Number of blocks.
        operands: Its operands, with blocks in place of scanned values.
        sizes: The axes of the region.
    """
    n_consts, n_carry = scan_counts(eqn)
    count, body = eqn.params["unroll"], open_jaxpr(eqn.params["jaxpr"])
    arguments: list[Any] = [Var(v.aval) for v in body.invars[: n_consts + n_carry]]
    arguments += [Var(block.aval.update(shape=block.aval.shape[1:])) for block in operands[n_consts + n_carry :]]
    inside = eqn.replace(source_info=eqn.source_info.replace(name_stack=new_name_stack()))
    eqns, carry, ys = _copies(inside, range(count), *_divided(arguments, n_consts, n_carry), sizes)
    jaxpr = with_jaxpr(sub_jaxpr(body, eqns, arguments, [*carry, *ys]), eqn.params["jaxpr"])
    types: list[Any] = [v.aval for v in eqn.outvars]
    types[n_carry:] = [aval.update(shape=(trips, count, *aval.shape[1:])) for aval in types[n_carry:]]
    params = {**eqn.params, "jaxpr": jaxpr, "length": trips, "unroll": 1}
    return eqn.replace(invars=list(operands), outvars=list(map(Var, types)), params=params)


def _copies(
    eqn: JaxprEqn, trips: range, consts: Sequence[Atom], carry: Sequence[Atom], stacked: Sequence[Atom], sizes: Mapping[str, int]
) -> tuple[list[JaxprEqn], list[Atom], list[Atom]]:
    """Unrolled trips of a scan: the equations, the last carry, and the stacked results.

    Args:
        eqn: The scan.
        trips: The trips.
        consts: Its constants.
        carry: The initial carry.
        stacked: The scanned values.
        sizes: The axes of the region.
    """
    body, n_carry = open_jaxpr(eqn.params["jaxpr"]), len(carry)
    eqns, slices = retraced(lambda *xs: [lax.index_in_dim(x, i, keepdims=False) for i in trips for x in xs], eqn, sizes, stacked)
    stacked_rows: list[list[Atom]] = [[] for _ in trips]
    for i in reversed(range(len(trips))) if eqn.params["reverse"] else range(len(trips)):
        here = slices[i * len(stacked) : (i + 1) * len(stacked)]
        new, results = copy_equations(body, eqn, [*consts, *carry, *here])
        eqns += new
        carry, stacked_rows[i] = results[:n_carry], results[n_carry:]
    joined, ys = _joined(eqn, stacked_rows, sizes, lambda y, _: lax.expand_dims(y, (0,)))
    return [*eqns, *joined], list(carry), ys


def _joined(eqn: JaxprEqn, rows: Sequence[Sequence[Atom]], sizes: Mapping[str, int], shaped: Callable[[Any, int], Any]) -> Rewritten:
    """Concatenates each column of a table of values, after shaping them.

    Args:
        eqn: The scan.
        rows: Rows of equal length.
        sizes: The axes of the region.
        shaped: Shapes a value, given the number of its row.
    """
    count = len(rows[0])

    def run(*xs: Any) -> list[Any]:
        return [lax.concatenate([shaped(x, i) for i, x in enumerate(xs[k::count])], 0) for k in range(count)]

    return retraced(run, eqn, sizes, [x for row in rows for x in row]) if count else ([], [])
