"""Fuses transpositions into products: reverse-mode differentiation writes a product and a transposition where one product does.

XLA folds the transposition into the product as well, but late: on CPU into one that none of its fast kernels takes.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from jax import lax
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from shardy_py.backends.local.jaxpr_rewriting import Rewritten, rewrite, rewrite_bodies


def transposed_products(jaxpr: Jaxpr) -> Jaxpr:
    """Rewrites `transpose(dot_general(a, b))` as `dot_general(b, a)` where they are equal, in bodies too."""
    return rewrite_bodies(jaxpr, _swapped)


def _swapped(jaxpr: Jaxpr) -> Jaxpr:
    uses = Counter(v for eqn in jaxpr.eqns for v in eqn.invars if not isinstance(v, Literal))
    uses.update(v for v in jaxpr.outvars if not isinstance(v, Literal))
    products: dict[Any, JaxprEqn] = {}
    gone: set[int] = set()

    def replace(eqn: JaxprEqn) -> Rewritten | None:
        if eqn.primitive.name == "dot_general":
            products[eqn.outvars[0]] = eqn
            return None
        operand: Any = eqn.invars[0] if eqn.primitive.name == "transpose" else None
        product = products.get(operand)
        if product is None or uses[operand] > 1 or not _is_swap(product, eqn.params["permutation"]):
            return None
        (contracting, batch), precision = product.params["dimension_numbers"], product.params["precision"]
        if isinstance(precision, lax.DotAlgorithm):  # it names each operand's precision
            return None
        params = {
            **product.params,
            "dimension_numbers": (contracting[::-1], batch[::-1]),
            "precision": precision[::-1] if isinstance(precision, tuple) else precision,
        }
        gone.add(id(product))
        out = Var(eqn.outvars[0].aval)
        return [product.replace(invars=product.invars[::-1], outvars=[out], params=params)], [out]

    rewritten = rewrite(jaxpr, replace)
    return rewritten if rewritten is jaxpr else rewritten.replace(eqns=[eqn for eqn in rewritten.eqns if id(eqn) not in gone])


def _is_swap(product: JaxprEqn, permutation: tuple[int, ...]) -> bool:
    """Whether a transposition of a product puts the dimensions of the second operand before those of the first."""
    ((contracted, _), (batch, _)) = product.params["dimension_numbers"]
    lhs: Any = product.invars[0].aval
    first = lhs.ndim - len(contracted)
    order = [*range(len(batch)), *range(first, len(permutation)), *range(len(batch), first)]
    return tuple(permutation) == tuple(order) and first < len(permutation) and first > len(batch)
