"""Local rules of contractions."""

from __future__ import annotations

from jax import numpy as jnp

from shardy_py.backends.local.local_rule import Builder, Equation, Factors, LocalContext, LocalRule, is_inexact, make_rule


def dot_general(equation: Equation) -> LocalRule | None:
    """Batch and free dimensions pass through; contracted ones leave partial sums."""
    (lhs_contracted, rhs_contracted), (lhs_batch, rhs_batch) = equation.params["dimension_numbers"]
    lhs_shape, rhs_shape = equation.shapes
    factors = Factors()
    factor = factors.new
    lhs: dict[int, int] = {}
    rhs: dict[int, int] = {}
    out: list[int] = []
    for a, b in zip(lhs_batch, rhs_batch, strict=True):
        lhs[a] = rhs[b] = factor(lhs_shape[a])
        out.append(lhs[a])
    reduction = []
    for a, b in zip(lhs_contracted, rhs_contracted, strict=True):
        lhs[a] = rhs[b] = factor(lhs_shape[a])
        reduction.append(lhs[a])
    for shape, dims in ((lhs_shape, lhs), (rhs_shape, rhs)):
        for d, size in enumerate(shape):
            if d not in dims:
                dims[d] = factor(size)
                out.append(dims[d])
    rule = make_rule(factors.sizes, [[lhs[d] for d in sorted(lhs)], [rhs[d] for d in sorted(rhs)]], [out], reduction=reduction)

    def run(local: LocalContext, arrays: list) -> list:
        x, y = arrays
        for a, b in zip(lhs_contracted, rhs_contracted, strict=True):
            x = local.mask(x, a, lhs[a], 0)
            y = local.mask(y, b, rhs[b], 0)
        return local.bind(x, y)

    dtype = equation.result_dtypes[0]
    combine = "or" if dtype == jnp.bool_ else "add"  # a product of truth values is whether any pair is true
    linear = ((0,), (1,)) if is_inexact(dtype) else ()
    return LocalRule(rule, run, combine, frozenset(range(len(factors.sizes))), linear, weight=0.002)


LOCAL_RULES: dict[str, Builder] = {"dot_general": dot_general}
"""Primitive -> builder of its local rule."""
