"""Which equations of a region are lowered where they stand.

JAX lowers an equation as a function of its own, which all that are alike call. A function that few call costs more than what is in it.
"""

from __future__ import annotations

from jax.extend.core import Jaxpr, Primitive, jaxprs_in_params

FEW = 3
"""Equations per function, up to which those of `SIMPLE` primitives are lowered in place: with a rule that builds one op, a function takes
two and a half times as long to make as what is in it, and to call it takes a quarter of that."""

SIMPLE = frozenset(
    """
    abs add add_any and broadcast_in_dim ceil concatenate convert_element_type copy cos div dot_general dynamic_slice dynamic_update_slice
    eq exp exp2 floor ge gt imag iota is_finite le log lt max min mul ne neg not or pad real reduce_max reduce_min reduce_sum rem reshape
    rev rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin slice sqrt squeeze sub tanh transpose xor
    """.split()
)
"""Primitives whose rules build an op or two."""


def seldom_alike(jaxpr: Jaxpr) -> list[Primitive]:
    """The primitives of a jaxpr, bodies included, few of whose equations are alike, in the order in which they are met.

    Args:
        jaxpr: What is to be lowered.
    """
    kinds: dict[Primitive, set[object]] = {}
    counts: dict[Primitive, int] = {}
    inner, seen = [jaxpr], {id(jaxpr)}
    for each in inner:
        for eqn in each.eqns:
            primitive = eqn.primitive
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
    return [p for p, count in counts.items() if count <= len(kinds[p]) * (FEW if p.name in SIMPLE else 1)]
