"""Local rules of elementwise primitives."""

from __future__ import annotations

import functools

import numpy as np
from jax.extend.core import Literal

from shardy_py.backends.local.local_rule import Builder, Equation, Factors, LocalRule, as_is, is_inexact, make_rule


def pointwise(equation: Equation) -> LocalRule | None:
    """Dimensions pass through; scalars, and dimensions of size 1 where others are larger, are replicated."""
    return _form(tuple(equation.shapes), tuple(equation.result_shapes), _linear(equation))


def _linear(equation: Equation) -> tuple[tuple[int, ...], ...]:
    name = equation.name
    floats = all(map(is_inexact, equation.result_dtypes))
    if name in _LINEAR_IN_ALL and floats:
        every = tuple(range(len(equation.shapes)))
        # Python's sum begins with 0, which each device can add to its part of a sum.
        others = tuple(i for i, v in enumerate(equation.eqn.invars) if not (isinstance(v, Literal) and not np.any(v.val)))
        return (every,) if others == every or not others else (every, others)
    if name == "mul" and floats:
        return ((0,), (1,))
    if name == "div" and floats:
        return ((0,),)
    if name == "convert_element_type" and floats and is_inexact(equation.dtypes[0]):
        return ((0,),) if equation.result_dtypes[0].itemsize >= equation.dtypes[0].itemsize else ()
    if name == "select_n" and floats:
        return (tuple(range(1, len(equation.shapes))),)
    return ()


_LINEAR_IN_ALL = frozenset({"add", "add_any", "sub", "neg", "agreed", "copy", "copy_p", "real", "imag", "conj", "name"})


Shapes = tuple[tuple[int, ...], ...]


@functools.lru_cache(maxsize=4096)
def _form(operand_shapes: Shapes, result_shapes: Shapes, linear: tuple[tuple[int, ...], ...]) -> LocalRule | None:
    shapes = (*operand_shapes, *result_shapes)
    rank = max(map(len, shapes))
    if any(len(shape) not in (0, rank) for shape in shapes):
        return None
    wide = tuple(max((shape[d] for shape in shapes if shape), key=lambda n: (n != 1, n)) for d in range(rank))
    factors = Factors(wide)
    operands, results = ([factors.matching(shape, range(rank)) for shape in side] for side in (operand_shapes, result_shapes))
    rule = make_rule(factors.sizes, operands, results, whole=factors.whole)
    return LocalRule(rule, as_is, uneven=frozenset(range(rank)), linear=linear)


POINTWISE = """
    abs acos acosh add add_any agreed and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz complex conj
    convert_element_type copy copy_p cos cosh digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igamma_grad_a
    igammac imag integer_pow is_finite le le_to lgamma log log1p log2 logistic lt lt_to max min mul mulhi multiple_of name ne neg
    nextafter not one_minus_square or polygamma polynomial population_count pow random_clone real reciprocal reduce_precision
    regularized_incomplete_beta rem round rsqrt
    select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh xor zeta
"""

LOCAL_RULES: dict[str, Builder] = dict.fromkeys(POINTWISE.split(), pointwise)
"""Primitive -> builder of its local rule."""
