"""Turns loop-invariant carries into constants of the loop, as XLA does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax import lax
from jax.core import eval_jaxpr
from jax.extend.core import Jaxpr, JaxprEqn, Literal

from shardy_py.backends.local.hoist import scan
from shardy_py.backends.local.jaxpr_rewriting import Atom, Replacement, Rewritten, retraced, rewrite_by_name
from shardy_py.frontends.jaxprs import open_jaxpr
from shardy_py.frontends.loops import scan_counts


def hoist_invariant_carries(jaxpr: Jaxpr, sizes: Mapping[str, int]) -> Jaxpr:
    """Turns carries that every trip returns unchanged into constants; removes a loop that has no others."""
    return rewrite_by_name(jaxpr, sizes, _HOIST)


def _invariant_carries(body: Jaxpr, n_consts: int, n_carry: int, operands: Sequence[Atom]) -> set[int]:
    """The carries that keep their initial value: each trip returns the carry itself, or an invariant of the same initial value.

    Args:
        body: The body of the loop, constants first.
        n_consts: Number of constants.
        n_carry: Number of carries.
        operands: Constants and initial carries of the loop.
    """
    invariant = set(range(n_carry))
    places: dict[Any, int] = {v: i for i, v in enumerate(body.invars[: n_consts + n_carry])}
    while True:
        left = set()
        for i in invariant:
            result: Any = body.outvars[i]
            place = None if isinstance(result, Literal) else places.get(result)
            if place is None or (place >= n_consts and place - n_consts not in invariant):
                continue
            if place == n_consts + i or operands[place] is operands[n_consts + i]:
                left.add(i)
        if left == invariant:
            return invariant
        invariant = left


def _scan(eqn: JaxprEqn, sizes: Mapping[str, int]) -> Rewritten | None:
    n_consts, n_carry = scan_counts(eqn)
    body = open_jaxpr(eqn.params["jaxpr"])
    invariant = _invariant_carries(body, n_consts, n_carry, eqn.invars)
    if not invariant or body.constvars:
        return None
    varying = [i for i in range(n_carry) if i not in invariant]

    def run(*operands: Any) -> list[Any]:
        consts, first, stacked = operands[:n_consts], operands[n_consts : n_consts + n_carry], operands[n_consts + n_carry :]

        def step(*arrays: Any) -> list[Any]:
            carry = _merged(first, varying, arrays[: len(varying)])
            outputs = eval_jaxpr(body, (), *consts, *carry, *arrays[len(varying) :])
            return [*(outputs[i] for i in varying), *outputs[n_carry:]]

        outputs = scan(eqn, step, [*(first[i] for i in varying), *stacked], len(varying))
        return [*_merged(first, varying, outputs[: len(varying)]), *outputs[len(varying) :]]

    return retraced(run, eqn, sizes)


def _while(eqn: JaxprEqn, sizes: Mapping[str, int]) -> Rewritten | None:
    params = eqn.params
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    cond, body = open_jaxpr(params["cond_jaxpr"]), open_jaxpr(params["body_jaxpr"])
    n_carry = len(body.outvars)
    invariant = _invariant_carries(body, n_body, n_carry, eqn.invars[n_cond:])
    if not invariant or cond.constvars or body.constvars:
        return None
    if len(invariant) == n_carry:  # no trip or endless ones
        return [], list(eqn.invars[n_cond + n_body :])
    varying = [i for i in range(n_carry) if i not in invariant]

    def run(*operands: Any) -> list[Any]:
        first = operands[n_cond + n_body :]

        def go_on(state: Any) -> Any:
            return eval_jaxpr(cond, (), *operands[:n_cond], *_merged(first, varying, state))[0]

        def step(state: Any) -> list[Any]:
            outputs = eval_jaxpr(body, (), *operands[n_cond : n_cond + n_body], *_merged(first, varying, state))
            return [outputs[i] for i in varying]

        return _merged(first, varying, lax.while_loop(go_on, step, [first[i] for i in varying]))

    return retraced(run, eqn, sizes)


def _merged(first: Sequence[Any], varying: Sequence[int], now: Sequence[Any]) -> list[Any]:
    """Current values of varying carries, initial values of invariant ones."""
    out = list(first)
    for i, value in zip(varying, now, strict=True):
        out[i] = value
    return out


_HOIST: dict[str, Replacement] = {"scan": _scan, "while": _while}
