"""Products whose partial sums a region carries through linear ops, to reduce them once, where they are fewest."""

from __future__ import annotations

import math

from shardy_py.cost.compute import PRODUCTS
from shardy_py.ir import Op, Program, Value

ALONE = frozenset(("stablehlo.transpose", "stablehlo.reshape", "stablehlo.negate"))
"""Ops of one operand that is a partial sum."""

TOGETHER = frozenset(("stablehlo.add", "stablehlo.subtract"))
"""Ops all of whose operands are partial sums over the same axes."""


def reduced_shares(program: Program) -> dict[Op, float]:
    """The part of the reduction of each product that is left if it is put off until something else reads the partial sums.

    A sum of products is reduced once, and a product of which only sums along dimensions are read is reduced behind them.
    """
    products: dict[Value, tuple[Op, ...]] = {}
    shares: dict[Op, float] = {}
    for op in program.walk():
        partial = [products[v] for v in op.operands if v in products and len(v.uses) == 1]
        if op.name in PRODUCTS:
            added: tuple[Op, ...] = (op,)
        elif _is_linear(op, len(partial)):
            added = tuple(product for each in partial for product in each)
        else:
            continue
        products[op.result] = added
        for product in added:
            share = math.prod(op.result.type.shape) / (len(added) * math.prod(product.result.type.shape))
            shares[product] = min(shares.get(product, 1.0), share)
    return shares


def _is_linear(op: Op, partial: int) -> bool:
    """Whether an op is linear in so many of its operands."""
    if op.name in TOGETHER:
        return partial == len(op.operands)
    return partial == 1 and (op.name in ALONE or op.name == "stablehlo.multiply" or op.primitive == "reduce_sum")
