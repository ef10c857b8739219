"""A traced function as one flat list of equations: calls inlined, loops over layers unrolled."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from shardy_py.frontends.loops import scan_counts
from shardy_py.stages.run.atoms import struct_of

Atom = Any
"""A `Var` or a `Literal`."""

INLINED = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "eval_jaxpr": "jaxpr",
}
"""Primitives that only call a jaxpr. Derivatives have been taken when a step has been traced, so that rules for them can go, too."""

MARKER = "pipeline_stage="
_MARKED = re.compile(re.escape(MARKER) + r"([^/()]*)")

UNROLLED_AT_MOST = 512
"""Steps of a loop over layers that are unrolled."""


@dataclass(frozen=True)
class Node:
    """One equation.

    Attributes:
        eqn: Over the variables of the flat program.
        backward: Whether reverse-mode differentiation made it.
        marker: Name of the `sp.stage` that it was traced in.
    """

    eqn: JaxprEqn
    backward: bool
    marker: str | None


@dataclass(frozen=True)
class Flat:
    """A flat program; equations whose results are not used have been dropped.

    Attributes:
        invars: Inputs.
        outvars: Results, variables or literals.
        nodes: Equations in order.
        consts: Captured arrays by their variable.
    """

    invars: tuple[Var, ...]
    outvars: tuple[Atom, ...]
    nodes: tuple[Node, ...]
    consts: dict[Var, Any]


def flatten(closed: ClosedJaxpr, varying: Sequence[bool]) -> Flat:
    """The flat form of a jaxpr.

    Args:
        closed: The jaxpr.
        varying: For every input, whether it is part of the batch. A loop over something that is not is taken for one over layers.
    """
    maker = _Maker()
    invars = [Var(v.aval) for v in closed.jaxpr.invars]
    maker.varying.update(v for v, flag in zip(invars, varying) if flag)
    maker.given.update(v for v, flag in zip(invars, varying) if not flag)
    out = maker.body(closed.jaxpr, closed.consts, invars, False, None)
    flat = Flat(tuple(invars), tuple(out), tuple(maker.nodes), maker.consts)
    return replace(flat, nodes=tuple(live(flat.nodes, flat.outvars)))


def live(nodes: Sequence[Node], results: Sequence[Atom]) -> list[Node]:
    """The equations that these results need, and those with effects."""
    needed = {v for v in results if isinstance(v, Var)}
    kept: list[Node] = []
    for node in reversed(nodes):
        if node.eqn.effects or any(v in needed for v in node.eqn.outvars):
            kept.append(node)
            needed.update(v for v in node.eqn.invars if isinstance(v, Var))
    return kept[::-1]


class _Maker:
    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.consts: dict[Var, Any] = {}
        self.varying: set[Var] = set()
        self.given: set[Var] = set()  # depend on an input that is not of the batch
        self.stacked: dict[Var, list[Atom]] = {}
        self.rows: dict[tuple[Var, int], Atom] = {}  # of what depends on no batch: both passes read the same

    def body(self, jaxpr: Jaxpr, consts: Sequence[Any], arguments: Sequence[Atom], backward: bool, marker: str | None) -> list[Atom]:
        env: dict[Var, Atom] = dict(zip(jaxpr.invars, arguments, strict=True))
        for v, value in zip(jaxpr.constvars, consts, strict=True):
            env[v] = value if isinstance(value, Var) else self.constant(v, value)

        def use(v: Atom) -> Atom:
            return v if isinstance(v, Literal) else env[v]

        for eqn in jaxpr.eqns:
            stack = str(eqn.source_info.name_stack)
            is_back = backward or "transpose(" in stack
            found = _MARKED.findall(stack)
            mark = found[-1] if found else marker
            operands = [use(v) for v in eqn.invars]
            name = eqn.primitive.name
            if name in INLINED:
                inner = eqn.params[INLINED[name]]
                closed = inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())
                out = self.body(closed.jaxpr, closed.consts, operands, is_back, mark)
            elif name == "scan" and self.is_over_layers(eqn, operands):
                out = self.unroll(eqn, operands, is_back, mark)
            else:
                out = self.append(eqn, operands, is_back, mark)
            env.update(zip(eqn.outvars, out, strict=True))
        return [use(v) for v in jaxpr.outvars]

    def constant(self, like: Var, value: Any) -> Var:
        """The variable of a captured array."""
        made = Var(like.aval)
        self.consts[made] = value
        return made

    def append(self, eqn: JaxprEqn, operands: list[Atom], backward: bool, marker: str | None) -> list[Atom]:
        out = [Var(v.aval) for v in eqn.outvars]
        self.nodes.append(Node(eqn.replace(invars=operands, outvars=out), backward, marker))
        if any(v in self.varying for v in operands if isinstance(v, Var)):
            self.varying.update(out)
        elif any(v in self.given for v in operands if isinstance(v, Var)):
            self.given.update(out)
        return list(out)

    def emit(self, function: Callable[..., Any], operands: Sequence[Atom], backward: bool, marker: str | None) -> list[Atom]:
        """Appends what a function of these operands traces to."""
        traced = jax.make_jaxpr(function)(*(struct_of(v) for v in operands))
        return self.body(traced.jaxpr, traced.consts, list(operands), backward, marker)

    def is_over_layers(self, eqn: JaxprEqn, operands: list[Atom]) -> bool:
        consts, carried = scan_counts(eqn)
        xs = operands[consts + carried :]
        if not 0 < eqn.params["length"] <= UNROLLED_AT_MOST:
            return False
        return any(isinstance(x, Var) and (x in self.stacked or x in self.given) for x in xs)

    def unroll(self, eqn: JaxprEqn, operands: list[Atom], backward: bool, marker: str | None) -> list[Atom]:
        consts, carried = scan_counts(eqn)
        length, closed = eqn.params["length"], eqn.params["jaxpr"]
        fixed, carry, xs = operands[:consts], operands[consts : consts + carried], operands[consts + carried :]
        inner = [self.constant(v, value) for v, value in zip(closed.jaxpr.constvars, closed.consts)]
        rows: list[list[Atom]] = [[] for _ in closed.jaxpr.outvars[carried:]]
        order = range(length - 1, -1, -1) if eqn.params["reverse"] else range(length)
        for step in order:
            slices = [self.element(x, step, backward, marker) for x in xs]
            out = self.body(closed.jaxpr, inner, [*fixed, *carry, *slices], backward, marker)
            carry = out[:carried]
            for row, y in zip(rows, out[carried:]):
                row.append(y)
        results = list(carry)
        for row in rows:
            elements = row[::-1] if eqn.params["reverse"] else row
            (whole,) = self.emit(lambda *ys: jax.numpy.stack(ys), elements, backward, marker)
            self.stacked[whole] = elements
            results.append(whole)
        return results

    def element(self, x: Atom, step: int, backward: bool, marker: str | None) -> Atom:
        if isinstance(x, Var) and x in self.stacked:
            return self.stacked[x][step]
        if isinstance(x, Var) and (x, step) in self.rows:
            return self.rows[x, step]
        (found,) = self.emit(lambda a: jax.lax.index_in_dim(a, step, keepdims=False), [x], backward, marker)
        if isinstance(x, Var) and x in self.given:
            self.rows[x, step] = found
        return found
