"""Taking calls and loops over layers apart, until a traced function is one list of equations."""

from __future__ import annotations

import abc
import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from shardy_py.frontends.loops import scan_counts
from shardy_py.ir.jax_calls import CALLS, PLAIN_CALLS, body_parameter
from shardy_py.pipelines.jaxprs import Atom, closed, live, reads, struct_of

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


MARKER = "pipeline_stage="
_MARKED = re.compile(re.escape(MARKER) + r"([^/()]*)")


@dataclass(frozen=True)
class FlatEquation:
    """One equation."""

    eqn: JaxprEqn
    backward: bool
    marker: str | None


@dataclass(frozen=True)
class FlatStep:
    """A flat program; equations whose results are not used have been dropped."""

    invars: tuple[Var, ...]
    outvars: tuple[Atom, ...]
    nodes: tuple[FlatEquation, ...]
    consts: dict[Var, Any]


def flatten(closed: ClosedJaxpr, varying: Sequence[bool]) -> FlatStep:
    """The flat form of a jaxpr. A loop over inputs that `varying` does not mark as parts of the batch counts as one over layers."""
    flattener = _StepFlattener()
    invars = [Var(v.aval) for v in closed.jaxpr.invars]
    flattener.varying.update(v for v, flag in zip(invars, varying) if flag)
    flattener.fixed.update(v for v, flag in zip(invars, varying) if not flag)
    results = flattener.inline(closed.jaxpr, closed.consts, invars, _Pass(False, None))
    return FlatStep(tuple(invars), tuple(results), tuple(live(flattener.nodes, results)), flattener.consts)


class _Pass(NamedTuple):
    backward: bool
    marker: str | None


class _StepFlattener(Flattener[_Pass]):
    """Marks which equations are of the backward pass, and the `sp.stage` of each.

    A loop is over layers where it reads rows that depend on inputs other than the batch, or that another loop over layers has stacked.
    """

    def __init__(self) -> None:
        super().__init__(CALLS)  # derivatives have been taken when a step has been traced, so that rules for them can go, too
        self.nodes: list[FlatEquation] = []
        self.varying: set[Var] = set()  # depend on the batch
        self.fixed: set[Var] = set()  # depend on inputs, and not on the batch
        self.rows_of: dict[Var, Sequence[Atom]] = {}
        self.fixed_rows: dict[tuple[Var, int], Atom] = {}  # both passes read the same

    def origin_of(self, eqn: JaxprEqn, outer: _Pass) -> _Pass:
        stack = str(eqn.source_info.name_stack)
        markers = _MARKED.findall(stack)
        return _Pass(outer.backward or "transpose(" in stack, markers[-1] if markers else outer.marker)

    def emit(self, eqn: JaxprEqn, origin: _Pass) -> None:
        self.nodes.append(FlatEquation(eqn, origin.backward, origin.marker))
        operands = reads(eqn)
        if any(v in self.varying for v in operands):
            self.varying.update(eqn.outvars)
        elif any(v in self.fixed for v in operands):
            self.fixed.update(eqn.outvars)

    def are_layers(self, xs: Sequence[Atom]) -> bool:
        return any(isinstance(x, Var) and (x in self.rows_of or x in self.fixed) for x in xs)

    def stacked(self, result: Atom, rows: Sequence[Atom]) -> None:
        self.rows_of[result] = rows

    def row(self, x: Atom, step: int, origin: _Pass) -> Atom:
        if not isinstance(x, Var):
            return super().row(x, step, origin)
        if x in self.rows_of:
            return self.rows_of[x][step]
        if (x, step) not in self.fixed_rows:
            row = super().row(x, step, origin)
            if x not in self.fixed:
                return row
            self.fixed_rows[x, step] = row
        return self.fixed_rows[x, step]
