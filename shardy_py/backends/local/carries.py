"""What a loop carries without changing it stands in front of the loop, where XLA puts it too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax import lax
from jax.core import eval_jaxpr
from jax.extend.core import Jaxpr, JaxprEqn, Literal

from shardy_py.backends.local.hoist import scan
from shardy_py.backends.local.tidy import Atom, Rewritten, everywhere, retraced, rewrite
from shardy_py.backends.rewriting import open_jaxpr
from shardy_py.frontends.loops import scan_counts


def without_idle_carries(jaxpr: Jaxpr, sizes: Mapping[str, int]) -> Jaxpr:
    """Makes constants of values that every trip of a loop hands on as they are; a loop that only has such ones is gone.

    Args:
        jaxpr: The jaxpr of a region.
        sizes: The axes of the region.
    """

    def run(body: Jaxpr) -> Jaxpr:
        return rewrite(body, lambda eqn: _IDLE[eqn.primitive.name](eqn, sizes) if eqn.primitive.name in _IDLE else None)

    return everywhere(jaxpr, run)


def _idle(body: Jaxpr, n_consts: int, n_carry: int, operands: Sequence[Atom]) -> set[int]:
    """The carries that keep their first value: each trip gives the carry itself, or what has the same first value and keeps it too.

    Args:
        body: The body of the loop, constants first.
        n_consts: How many it has.
        n_carry: How many values are carried.
        operands: Constants and first carries, where the loop stands.
    """
    idle = set(range(n_carry))
    places: dict[Any, int] = {v: i for i, v in enumerate(body.invars[: n_consts + n_carry])}
    while True:
        left = set()
        for i in idle:
            result: Any = body.outvars[i]
            place = None if isinstance(result, Literal) else places.get(result)
            if place is None or (place >= n_consts and place - n_consts not in idle):
                continue
            if place == n_consts + i or operands[place] is operands[n_consts + i]:
                left.add(i)
        if left == idle:
            return idle
        idle = left


def _scan(eqn: JaxprEqn, sizes: Mapping[str, int]) -> Rewritten | None:
    n_consts, n_carry = scan_counts(eqn)
    body = open_jaxpr(eqn.params["jaxpr"])
    idle = _idle(body, n_consts, n_carry, eqn.invars)
    if not idle or body.constvars:
        return None
    busy = [i for i in range(n_carry) if i not in idle]

    def run(*operands: Any) -> list[Any]:
        consts, first, stacked = operands[:n_consts], operands[n_consts : n_consts + n_carry], operands[n_consts + n_carry :]

        def step(*arrays: Any) -> list[Any]:
            carry = _merged(first, busy, arrays[: len(busy)])
            outputs = eval_jaxpr(body, (), *consts, *carry, *arrays[len(busy) :])
            return [*(outputs[i] for i in busy), *outputs[n_carry:]]

        outputs = scan(eqn, step, [*(first[i] for i in busy), *stacked], len(busy))
        return [*_merged(first, busy, outputs[: len(busy)]), *outputs[len(busy) :]]

    return retraced(run, eqn, sizes)


def _while(eqn: JaxprEqn, sizes: Mapping[str, int]) -> Rewritten | None:
    params = eqn.params
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    cond, body = open_jaxpr(params["cond_jaxpr"]), open_jaxpr(params["body_jaxpr"])
    n_carry = len(body.outvars)
    idle = _idle(body, n_body, n_carry, eqn.invars[n_cond:])
    if not idle or cond.constvars or body.constvars:
        return None
    if len(idle) == n_carry:  # no trip or endless ones
        return [], list(eqn.invars[n_cond + n_body :])
    busy = [i for i in range(n_carry) if i not in idle]

    def run(*operands: Any) -> list[Any]:
        first = operands[n_cond + n_body :]

        def go_on(state: Any) -> Any:
            return eval_jaxpr(cond, (), *operands[:n_cond], *_merged(first, busy, state))[0]

        def step(state: Any) -> list[Any]:
            outputs = eval_jaxpr(body, (), *operands[n_cond : n_cond + n_body], *_merged(first, busy, state))
            return [outputs[i] for i in busy]

        return _merged(first, busy, lax.while_loop(go_on, step, [first[i] for i in busy]))

    return retraced(run, eqn, sizes)


def _merged(first: Sequence[Any], busy: Sequence[int], now: Sequence[Any]) -> list[Any]:
    """All carries: those that change as they are now, the others as they were first."""
    out = list(first)
    for i, value in zip(busy, now, strict=True):
        out[i] = value
    return out


_IDLE = {"scan": _scan, "while": _while}
