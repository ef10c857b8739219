"""Sums that every device keeps its own part of."""

from __future__ import annotations

from jax import lax
from jax.extend.core import JaxprEqn

from shardy_py.backends.local import ops
from shardy_py.backends.local.form import block_index
from shardy_py.backends.local.held import Held
from shardy_py.backends.local.layouts import dim_axes, layout, names, ways
from shardy_py.backends.local.walk import Handler, Walker, runs_dry
from shardy_py.frontends.importer import Scope
from shardy_py.frontends.partial_sums import first_of


@runs_dry
def partial_sums(walker: Walker, eqn: JaxprEqn, index: int, operands: list[Held], scope: Scope | None) -> list[Held]:
    """What waits to be summed over the axes of the first dimension; what does not is on the first device along them."""
    (held,) = operands
    parts = eqn.params["parts"]
    region = held.region
    planned = walker.planned(eqn.outvars[0], scope)
    axes, *rest = dim_axes(planned) if planned is not None else ((), *(() for _ in held.shape))
    if ways(axes, region.mesh) != parts:
        axes = ()
    waiting = max(([a for a in version.unreduced if a in axes] for version in held.versions), key=len, default=[])
    at = layout(rest, waiting)
    known = at in held.asked
    x = held.get(at)
    if not known:  # What is wanted is all of the sums, should they wait the next time.
        del held.asked[at]
        held.asked[layout(rest, axes)] = None
    made = Held(region, (parts, *held.shape), held.dtype)
    if not region.dry:
        left = tuple(axis for axis in axes if axis not in waiting)
        if not axes:
            x = first_of(x, parts)
        else:
            x = ops.expand_dims(x, 0)
            if left:
                x = ops.select(lax.broadcast(block_index(names(left)) == 0, x.shape), x, ops.full_like(x, 0))
    made.versions = {layout((axes, *rest)): x}
    return [made]


HANDLERS: dict[str, Handler] = {"partial_sums": partial_sums}
"""Primitive -> what runs it."""
