"""Numbers of equations in their name stacks, which transformations of JAX keep: so the equations of a gradient say what they come from."""

from __future__ import annotations

import itertools
import re
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from shardy_py.ir.jax_calls import PLAIN_CALLS, body_parameter
from shardy_py.pipelines.jaxprs import closed

_SCOPE = "profile_equation="

_NUMBER = re.compile(re.escape(_SCOPE) + r"(\d+)")

_WITH_BODIES = PLAIN_CALLS | {"scan"}
"""Primitives that a line takes apart."""


def is_number(scope: str) -> bool:
    """Whether a scope of a name stack is the number of an equation."""
    return _NUMBER.fullmatch(scope) is not None


def numbers_in(stack: str) -> tuple[int, ...]:
    """The numbers of equations in a name stack, outermost first."""
    return tuple(map(int, _NUMBER.findall(stack)))


def numbered(traced: ClosedJaxpr) -> ClosedJaxpr:
    """The same function; every equation stands in a scope with a number of its own, and so do those of bodies that a line takes apart.

    Bodies that are one jaxpr stay one, so that JAX differentiates each once.
    """
    return traced.replace(jaxpr=_Numbering().jaxpr(traced.jaxpr))


class _Numbering:
    def __init__(self) -> None:
        self.numbers = itertools.count()
        self.bodies: dict[int, Any] = {}

    def jaxpr(self, jaxpr: Jaxpr) -> Jaxpr:
        return jaxpr.replace(eqns=[self.equation(eqn) for eqn in jaxpr.eqns])

    def equation(self, eqn: JaxprEqn) -> JaxprEqn:
        stack = eqn.source_info.name_stack.extend(f"{_SCOPE}{next(self.numbers)}")
        params = dict(eqn.params)
        if eqn.primitive.name in _WITH_BODIES:
            name = body_parameter(params)
            params[name] = self.body(params[name])
        return eqn.replace(source_info=eqn.source_info.replace(name_stack=stack), params=params)

    def body(self, body: Any) -> Any:
        if id(body) not in self.bodies:
            jaxpr = self.jaxpr(closed(body).jaxpr)
            self.bodies[id(body)] = body.replace(jaxpr=jaxpr) if isinstance(body, ClosedJaxpr) else jaxpr
        return self.bodies[id(body)]
