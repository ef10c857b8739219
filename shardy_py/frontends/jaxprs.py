"""Tools for jaxprs: the bodies that equations hold, equations that results depend on, equations on other operands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var


def bodies(eqn: JaxprEqn) -> list[tuple[str, int | None, Any]]:
    """The jaxprs among an equation's parameters: parameter name, place in a tuple, jaxpr."""
    result: list[tuple[str, int | None, Any]] = []
    for name, value in eqn.params.items():
        if name == "devices":  # of a partitioned call: it is never run
            continue
        if isinstance(value, (Jaxpr, ClosedJaxpr)):
            result.append((name, None, value))
        elif isinstance(value, tuple) and value and all(isinstance(v, (Jaxpr, ClosedJaxpr)) for v in value):
            result += [(name, i, v) for i, v in enumerate(value)]
    return result


def equations(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """The equations of a jaxpr, each before those of its bodies."""
    for eqn in jaxpr.eqns:
        yield eqn
        for *_, body in bodies(eqn):
            yield from equations(open_jaxpr(body))


def open_jaxpr(jaxpr: Any) -> Jaxpr:
    """The jaxpr without its constants."""
    return jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr


def with_jaxpr(jaxpr: Jaxpr, like: Any) -> Any:
    """Replaces the jaxpr of an equation's parameter, closed or not."""
    return ClosedJaxpr(jaxpr, like.consts) if isinstance(like, ClosedJaxpr) else jaxpr


def with_bodies(eqn: JaxprEqn, change: Callable[[int, Jaxpr], Jaxpr]) -> dict[str, Any]:
    """The parameters of an equation with other bodies.

    Args:
        change: Given the number of a body and the body, what takes its place.
    """
    params: dict[str, Any] = {}
    for number, (name, place, old) in enumerate(bodies(eqn)):
        new = change(number, open_jaxpr(old))
        if new is open_jaxpr(old):
            continue
        body = with_jaxpr(new, old)
        several = params.get(name, eqn.params[name])
        params[name] = body if place is None else (*several[:place], body, *several[place + 1 :])
    return {**eqn.params, **params} if params else eqn.params


def inlined(jaxpr: Jaxpr, operands: Sequence[Any], sourced: Callable[[Any], Any]) -> tuple[list[JaxprEqn], list[Any]]:
    """The equations of a jaxpr on other operands, with variables of their own, and their results."""
    copies: dict[Any, Any] = dict(zip(jaxpr.invars, operands, strict=True))

    def use(v: Any) -> Any:
        return v if isinstance(v, Literal) else copies[v]

    eqns = []
    for eqn in jaxpr.eqns:
        outs = [Var(v.aval) for v in eqn.outvars]
        eqns.append(eqn.replace(invars=list(map(use, eqn.invars)), outvars=outs, source_info=sourced(eqn.source_info)))
        copies.update(zip(eqn.outvars, outs))
    return eqns, list(map(use, jaxpr.outvars))


def live_positions(
    eqns: Sequence[JaxprEqn], results: Iterable[Any], leaves: Iterable[Var] = (), *, keeps: Callable[[JaxprEqn], object] | None = None
) -> list[int]:
    """The positions of the equations that results depend on, in order.

    Args:
        keeps: Whether an equation is needed besides, such as for its effects.
    """
    stop = set(leaves)
    needed = {v for v in results if not isinstance(v, Literal) and v not in stop}
    live: list[int] = []
    for position in reversed(range(len(eqns))):
        eqn = eqns[position]
        if not needed.isdisjoint(eqn.outvars) or (keeps is not None and keeps(eqn)):
            live.append(position)
            needed.update([v for v in eqn.invars if not isinstance(v, Literal) and v not in stop])
    live.reverse()
    return live


def live_equations(
    eqns: Sequence[JaxprEqn], results: Iterable[Any], leaves: Iterable[Var] = (), *, keeps: Callable[[JaxprEqn], object] | None = None
) -> list[JaxprEqn]:
    """The equations at `live_positions`."""
    return [eqns[position] for position in live_positions(eqns, results, leaves, keeps=keeps)]
