"""Taking calls and loops over layers apart, until a traced function is one list of equations."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence, Set
from typing import Any, Generic, TypeVar

import jax
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from shardy_py.frontends.loops import scan_counts
from shardy_py.ir.jax_calls import PLAIN_CALLS, body_parameter
from shardy_py.pipelines.jaxprs import Atom, closed, struct_of

UNROLLED_AT_MOST = 512
"""Steps of a loop over layers that are taken apart."""

Origin = TypeVar("Origin")


class Flattener(abc.ABC, Generic[Origin]):
    """Reads a jaxpr equation by equation, with the origin of each: where in the function it stands."""

    def __init__(self, calls: Set[str] = PLAIN_CALLS) -> None:
        self.calls = calls
        self.consts: dict[Var, Any] = {}

    @abc.abstractmethod
    def origin_of(self, eqn: JaxprEqn, outer: Origin) -> Origin:
        """The origin of an equation inside of a call or loop with an origin."""

    @abc.abstractmethod
    def emit(self, eqn: JaxprEqn, origin: Origin) -> None:
        """Takes an equation over the variables of the flat program."""

    @abc.abstractmethod
    def are_layers(self, xs: Sequence[Atom]) -> bool:
        """Whether a loop over slices of these values is one over layers."""

    def step_of(self, origin: Origin, number: int) -> Origin:
        """The origin of a step of a loop over layers, `number` steps after its first."""
        return origin

    def row(self, x: Atom, step: int, origin: Origin) -> Atom:
        """One row of a value that a loop reads."""
        return self.traced(row_of(step), [x], origin)

    def stacked(self, result: Atom, rows: Sequence[Atom]) -> None:
        """Takes note of a value that was stacked of rows."""

    def inline(self, jaxpr: Jaxpr, consts: Sequence[Any], arguments: Sequence[Atom], origin: Origin) -> list[Atom]:
        """Emits the equations of a jaxpr; gives its results."""
        env: dict[Var, Atom] = dict(zip(jaxpr.invars, arguments, strict=True))
        for v, value in zip(jaxpr.constvars, consts, strict=True):
            env[v] = value if isinstance(value, Var) else self.constant(v, value)
        for eqn in jaxpr.eqns:
            at = self.origin_of(eqn, origin)
            operands = [v if isinstance(v, Literal) else env[v] for v in eqn.invars]
            name = eqn.primitive.name
            if name in self.calls:
                body = closed(eqn.params[body_parameter(eqn.params)])
                results = self.inline(body.jaxpr, body.consts, operands, at)
            elif name == "scan" and self._is_over_layers(eqn, operands):
                results = self._unroll(eqn, operands, at)
            else:
                results = [Var(v.aval) for v in eqn.outvars]
                self.emit(eqn.replace(invars=operands, outvars=results), at)
            env.update(zip(eqn.outvars, results, strict=True))
        return [v if isinstance(v, Literal) else env[v] for v in jaxpr.outvars]

    def constant(self, like: Var, value: Any) -> Var:
        """The variable of a captured array."""
        v = Var(like.aval)
        self.consts[v] = value
        return v

    def traced(self, function: Callable[..., Any], operands: Sequence[Atom], origin: Origin) -> Atom:
        """Emits the equations of a function of these operands; gives its result."""
        body = jax.make_jaxpr(function)(*map(struct_of, operands))
        (result,) = self.inline(body.jaxpr, body.consts, list(operands), origin)
        return result

    def _is_over_layers(self, eqn: JaxprEqn, operands: list[Atom]) -> bool:
        consts, carried = scan_counts(eqn)
        return 0 < eqn.params["length"] <= UNROLLED_AT_MOST and self.are_layers(operands[consts + carried :])

    def _unroll(self, eqn: JaxprEqn, operands: list[Atom], origin: Origin) -> list[Atom]:
        consts, carried = scan_counts(eqn)
        length, body = eqn.params["length"], eqn.params["jaxpr"]
        fixed, carry, xs = operands[:consts], operands[consts : consts + carried], operands[consts + carried :]
        inner = [self.constant(v, value) for v, value in zip(body.jaxpr.constvars, body.consts)]
        columns: list[list[Atom]] = [[] for _ in body.jaxpr.outvars[carried:]]
        for number, step in enumerate(reversed(range(length)) if eqn.params["reverse"] else range(length)):
            at = self.step_of(origin, number)
            rows = [self.row(x, step, at) for x in xs]
            results = self.inline(body.jaxpr, inner, [*fixed, *carry, *rows], at)
            carry = results[:carried]
            for column, y in zip(columns, results[carried:]):
                column.append(y)
        whole: list[Atom] = []
        for column in columns:
            rows = column[::-1] if eqn.params["reverse"] else column
            whole.append(self.traced(_stack, rows, origin))
            self.stacked(whole[-1], rows)
        return [*carry, *whole]


def row_of(step: int) -> Callable[[Any], Any]:
    """The function that reads one row of an array."""
    return lambda x: jax.lax.index_in_dim(x, step, keepdims=False)


def _stack(*rows: Any) -> Any:
    return jax.numpy.stack(rows)
