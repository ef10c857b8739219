"""Scans whose bodies are run once more in the backward pass, as `jax.checkpoint` around a body does, in a jaxpr that is differentiated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var
from jax.interpreters import partial_eval

from shardy_py.backends.flat import with_variables
from shardy_py.backends.local.tidy import everywhere
from shardy_py.frontends.locations import locate


class Recomputed(NamedTuple):
    """A jaxpr that keeps no residuals of scans.

    Attributes:
        jaxpr: The jaxpr.
        places: `file:line` of the scans whose bodies it runs once more.
    """

    jaxpr: ClosedJaxpr
    places: tuple[str, ...]


def recomputed(closed: ClosedJaxpr) -> Recomputed | None:
    """A jaxpr whose scans keep what they carry, in place of the residuals that another scan reads; None where none does.

    Args:
        closed: A jaxpr that computes values and their derivatives.
    """
    places: list[str] = []

    def run(jaxpr: Jaxpr) -> Jaxpr:
        while (pair := _first_pair(jaxpr)) is not None:
            where = locate(jaxpr.eqns[pair.forward].source_info)
            places.append("" if where is None else where.place)
            jaxpr = _without_residuals(jaxpr, pair)
        return jaxpr

    jaxpr = everywhere(closed.jaxpr, run)
    return Recomputed(ClosedJaxpr(jaxpr, closed.consts), tuple(dict.fromkeys(places))) if places else None


class _Pair(NamedTuple):
    """A scan and the one that reads what it keeps, by their numbers, and which of the results of the former are read by the latter only."""

    forward: int
    backward: int
    residuals: tuple[int, ...]


class _Parts(NamedTuple):
    """Constants, carries and slices among the inputs of a scan."""

    consts: list[Any]
    carry: list[Any]
    slices: list[Any]


def _parts(eqn: JaxprEqn, values: Sequence[Any]) -> _Parts:
    first, second = eqn.params["num_consts"], eqn.params["num_consts"] + eqn.params["num_carry"]
    return _Parts(list(values[:first]), list(values[first:second]), list(values[second:]))


def _first_pair(jaxpr: Jaxpr) -> _Pair | None:
    """The first scan of which one that runs the other way reads results that nothing else reads, and which are not carries alone."""
    uses = Counter(v for eqn in jaxpr.eqns for v in eqn.invars if isinstance(v, Var))
    uses.update(v for v in jaxpr.outvars if isinstance(v, Var))
    scans = [i for i, eqn in enumerate(jaxpr.eqns) if eqn.primitive.name == "scan" and not eqn.effects and not eqn.params["jaxpr"].consts]
    for i in scans:
        forward = jaxpr.eqns[i]
        for j in scans:
            backward = jaxpr.eqns[j]
            turned = backward.params["reverse"] != forward.params["reverse"]
            if j <= i or not turned or backward.params["length"] != forward.params["length"]:
                continue
            read = {v for v in _parts(backward, backward.invars).slices if isinstance(v, Var) and uses[v] == 1}
            count = forward.params["num_carry"]
            residuals = tuple(k for k, v in enumerate(forward.outvars) if k >= count and v in read)
            body = forward.params["jaxpr"].jaxpr
            if any(body.outvars[k] not in body.invars for k in residuals):
                return _Pair(i, j, residuals)
    return None


def _without_residuals(jaxpr: Jaxpr, pair: _Pair) -> Jaxpr:
    forward, backward = jaxpr.eqns[pair.forward], jaxpr.eqns[pair.backward]
    body = forward.params["jaxpr"].jaxpr
    again, used = partial_eval.dce_jaxpr(body, [k in pair.residuals for k in range(len(body.outvars))], instantiate=False)
    inside, outside, needed = (_parts(forward, values) for values in (body.invars, forward.invars, used))
    consts = [(v, x) for v, x, use in zip(inside.consts, outside.consts, needed.consts) if use]
    carried = [v for v, use in zip(inside.carry, needed.carry) if use]
    sliced = [(v, x) for v, x, use in zip(inside.slices, outside.slices, needed.slices) if use]

    kept = [k for k in range(len(body.outvars)) if k not in pair.residuals]
    stacks = [Var(ShapedArray((forward.params["length"], *v.aval.shape), v.aval.dtype)) for v in carried]
    shorter = with_variables(body, body.invars, [*(body.outvars[k] for k in kept), *carried])
    shorter, _ = partial_eval.dce_jaxpr(shorter, [True] * len(shorter.outvars), instantiate=True)
    first = forward.replace(
        outvars=[*(forward.outvars[k] for k in kept), *stacks], params={**forward.params, "jaxpr": ClosedJaxpr(shorter, ())}
    )

    later = backward.params["jaxpr"].jaxpr
    own, theirs = _parts(backward, later.invars), _parts(backward, backward.invars)
    values = dict(zip((forward.outvars[k] for k in pair.residuals), again.outvars, strict=True))
    now = {v: values[x] for v, x in zip(own.slices, theirs.slices) if isinstance(x, Var) and x in values}
    rest = [(v, x) for v, x in zip(own.slices, theirs.slices) if v not in now]

    def use(v: Any) -> Any:
        return now.get(v, v) if isinstance(v, Var) else v

    eqns = [*again.eqns, *(eqn.replace(invars=list(map(use, eqn.invars))) for eqn in later.eqns)]
    longer = with_variables(
        later,
        [*(v for v, _ in consts), *own.consts, *own.carry, *carried, *(v for v, _ in (*sliced, *rest))],
        list(map(use, later.outvars)),
        eqns=eqns,
    )
    second = backward.replace(
        invars=[*(x for _, x in consts), *theirs.consts, *theirs.carry, *stacks, *(x for _, x in (*sliced, *rest))],
        params={**backward.params, "jaxpr": ClosedJaxpr(longer, ()), "num_consts": len(consts) + len(own.consts)},
    )
    changed = {pair.forward: first, pair.backward: second}
    return jaxpr.replace(eqns=[changed.get(i, eqn) for i, eqn in enumerate(jaxpr.eqns)])
