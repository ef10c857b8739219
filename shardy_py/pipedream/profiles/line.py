"""A traced function as a line of equations, each with its scope and its step of a loop over layers."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var

from shardy_py.errors import ShardyError
from shardy_py.frontends.jaxprs import inlined
from shardy_py.ir.jax_calls import PLAIN_CALLS, body_parameter
from shardy_py.pipelines.flatten import FlatEquation, FlatStep, flatten, inputs_of, live, row_of
from shardy_py.pipelines.jaxprs import closed, closed_jaxpr, struct_of

_SCOPE = "profile_equation="

_NUMBER = re.compile(re.escape(_SCOPE) + r"(\d+)")

_WITH_BODIES = PLAIN_CALLS | {"scan"}
"""Primitives that a line takes apart."""


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


_TRANSFORMED = re.compile(r"\w+\(([^()]*)\)")


def line_of(closed: ClosedJaxpr, parameters: Sequence[bool]) -> FlatStep:
    """Takes calls and loops over layers (over rows of inputs that `parameters` marks) apart; rules for derivatives stay whole."""
    flat = flatten(closed, [not flag for flag in parameters], PLAIN_CALLS)
    rows = {row: place for row, place in flat.rows.items() if place[0] not in flat.rows}
    return replace(flat, nodes=tuple(live(flat.nodes, flat.outvars, rows)), rows=rows)


def row_equations(row: Var, whole: Var, step: int) -> list[JaxprEqn]:
    """Equations that read one row of stacked parameters, which a line leaves out."""
    eqns, _ = inlined(jax.make_jaxpr(row_of(step))(struct_of(whole)).jaxpr, [whole], lambda source: source)
    return [*eqns[:-1], eqns[-1].replace(outvars=[row])]


def _scope(step: FlatEquation) -> tuple[str, ...]:
    """The scopes around an equation, without the wrappers of transformations and the numbers of equations."""
    stack = "/".join(step.stacks)
    while (shorter := _TRANSFORMED.sub(r"\1", stack)) != stack:
        stack = shorter
    return tuple(part for part in stack.split("/") if part and not _NUMBER.fullmatch(part))


def chosen_leaves(args: Sequence[Any], parameters: int | Sequence[int]) -> list[bool]:
    """A mask of the leaves of the named arguments; raises ShardyError if an argument does not exist."""
    chosen = (parameters,) if isinstance(parameters, int) else tuple(parameters)
    if not all(0 <= number < len(args) for number in chosen):
        raise ShardyError(f"parameters is {parameters}, but there are {len(args)} arguments", where="argument parameters")
    return [number in chosen for number, arg in enumerate(args) for _ in jax.tree_util.tree_leaves(arg)]


GRAINS = ("equation", "scope", "layer")


@dataclass(frozen=True)
class LinePiece:
    """Consecutive equations that form one node of the graph."""

    name: str
    steps: tuple[FlatEquation, ...]
    results: tuple[Var, ...]

    @functools.cached_property
    def inputs(self) -> tuple[Var, ...]:
        """The variables that it reads and does not make, in the order of their first use."""
        return inputs_of(self.steps)

    @functools.cached_property
    def program(self) -> ClosedJaxpr:
        """The piece as a jaxpr from its inputs to its results."""
        return closed_jaxpr([step.eqn for step in self.steps], self.inputs, self.results)


def pieces_of(line: FlatStep, by: str) -> list[LinePiece]:
    """Runs of equations with one name, so that no piece waits for another that waits for it."""
    runs = [(_equation_name(step), [step]) for step in line.nodes] if by == "equation" else _runs(line, by)
    makers = {v: number for number, (_, steps) in enumerate(runs) for step in steps for v in step.eqn.outvars}
    used = {v for v in line.outvars if isinstance(v, Var)}
    used.update(v for number, (_, steps) in enumerate(runs) for v in inputs_of(steps) if makers.get(v) != number)
    return [LinePiece(name, tuple(steps), tuple(v for step in steps for v in step.eqn.outvars if v in used)) for name, steps in runs]


def _runs(line: FlatStep, by: str) -> list[tuple[str, list[FlatEquation]]]:
    scopes = [_scope(step) for step in line.nodes]
    shared = _shared_depth({scope for scope, step in zip(scopes, line.nodes) if scope and not step.layer})
    runs: list[tuple[tuple[Any, ...], list[FlatEquation]]] = []
    for scope, step in zip(scopes, line.nodes):
        key = (*scope, *step.layer) if by == "scope" else step.layer[:1] or scope[shared : shared + 1]
        if not runs or runs[-1][0] != key:
            runs.append((key, []))
        runs[-1][1].append(step)
    return [(f"{by}({'/'.join(map(str, key))})", steps) for key, steps in runs]


def _shared_depth(scopes: set[tuple[str, ...]]) -> int:
    """Number of outermost scopes that are the same everywhere; of a single scope, all but its last part."""
    if len(scopes) < 2:
        return max(0, max(map(len, scopes), default=0) - 1)
    least = min(map(len, scopes))
    return next((i for i in range(least) if len({scope[i] for scope in scopes}) > 1), least)


def _equation_name(step: FlatEquation) -> str:
    result = step.eqn.outvars[0].aval.str_short() if step.eqn.outvars else ""
    return f"{step.eqn.primitive.name}({result})"
