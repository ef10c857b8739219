"""A traced function as a line of equations, each with its scope and its step of a loop over layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from shardy_py.frontends.loops import scan_counts

Atom = Any
"""A `Var` or a `Literal`."""

# Calls that have no derivative rule of their own, which inlining would lose.
INLINED = {"jit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat2": "jaxpr", "checkpoint": "jaxpr"}

# Steps of a loop over layers that are taken apart.
UNROLLED_AT_MOST = 512

_TRANSFORMED = re.compile(r"\w+\(([^()]*)\)")


@dataclass(frozen=True)
class Step:
    """One equation.

    Attributes:
        eqn: Over the variables of the line.
        scope: Its named scopes, outermost first.
        layer: The step of every loop over layers that it is in, outermost first.
    """

    eqn: JaxprEqn
    scope: tuple[str, ...]
    layer: tuple[int, ...]


@dataclass(frozen=True)
class Line:
    """A function as equations in order.

    Attributes:
        invars: Inputs.
        outvars: Results, variables or literals.
        steps: The equations whose results are used.
        consts: Captured arrays by their variable.
        slices: Parameters of one layer that a loop reads from stacked ones, and which row of what they are.
    """

    invars: tuple[Var, ...]
    outvars: tuple[Atom, ...]
    steps: tuple[Step, ...]
    consts: dict[Var, Any]
    slices: dict[Var, tuple[Var, int]]


def line_of(closed: ClosedJaxpr, parameters: Sequence[bool]) -> Line:
    """Takes calls and loops over layers apart; rules for derivatives stay whole.

    Args:
        closed: The jaxpr.
        parameters: For every input whether it holds parameters. A loop over slices of some is one over layers.
    """
    walker = _Walker()
    invars = [Var(v.aval) for v in closed.jaxpr.invars]
    walker.weights.update(v for v, flag in zip(invars, parameters) if flag)
    out = walker.body(closed.jaxpr, closed.consts, invars, (), ())
    needed = {v for v in out if isinstance(v, Var)}
    kept: list[Step] = []
    for step in reversed(walker.steps):
        if step.eqn.effects or any(v in needed for v in step.eqn.outvars):
            kept.append(step)
            needed.update(v for v in step.eqn.invars if isinstance(v, Var))
    return Line(tuple(invars), tuple(out), tuple(reversed(kept)), walker.consts, walker.slices)


def row_equations(row: Var, whole: Var, step: int) -> list[JaxprEqn]:
    """Equations that read one row of stacked parameters, which a line leaves out."""
    jaxpr = jax.make_jaxpr(_slice(step))(struct_of(whole)).jaxpr
    known: dict[Var, Var] = {jaxpr.invars[0]: whole, jaxpr.outvars[0]: row}
    made = [known.setdefault(v, Var(v.aval)) for eqn in jaxpr.eqns for v in eqn.outvars]
    assert row in made
    return [
        eqn.replace(invars=[v if isinstance(v, Literal) else known[v] for v in eqn.invars], outvars=[known[v] for v in eqn.outvars])
        for eqn in jaxpr.eqns
    ]


def struct_of(v: Any) -> jax.ShapeDtypeStruct:
    """The type of a variable as JAX takes it for an argument."""
    return jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=getattr(v.aval, "weak_type", False))


class _Walker:
    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.consts: dict[Var, Any] = {}
        self.slices: dict[Var, tuple[Var, int]] = {}
        self.weights: set[Var] = set()

    def body(
        self, jaxpr: Jaxpr, consts: Sequence[Any], arguments: Sequence[Atom], scope: tuple[str, ...], layer: tuple[int, ...]
    ) -> list[Atom]:
        env: dict[Var, Atom] = dict(zip(jaxpr.invars, arguments, strict=True))
        for v, value in zip(jaxpr.constvars, consts, strict=True):
            env[v] = value if isinstance(value, Var) else self.constant(v, value)
        for eqn in jaxpr.eqns:
            here = scope + _scopes(str(eqn.source_info.name_stack))
            operands = [v if isinstance(v, Literal) else env[v] for v in eqn.invars]
            name = eqn.primitive.name
            if name in INLINED:
                inner = eqn.params[INLINED[name]]
                called = inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())
                out = self.body(called.jaxpr, called.consts, operands, here, layer)
            elif name == "scan" and self.is_over_layers(eqn, operands):
                out = self.unroll(eqn, operands, here, layer)
            else:
                out = self.append(eqn, operands, here, layer)
            env.update(zip(eqn.outvars, out, strict=True))
        return [v if isinstance(v, Literal) else env[v] for v in jaxpr.outvars]

    def constant(self, like: Var, value: Any) -> Var:
        made = Var(like.aval)
        self.consts[made] = value
        return made

    def append(self, eqn: JaxprEqn, operands: list[Atom], scope: tuple[str, ...], layer: tuple[int, ...]) -> list[Atom]:
        out = [Var(v.aval) for v in eqn.outvars]
        self.steps.append(Step(eqn.replace(invars=operands, outvars=out), scope, layer))
        # What is computed from parameters alone is parameters as well.
        variables = [v for v in operands if isinstance(v, Var)]
        if variables and all(v in self.weights for v in variables):
            self.weights.update(out)
        return list(out)

    def traced(self, function: Callable[..., Any], operands: Sequence[Atom], scope: tuple[str, ...], layer: tuple[int, ...]) -> Atom:
        closed = jax.make_jaxpr(function)(*map(struct_of, operands))
        (out,) = self.body(closed.jaxpr, closed.consts, list(operands), scope, layer)
        return out

    def is_over_layers(self, eqn: JaxprEqn, operands: list[Atom]) -> bool:
        consts, carried = scan_counts(eqn)
        if not 0 < eqn.params["length"] <= UNROLLED_AT_MOST:
            return False
        return any(isinstance(x, Var) and x in self.weights for x in operands[consts + carried :])

    def unroll(self, eqn: JaxprEqn, operands: list[Atom], scope: tuple[str, ...], layer: tuple[int, ...]) -> list[Atom]:
        consts, carried = scan_counts(eqn)
        length, closed = eqn.params["length"], eqn.params["jaxpr"]
        fixed, carry, xs = operands[:consts], operands[consts : consts + carried], operands[consts + carried :]
        inner = [self.constant(v, value) for v, value in zip(closed.jaxpr.constvars, closed.consts)]
        rows: list[list[Atom]] = [[] for _ in closed.jaxpr.outvars[carried:]]
        for number, step in enumerate(reversed(range(length)) if eqn.params["reverse"] else range(length)):
            below = (*layer, number)
            slices = [self.row(x, step, scope, below) for x in xs]
            out = self.body(closed.jaxpr, inner, [*fixed, *carry, *slices], scope, below)
            carry = out[:carried]
            for row, y in zip(rows, out[carried:]):
                row.append(y)
        stacked = [self.traced(_stack, row[::-1] if eqn.params["reverse"] else row, scope, layer) for row in rows]
        return [*carry, *stacked]

    def row(self, x: Atom, step: int, scope: tuple[str, ...], layer: tuple[int, ...]) -> Atom:
        """One row of what a loop reads; those of parameters are parameters of a layer, which nobody has to compute."""
        if not isinstance(x, Var) or x not in self.weights or x in self.slices:
            return self.traced(_slice(step), [x], scope, layer)
        row = jax.make_jaxpr(_slice(step))(struct_of(x)).jaxpr.outvars[0]
        made = Var(row.aval)
        self.slices[made] = (x, step)
        self.weights.add(made)
        return made


def _slice(step: int) -> Callable[[Any], Any]:
    return lambda x: jax.lax.index_in_dim(x, step, keepdims=False)


def _stack(*rows: Any) -> Any:
    return jax.numpy.stack(rows)


def _scopes(stack: str) -> tuple[str, ...]:
    """The scopes of a name stack, what transformations put around them left out."""
    while (shorter := _TRANSFORMED.sub(r"\1", stack)) != stack:
        stack = shorter
    return tuple(part for part in stack.split("/") if part)
