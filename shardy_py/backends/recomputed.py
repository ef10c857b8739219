"""Scans whose bodies are run once more in the backward pass, as `jax.checkpoint` around a body does, in a jaxpr that is differentiated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain, compress, islice
from typing import Any, NamedTuple

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var, jaxpr_as_fun
from jax.interpreters import partial_eval

from shardy_py.backends.local.hoist import scan
from shardy_py.backends.local.jaxpr_rewriting import Rewritten, retraced, rewrite, rewrite_bodies, without_calls
from shardy_py.frontends.jaxprs import open_jaxpr
from shardy_py.frontends.locations import locate
from shardy_py.frontends.loops import scan_counts


class Recomputed(NamedTuple):
    """A jaxpr that keeps no residuals of scans."""

    jaxpr: ClosedJaxpr
    places: tuple[str, ...]


def recomputed(closed: ClosedJaxpr) -> Recomputed | None:
    """A jaxpr whose scans keep what they carry, in place of the residuals that another scan reads; None where none does.

    The derivative of a `jit` is a call for each pass, so that calls are put in their places where no pair of scans stands together.
    """
    return _recomputed(closed) or _recomputed(without_calls(closed))


def _recomputed(closed: ClosedJaxpr) -> Recomputed | None:
    places: list[str] = []

    def run(jaxpr: Jaxpr) -> Jaxpr:
        while (pair := _first_pair(jaxpr)) is not None:
            where = locate(pair.forward.source_info)
            places.append("" if where is None else where.place)
            jaxpr = _without_residuals(jaxpr, pair)
        return jaxpr

    jaxpr = rewrite_bodies(closed.jaxpr, run)
    return Recomputed(ClosedJaxpr(jaxpr, closed.consts), tuple(dict.fromkeys(places))) if places else None


class _Pair(NamedTuple):
    """A forward scan, the backward scan that reads its residuals, and the results that only the latter reads."""

    forward: JaxprEqn
    backward: JaxprEqn
    residuals: frozenset[int]


class _Parts(NamedTuple):
    """Constants, carries and slices among what belongs to the inputs of a scan."""

    consts: list[Any]
    carry: list[Any]
    slices: list[Any]


def _parts(eqn: JaxprEqn, values: Sequence[Any]) -> _Parts:
    consts, carry = scan_counts(eqn)
    return _Parts(list(values[:consts]), list(values[consts : consts + carry]), list(values[consts + carry :]))


def _first_pair(jaxpr: Jaxpr) -> _Pair | None:
    """The first pair of a scan and a reversed one that alone reads some of its stacked results, unless these are plain carries."""
    uses = Counter(v for eqn in jaxpr.eqns for v in eqn.invars if isinstance(v, Var))
    uses.update(v for v in jaxpr.outvars if isinstance(v, Var))
    scans = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan" and not eqn.effects]
    scans = [eqn for eqn in scans if not open_jaxpr(eqn.params["jaxpr"]).constvars]
    for i, forward in enumerate(scans):
        for backward in scans[i + 1 :]:
            is_opposite = backward.params["reverse"] != forward.params["reverse"]
            if not is_opposite or backward.params["length"] != forward.params["length"]:
                continue
            read = {v for v in _parts(backward, backward.invars).slices if isinstance(v, Var) and uses[v] == 1}
            _, carried = scan_counts(forward)
            residuals = frozenset(k for k, v in enumerate(forward.outvars) if k >= carried and v in read)
            body = open_jaxpr(forward.params["jaxpr"])
            if any(body.outvars[k] not in body.invars for k in residuals):
                return _Pair(forward, backward, residuals)
    return None


def _without_residuals(jaxpr: Jaxpr, pair: _Pair) -> Jaxpr:
    """Rewrites a pair of scans: the forward scan stacks its carries in place of residuals, and the backward scan recomputes these."""
    forward, backward = pair.forward, pair.backward
    forward_body, backward_body = open_jaxpr(forward.params["jaxpr"]), open_jaxpr(backward.params["jaxpr"])
    is_residual = [k in pair.residuals for k in range(len(forward_body.outvars))]
    recomputation, used = partial_eval.dce_jaxpr(forward_body, is_residual, instantiate=False)
    needed = _parts(forward, used)
    other_results = [k for k, of_backward in enumerate(is_residual) if not of_backward]
    forward_residuals = [forward.outvars[k] for k in sorted(pair.residuals)]
    residual_of_slice = [
        forward_residuals.index(v) if isinstance(v, Var) and v in forward_residuals else None
        for v in _parts(backward, backward.invars).slices
    ]
    sources: list[Any] = []  # of the residuals: constants, stacks of carries, slices

    def stack_carries(eqn: JaxprEqn) -> Rewritten:
        def run(*operands: Any) -> list[Any]:
            consts, carry, slices = _parts(eqn, operands)

            def step(*values: Any) -> list[Any]:
                results = jaxpr_as_fun(ClosedJaxpr(forward_body, ()))(*consts, *values)
                return [*(results[k] for k in other_results), *compress(values, needed.carry)]

            return scan(eqn, step, [*carry, *slices], len(carry))

        eqns, results = retraced(run, eqn, {})
        operands = _parts(eqn, eqn.invars)
        sources[:] = [
            list(compress(operands.consts, needed.consts)),
            list(results[len(other_results) :]),
            list(compress(operands.slices, needed.slices)),
        ]
        rest = dict(zip(other_results, results))
        return eqns, [rest.get(k, v) for k, v in enumerate(eqn.outvars)]

    def recompute_residuals(eqn: JaxprEqn) -> Rewritten:
        own = _parts(eqn, eqn.invars)
        other_slices = [v for v, number in zip(own.slices, residual_of_slice, strict=True) if number is None]
        groups = [own.consts, own.carry, other_slices, *sources]

        def run(*operands: Any) -> list[Any]:
            values = iter(operands)
            consts, carry, slices, before, stacks, stacked = (list(islice(values, len(group))) for group in groups)

            def step(*values: Any) -> list[Any]:
                now, values = values[: len(carry)], values[len(carry) :]
                rest = iter(values[: len(slices)])
                residuals = jaxpr_as_fun(ClosedJaxpr(recomputation, ()))(*before, *values[len(slices) :])
                scanned = (next(rest) if k is None else residuals[k] for k in residual_of_slice)
                return jaxpr_as_fun(ClosedJaxpr(backward_body, ()))(*consts, *now, *scanned)

            return scan(eqn, step, [*carry, *slices, *stacks, *stacked], len(carry))

        return retraced(run, eqn, {}, list(chain.from_iterable(groups)))

    def replace(eqn: JaxprEqn) -> Rewritten | None:
        if eqn.outvars == forward.outvars:
            return stack_carries(eqn)
        return recompute_residuals(eqn) if eqn.outvars == backward.outvars else None

    return rewrite(jaxpr, replace)
