"""Live equations of jaxprs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jax.extend.core import JaxprEqn, Literal, Var


def live_positions(
    eqns: Sequence[JaxprEqn], results: Iterable[Any], leaves: Iterable[Var] = (), *, keeps: Callable[[JaxprEqn], object] | None = None
) -> list[int]:
    """The positions of the equations that results depend on, in order.

    Args:
        eqns: The equations of a jaxpr.
        results: Variables and literals.
        leaves: Variables to stop at.
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
