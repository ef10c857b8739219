"""Jaxprs equivalent to an equation, by JAX's lowering rule: for primitives of other packages, which no table lists."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn

from shardy_py.frontends.expansions import expansion_of
from shardy_py.frontends.lowered import lower_fragment
from shardy_py.frontends.transforms import abstract_argument


def body_of(eqn: JaxprEqn, platform: str) -> ClosedJaxpr | None:
    """A jaxpr from the operands of an equation to its results.

    Returns:
        The function that the rule traces (`mlir.lower_fun`), or the operands themselves, where the rule hands them on. None for rules that
        write ops, and for arrays of other than numbers.
    """
    avals: list[Any] = [v.aval for v in (*eqn.invars, *eqn.outvars)]
    if not all(isinstance(getattr(aval, "dtype", None), np.dtype) for aval in avals):
        return None
    expansion = expansion_of(eqn, platform)
    return _handed_on(eqn, platform) if expansion is None else expansion.jaxpr


def _handed_on(eqn: JaxprEqn, platform: str) -> ClosedJaxpr | None:
    try:
        main = lower_fragment(eqn.primitive, eqn.params, [v.aval for v in eqn.invars], platform).main
    except Exception:  # whatever a lowering rule raises
        return None
    arguments, (last, *others) = main.body.arguments, reversed(main.body.ops)
    if others or any(value not in arguments for value in last.operands):
        return None
    order = [arguments.index(value) for value in last.operands]
    return jax.make_jaxpr(lambda *xs: [xs[i] for i in order])(*(abstract_argument(v.aval) for v in eqn.invars))
