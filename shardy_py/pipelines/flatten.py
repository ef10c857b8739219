"""Taking calls and loops over layers apart, until a traced function is one list of equations."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from shardy_py.backends.local.jaxpr_rewriting import has_effects
from shardy_py.frontends.jaxprs import live_positions
from shardy_py.frontends.loops import scan_counts
from shardy_py.ir.jax_calls import CALLS, body_parameter
from shardy_py.pipelines.jaxprs import Atom, closed, reads, struct_of

UNROLLED_AT_MOST = 512
"""Steps of a loop over layers that are taken apart."""

MARKER = "pipeline_stage="
_MARKED = re.compile(re.escape(MARKER) + r"([^/()]*)")


@dataclass(frozen=True)
class FlatEquation:
    """One equation.

    Attributes:
        stacks: The name stacks of the calls and loops around it, outermost first, and its own.
        layer: The numbers of the steps of loops over layers that it belongs to.
    """

    eqn: JaxprEqn
    stacks: tuple[str, ...] = ()
    layer: tuple[int, ...] = ()

    @functools.cached_property
    def backward(self) -> bool:
        """Whether it is of the backward pass."""
        return any("transpose(" in stack for stack in self.stacks)

    def renamed(self, names: Mapping[Var, Atom], results: Mapping[Var, Var] | None = None) -> FlatEquation:
        """The equation with other operands, and other results."""
        invars = [names.get(v, v) if isinstance(v, Var) else v for v in self.eqn.invars]
        return replace(self, eqn=self.eqn.replace(invars=invars, outvars=[(results or {}).get(v, v) for v in self.eqn.outvars]))

    @functools.cached_property
    def marker(self) -> str | None:
        """Its innermost `sp.stage`."""
        markers = [marker for stack in self.stacks for marker in _MARKED.findall(stack)]
        return markers[-1] if markers else None


def live(nodes: Sequence[FlatEquation], results: Iterable[Atom], leaves: Iterable[Var] = ()) -> list[FlatEquation]:
    """The equations that these results need, and those with effects, in order; nothing computes `leaves`."""
    return [nodes[i] for i in live_positions([node.eqn for node in nodes], results, leaves, keeps=has_effects)]


def inputs_of(nodes: Iterable[FlatEquation]) -> tuple[Var, ...]:
    """The variables that equations read and do not make, in the order of their first use."""
    eqns = [node.eqn for node in nodes]
    inside = {v for eqn in eqns for v in eqn.outvars}
    return tuple(dict.fromkeys(v for eqn in eqns for v in reads(eqn) if v not in inside))


@dataclass(frozen=True)
class FlatStep:
    """A flat program; equations whose results are not used have been dropped.

    Attributes:
        rows: What loops over layers read of values that do not depend on the batch -> (the value, row).
    """

    invars: tuple[Var, ...]
    outvars: tuple[Atom, ...]
    nodes: tuple[FlatEquation, ...]
    consts: dict[Var, Any]
    rows: dict[Var, tuple[Var, int]] = field(default_factory=dict)


def flatten(closed: ClosedJaxpr, varying: Sequence[bool], calls: Set[str] = CALLS) -> FlatStep:
    """The flat form of a jaxpr.

    A loop is over layers where it reads rows that depend on inputs other than the batch, which `varying` marks, or that another loop over
    layers has stacked. Calls with a rule for derivatives may be among `calls` once derivatives have been taken.
    """
    flattener = _Flattener(calls)
    invars = [Var(v.aval) for v in closed.jaxpr.invars]
    flattener.varying.update(v for v, flag in zip(invars, varying) if flag)
    flattener.fixed.update(v for v, flag in zip(invars, varying) if not flag)
    results = flattener.inline(closed.jaxpr, closed.consts, invars, (), ())
    rows = {row: place for place, row in flattener.fixed_rows.items()}
    return FlatStep(tuple(invars), tuple(results), tuple(live(flattener.nodes, results)), flattener.consts, rows)


class _Flattener:
    def __init__(self, calls: Set[str]) -> None:
        self.calls = calls
        self.nodes: list[FlatEquation] = []
        self.consts: dict[Var, Any] = {}
        self.varying: set[Var] = set()  # depend on the batch
        self.fixed: set[Var] = set()  # depend on inputs, and not on the batch
        self.rows_of: dict[Atom, Sequence[Atom]] = {}
        self.fixed_rows: dict[tuple[Var, int], Var] = {}  # both passes read the same

    def inline(
        self, jaxpr: Jaxpr, consts: Sequence[Any], arguments: Sequence[Atom], stacks: tuple[str, ...], layer: tuple[int, ...]
    ) -> list[Atom]:
        """Emits the equations of a jaxpr; gives its results."""
        env: dict[Var, Atom] = dict(zip(jaxpr.invars, arguments, strict=True))
        for v, value in zip(jaxpr.constvars, consts, strict=True):
            env[v] = value if isinstance(value, Var) else self.constant(v, value)
        for eqn in jaxpr.eqns:
            inside = (*stacks, str(eqn.source_info.name_stack))
            operands = [v if isinstance(v, Literal) else env[v] for v in eqn.invars]
            name = eqn.primitive.name
            if name in self.calls:
                body = closed(eqn.params[body_parameter(eqn.params)])
                results = self.inline(body.jaxpr, body.consts, operands, inside, layer)
            elif name == "scan" and self._is_over_layers(eqn, operands):
                results = self._unroll(eqn, operands, inside, layer)
            else:
                results = [Var(v.aval) for v in eqn.outvars]
                self._emit(FlatEquation(eqn.replace(invars=operands, outvars=results), inside, layer))
            env.update(zip(eqn.outvars, results, strict=True))
        return [v if isinstance(v, Literal) else env[v] for v in jaxpr.outvars]

    def constant(self, like: Var, value: Any) -> Var:
        """The variable of a captured array."""
        v = Var(like.aval)
        self.consts[v] = value
        return v

    def _emit(self, node: FlatEquation) -> None:
        self.nodes.append(node)
        operands = reads(node.eqn)
        if any(v in self.varying for v in operands):
            self.varying.update(node.eqn.outvars)
        elif any(v in self.fixed for v in operands):
            self.fixed.update(node.eqn.outvars)

    def _traced(self, function: Callable[..., Any], operands: Sequence[Atom], stacks: tuple[str, ...], layer: tuple[int, ...]) -> Atom:
        """Emits the equations of a function of these operands; gives its result."""
        body = jax.make_jaxpr(function)(*map(struct_of, operands))
        (result,) = self.inline(body.jaxpr, body.consts, list(operands), stacks, layer)
        return result

    def _is_over_layers(self, eqn: JaxprEqn, operands: list[Atom]) -> bool:
        consts, carried = scan_counts(eqn)
        xs = [x for x in operands[consts + carried :] if isinstance(x, Var)]
        return 0 < eqn.params["length"] <= UNROLLED_AT_MOST and any(x in self.rows_of or x in self.fixed for x in xs)

    def _unroll(self, eqn: JaxprEqn, operands: list[Atom], stacks: tuple[str, ...], layer: tuple[int, ...]) -> list[Atom]:
        consts, carried = scan_counts(eqn)
        length, body = eqn.params["length"], eqn.params["jaxpr"]
        fixed, carry, xs = operands[:consts], operands[consts : consts + carried], operands[consts + carried :]
        inner = [self.constant(v, value) for v, value in zip(body.jaxpr.constvars, body.consts)]
        columns: list[list[Atom]] = [[] for _ in body.jaxpr.outvars[carried:]]
        for number, step in enumerate(reversed(range(length)) if eqn.params["reverse"] else range(length)):
            at = (*layer, number)
            rows = [self._row(x, step, stacks, at) for x in xs]
            results = self.inline(body.jaxpr, inner, [*fixed, *carry, *rows], stacks, at)
            carry = results[:carried]
            for column, y in zip(columns, results[carried:]):
                column.append(y)
        whole: list[Atom] = []
        for column in columns:
            rows = column[::-1] if eqn.params["reverse"] else column
            whole.append(self._traced(_stack, rows, stacks, layer))
            self.rows_of[whole[-1]] = rows
        return [*carry, *whole]

    def _row(self, x: Atom, step: int, stacks: tuple[str, ...], layer: tuple[int, ...]) -> Atom:
        """One row of a value that a loop reads."""
        if isinstance(x, Var) and x in self.rows_of:
            return self.rows_of[x][step]
        if isinstance(x, Var) and (x, step) in self.fixed_rows:
            return self.fixed_rows[x, step]
        row = self._traced(row_of(step), [x], stacks, layer)
        if isinstance(x, Var) and x in self.fixed:
            self.fixed_rows[x, step] = row
        return row


def row_of(step: int) -> Callable[[Any], Any]:
    """The function that reads one row of an array."""
    return lambda x: jax.lax.index_in_dim(x, step, keepdims=False)


def _stack(*rows: Any) -> Any:
    return jax.numpy.stack(rows)
