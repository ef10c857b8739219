"""A traced function as one flat list of equations: calls inlined, loops over layers unrolled."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jax.extend.core import ClosedJaxpr, JaxprEqn, Var

from shardy_py.ir.jax_calls import CALLS
from shardy_py.pipelines.flatten import Flattener
from shardy_py.pipelines.jaxprs import Atom, live, reads

MARKER = "pipeline_stage="
_MARKED = re.compile(re.escape(MARKER) + r"([^/()]*)")


@dataclass(frozen=True)
class Node:
    """One equation."""

    eqn: JaxprEqn
    backward: bool
    marker: str | None


@dataclass(frozen=True)
class Flat:
    """A flat program; equations whose results are not used have been dropped."""

    invars: tuple[Var, ...]
    outvars: tuple[Atom, ...]
    nodes: tuple[Node, ...]
    consts: dict[Var, Any]


def flatten(closed: ClosedJaxpr, varying: Sequence[bool]) -> Flat:
    """The flat form of a jaxpr. A loop over inputs that `varying` does not mark as parts of the batch counts as one over layers."""
    flattener = _StepFlattener()
    invars = [Var(v.aval) for v in closed.jaxpr.invars]
    flattener.varying.update(v for v, flag in zip(invars, varying) if flag)
    flattener.fixed.update(v for v, flag in zip(invars, varying) if not flag)
    results = flattener.inline(closed.jaxpr, closed.consts, invars, _Pass(False, None))
    return Flat(tuple(invars), tuple(results), tuple(live(flattener.nodes, results)), flattener.consts)


class _Pass(NamedTuple):
    backward: bool
    marker: str | None


class _StepFlattener(Flattener[_Pass]):
    """Marks which equations are of the backward pass, and the `sp.stage` of each.

    A loop is over layers where it reads rows that depend on inputs other than the batch, or that another loop over layers has stacked.
    """

    def __init__(self) -> None:
        super().__init__(CALLS)  # derivatives have been taken when a step has been traced, so that rules for them can go, too
        self.nodes: list[Node] = []
        self.varying: set[Var] = set()  # depend on the batch
        self.fixed: set[Var] = set()  # depend on inputs, and not on the batch
        self.rows_of: dict[Var, Sequence[Atom]] = {}
        self.fixed_rows: dict[tuple[Var, int], Atom] = {}  # both passes read the same

    def origin_of(self, eqn: JaxprEqn, outer: _Pass) -> _Pass:
        stack = str(eqn.source_info.name_stack)
        markers = _MARKED.findall(stack)
        return _Pass(outer.backward or "transpose(" in stack, markers[-1] if markers else outer.marker)

    def emit(self, eqn: JaxprEqn, origin: _Pass) -> None:
        self.nodes.append(Node(eqn, origin.backward, origin.marker))
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
