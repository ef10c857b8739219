"""Equations that say where a value lies, and compute nothing."""

from __future__ import annotations

from jax.extend.core import JaxprEqn

from shardy_py.backends.local.held import Held
from shardy_py.backends.local.walk import Handler, Walker, runs_dry
from shardy_py.frontends.importer import Scope


@runs_dry
def constraint(walker: Walker, eqn: JaxprEqn, index: int, operands: list[Held], scope: Scope | None) -> list[Held]:
    """The value, in the planned layout."""
    (held,) = operands
    planned = walker.planned(eqn.outvars[0], scope)
    if planned is None or not held.shape:
        return [same(held)]
    made = Held(held.region, held.shape, held.dtype)
    made.versions = {planned: held.get(planned)}
    return [made]


def same(held: Held) -> Held:
    """The same value under another name."""
    made = Held(held.region, held.shape, held.dtype, uses=held.uses if held.uses > 1 else 0)
    made.versions, made.remake, made.asked = held.versions, held.remake, held.asked
    return made


@runs_dry
def identity(walker: Walker, eqn: JaxprEqn, index: int, operands: list[Held], scope: Scope | None) -> list[Held]:
    """The values as they are."""
    return [same(held) for held in operands]


HANDLERS: dict[str, Handler] = {
    "reshard": identity,
    "sdy_propagation_barrier": identity,
    "sdy_sharding_constraint": constraint,
    "sdy_sharding_group": identity,
    "sharding_constraint": constraint,
}
"""Primitive -> what runs it."""
