"""Local rules of reductions over dimensions."""

from __future__ import annotations

from shardy_py.backends.local.local_rule import Builder, Equation, LocalContext, LocalRule, identity_fill, make_rule

COMBINES = {
    "reduce_and": "and",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_or": "or",
    "reduce_prod": "mul",
    "reduce_sum": "add",
    "reduce_xor": "xor",
}


def reduction(equation: Equation) -> LocalRule | None:
    """Reduced dimensions may be sharded, and leave partial results."""
    (shape,) = equation.shapes
    axes = set(equation.params["axes"])
    combine = COMBINES[equation.name]
    rank = range(len(shape))
    rule = make_rule(shape, [rank], [[d for d in rank if d not in axes]], reduction=sorted(axes))
    fill = identity_fill(combine, equation.dtypes[0])

    def run(local: LocalContext, arrays: list) -> list:
        (x,) = arrays
        for d in sorted(axes):
            x = local.mask(x, d, d, fill)
        return local.bind(x)

    return LocalRule(rule, run, combine, uneven=frozenset(rank), linear=((0,),) if combine == "add" else ())


LOCAL_RULES: dict[str, Builder] = dict.fromkeys(COMBINES, reduction)
"""Primitive -> builder of its local rule."""
