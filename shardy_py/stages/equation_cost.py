"""What equations cost: floating-point operations, bytes, seconds by the roofline of some hardware."""

from __future__ import annotations

import math
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, Literal, jaxprs_in_params

from shardy_py.cost.hardware import Hardware

MATRIX = frozenset({"dot_general", "conv_general_dilated"})
"""Primitives that run on matrix units."""


def bytes_of(v: Any) -> int:
    """Bytes of a variable or literal, on one device."""
    return math.prod(_shape(v)) * getattr(getattr(v.aval, "dtype", None), "itemsize", 4)


def flops(eqn: JaxprEqn) -> float:
    """Floating-point operations of an equation: 2mnk of a product, one per element of anything else, loops times their length."""
    inner = _inner(eqn)
    if inner:
        return sum(flops(each) for found in inner for each in found.eqns) * eqn.params.get("length", 1)
    out = float(sum(math.prod(_shape(v)) for v in eqn.outvars))
    if eqn.primitive.name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        shape = _shape(eqn.invars[0])
        return 2.0 * out * math.prod(shape[d] for d in contracted)
    if eqn.primitive.name == "conv_general_dilated":
        kernel = _shape(eqn.invars[1])
        return 2.0 * out * math.prod(kernel) / max(kernel[eqn.params["dimension_numbers"].rhs_spec[0]], 1)
    return out


def jaxpr_seconds(jaxpr: Jaxpr, hardware: Hardware) -> float:
    """Sum over equations, see `equation_seconds`."""
    return sum(equation_seconds(eqn, hardware) for eqn in jaxpr.eqns)


def equation_seconds(eqn: JaxprEqn, hardware: Hardware) -> float:
    """The longer of computing and of moving operands and results; of a call or a loop, that of the equations in it.

    Args:
        eqn: The equation.
        hardware: What runs it.

    Returns:
        Seconds. A loop of unknown length counts once, and of a `cond` all branches.
    """
    inner = _inner(eqn)
    if inner:
        return sum(jaxpr_seconds(found, hardware) for found in inner) * eqn.params.get("length", 1)
    moved = sum(bytes_of(v) for v in (*eqn.invars, *eqn.outvars) if not isinstance(v, Literal))
    result: Any = eqn.outvars[0].aval if eqn.outvars else None
    rate = hardware.matrix_flops(str(result.dtype)) if eqn.primitive.name in MATRIX else hardware.vector_flops
    return max(flops(eqn) / rate, moved / hardware.hbm_bandwidth)


def _shape(v: Any) -> tuple[int, ...]:
    return getattr(v.aval, "shape", ())


def _inner(eqn: JaxprEqn) -> list[Jaxpr]:
    return [getattr(found, "jaxpr", found) for found in jaxprs_in_params(eqn.params)]
