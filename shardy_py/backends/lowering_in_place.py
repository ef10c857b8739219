"""Which equations of a region are lowered where they stand, of those that JAX lowers.

JAX lowers an equation as a function of its own, which all that are alike call. One that is called once costs more than what is in it.
"""

from __future__ import annotations

from jax.extend.core import Jaxpr, Primitive, jaxprs_in_params

from shardy_py.backends.collective_ops import COLLECTIVES
from shardy_py.backends.single_ops import RULES


def never_alike(jaxpr: Jaxpr) -> list[Primitive]:
    """The primitives of a jaxpr, bodies included, no two of whose equations are alike, in the order in which they are met.

    Args:
        jaxpr: What is to be lowered.
    """
    kinds: dict[Primitive, set[object]] = {}
    counts: dict[Primitive, int] = {}
    inner, seen = [jaxpr], {id(jaxpr)}
    for each in inner:
        for eqn in each.eqns:
            primitive = eqn.primitive
            if primitive.name in RULES or primitive.name in COLLECTIVES:
                continue
            counts[primitive] = counts.get(primitive, 0) + 1
            key = tuple([v.aval for v in eqn.invars]), tuple(eqn.params.items())
            try:
                kinds.setdefault(primitive, set()).add(key)
            except TypeError:  # not hashable
                kinds[primitive].add(id(eqn))
            for body in jaxprs_in_params(eqn.params):
                if id(body) not in seen:
                    seen.add(id(body))
                    inner.append(body)
    return [p for p, count in counts.items() if count == len(kinds[p])]
