"""A traced function as a line of equations, each with its scope and its step of a loop over layers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from shardy_py.errors import ShardyError
from shardy_py.pipedream.profiles.numbering import is_number, numbers_in
from shardy_py.pipelines.flatten import Flattener, row_of
from shardy_py.pipelines.jaxprs import Atom, live, reads, struct_of

_TRANSFORMED = re.compile(r"\w+\(([^()]*)\)")


@dataclass(frozen=True)
class Step:
    """One equation.

    Attributes:
        source: The numbers of the equations that it was taken from, outermost first; empty where these are not numbered.
    """

    eqn: JaxprEqn
    scope: tuple[str, ...]
    layer: tuple[int, ...]
    source: tuple[int, ...]


@dataclass(frozen=True)
class Line:
    """A function as equations in order.

    Attributes:
        slices: Parameters of one layer that a loop reads from stacked ones -> (stacked parameter, row).
    """

    invars: tuple[Var, ...]
    outvars: tuple[Atom, ...]
    steps: tuple[Step, ...]
    consts: dict[Var, Any]
    slices: dict[Var, tuple[Var, int]]


def line_of(closed: ClosedJaxpr, parameters: Sequence[bool]) -> Line:
    """Takes calls and loops over layers (over slices of inputs that `parameters` marks) apart; rules for derivatives stay whole."""
    flattener = _LineFlattener()
    invars = [Var(v.aval) for v in closed.jaxpr.invars]
    flattener.weights.update(v for v, flag in zip(invars, parameters) if flag)
    results = flattener.inline(closed.jaxpr, closed.consts, invars, _Position((), (), ()))
    steps = live(flattener.steps, results)
    return Line(tuple(invars), tuple(results), tuple(steps), flattener.consts, flattener.slices)


def row_equations(row: Var, whole: Var, step: int) -> list[JaxprEqn]:
    """Equations that read one row of stacked parameters, which a line leaves out."""
    jaxpr = jax.make_jaxpr(row_of(step))(struct_of(whole)).jaxpr
    env: dict[Any, Var] = {jaxpr.invars[0]: whole, jaxpr.outvars[0]: row}
    results = [env.setdefault(v, Var(v.aval)) for eqn in jaxpr.eqns for v in eqn.outvars]
    assert row in results
    return [
        eqn.replace(invars=[v if isinstance(v, Literal) else env[v] for v in eqn.invars], outvars=[env[v] for v in eqn.outvars])
        for eqn in jaxpr.eqns
    ]


class _Position(NamedTuple):
    scope: tuple[str, ...]
    layer: tuple[int, ...]
    source: tuple[int, ...]


class _LineFlattener(Flattener[_Position]):
    """Keeps scopes and layers. A loop is over layers where it reads rows of parameters, or of values computed from these alone."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.slices: dict[Var, tuple[Var, int]] = {}
        self.weights: set[Var] = set()

    def origin_of(self, eqn: JaxprEqn, outer: _Position) -> _Position:
        stack = str(eqn.source_info.name_stack)
        return outer._replace(scope=outer.scope + _scopes(stack), source=outer.source + numbers_in(stack))

    def step_of(self, origin: _Position, number: int) -> _Position:
        return origin._replace(layer=(*origin.layer, number))

    def emit(self, eqn: JaxprEqn, origin: _Position) -> None:
        self.steps.append(Step(eqn, *origin))
        operands = reads(eqn)
        if operands and all(v in self.weights for v in operands):
            self.weights.update(eqn.outvars)

    def are_layers(self, xs: Sequence[Atom]) -> bool:
        return any(isinstance(x, Var) and x in self.weights for x in xs)

    def row(self, x: Atom, step: int, origin: _Position) -> Atom:
        """A row of stacked parameters is a parameter of one layer: nothing computes it."""
        if not isinstance(x, Var) or x not in self.weights or x in self.slices:
            return super().row(x, step, origin)
        row = Var(jax.make_jaxpr(row_of(step))(struct_of(x)).jaxpr.outvars[0].aval)
        self.slices[row] = (x, step)
        self.weights.add(row)
        return row


def _scopes(stack: str) -> tuple[str, ...]:
    """The scopes of a name stack, without the wrappers of transformations and the numbers of equations."""
    while (shorter := _TRANSFORMED.sub(r"\1", stack)) != stack:
        stack = shorter
    return tuple(part for part in stack.split("/") if part and not is_number(part))


def chosen_leaves(args: Sequence[Any], parameters: int | Sequence[int]) -> list[bool]:
    """A mask of the leaves of the named arguments; raises ShardyError if an argument does not exist."""
    chosen = (parameters,) if isinstance(parameters, int) else tuple(parameters)
    if not all(0 <= number < len(args) for number in chosen):
        raise ShardyError(f"parameters is {parameters}, but there are {len(args)} arguments", where="argument parameters")
    return [number in chosen for number, arg in enumerate(args) for _ in jax.tree_util.tree_leaves(arg)]
