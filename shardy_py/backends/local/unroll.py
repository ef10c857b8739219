"""Unrolls scans the way JAX's lowering does, so that XLA's view of what is computed twice, or for nothing, is the region's too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax import lax
from jax.core import eval_jaxpr
from jax.extend.core import Jaxpr, JaxprEqn

from shardy_py.backends.local.tidy import Rewritten, everywhere, retraced, rewrite
from shardy_py.backends.rewriting import open_jaxpr
from shardy_py.frontends.loops import scan_counts


def unrolled(jaxpr: Jaxpr, sizes: Mapping[str, int]) -> Jaxpr:
    """Writes the copies of the bodies of unrolled scans out; a scan of one trip is its body.

    See `_scan_impl` in JAX: what is left over by the unrolled trips runs behind the loop, and no loop is left where one trip does all.

    Args:
        jaxpr: The jaxpr of a region.
        sizes: The axes of the region.
    """

    def run(body: Jaxpr) -> Jaxpr:
        return rewrite(body, lambda eqn: _unrolled(eqn, sizes) if eqn.primitive.name == "scan" else None)

    return everywhere(jaxpr, run)


def _unrolled(eqn: JaxprEqn, sizes: Mapping[str, int]) -> Rewritten | None:
    length, unroll, reverse = eqn.params["length"], eqn.params["unroll"], eqn.params["reverse"]
    body = open_jaxpr(eqn.params["jaxpr"])
    trips, rest = divmod(length, unroll) if unroll else (0, length)
    if trips == 1 and not rest:
        trips, rest = 0, length
    if body.constvars or not length or (unroll == 1 and trips):
        return None
    n_consts, n_carry = scan_counts(eqn)
    first_rest = 0 if reverse else trips * unroll
    first_main = rest if reverse else 0

    def run(*operands: Any) -> list[Any]:
        consts, carry, stacked = operands[:n_consts], list(operands[n_consts : n_consts + n_carry]), operands[n_consts + n_carry :]

        def copies(count: int, state: Sequence[Any], slices: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            made: list[list[Any]] = []
            state = list(state)
            for i in reversed(range(count)) if reverse else range(count):
                results = eval_jaxpr(body, (), *consts, *state, *(lax.index_in_dim(x, i, keepdims=False) for x in slices))
                state = results[:n_carry]
                made.append(results[n_carry:])
            if reverse:
                made.reverse()
            return state, [lax.concatenate([lax.expand_dims(y, (0,)) for y in ys], 0) for ys in zip(*made)]

        parts: list[list[Any]] = []
        if trips:
            main = [lax.slice_in_dim(x, first_main, first_main + trips * unroll) for x in stacked]
            blocks = [lax.reshape(x, (trips, unroll, *x.shape[1:])) for x in main]
            carry, ys = lax.scan(lambda state, slices: copies(unroll, state, slices), carry, blocks, length=trips, reverse=reverse)
            parts.append([lax.reshape(y, (trips * unroll, *y.shape[2:])) for y in ys])
        if rest:
            carry, ys = copies(rest, carry, [lax.slice_in_dim(x, first_rest, first_rest + rest) for x in stacked])
            parts.insert(0 if reverse else 1, ys)
        return [*carry, *(lax.concatenate(pieces, 0) for pieces in zip(*parts))]

    return retraced(run, eqn, sizes)
