"""The pieces of a traced function that become nodes of its profile."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend.core import ClosedJaxpr, Var

from shardy_py.pipedream.profiles.line import Line, Step
from shardy_py.pipelines.jaxprs import closed_jaxpr, reads

GRAINS = ("equation", "scope", "layer")


@dataclass(frozen=True)
class Piece:
    """Consecutive equations that form one node of the graph."""

    name: str
    steps: tuple[Step, ...]
    results: tuple[Var, ...]

    @functools.cached_property
    def inputs(self) -> tuple[Var, ...]:
        """The variables that it reads and does not make, in the order of their first use."""
        return _inputs(self.steps)

    @functools.cached_property
    def program(self) -> ClosedJaxpr:
        """The piece as a jaxpr from its inputs to its results."""
        return closed_jaxpr([step.eqn for step in self.steps], self.inputs, self.results)


def pieces_of(line: Line, by: str) -> list[Piece]:
    """Runs of equations with one name, so that no piece waits for another that waits for it."""
    runs = [(_equation_name(step), [step]) for step in line.steps] if by == "equation" else _runs(line, by)
    makers = {v: number for number, (_, steps) in enumerate(runs) for step in steps for v in step.eqn.outvars}
    used = {v for v in line.outvars if isinstance(v, Var)}
    used.update(v for number, (_, steps) in enumerate(runs) for v in _inputs(steps) if makers.get(v) != number)
    return [Piece(name, tuple(steps), tuple(v for step in steps for v in step.eqn.outvars if v in used)) for name, steps in runs]


def _runs(line: Line, by: str) -> list[tuple[str, list[Step]]]:
    shared = _shared_depth({step.scope for step in line.steps if step.scope and not step.layer})
    runs: list[tuple[tuple[Any, ...], list[Step]]] = []
    for step in line.steps:
        if by == "scope":
            key = (*step.scope, *step.layer)
        else:
            key = step.layer[:1] or step.scope[shared : shared + 1]
        if not runs or runs[-1][0] != key:
            runs.append((key, []))
        runs[-1][1].append(step)
    return [(f"{by}({'/'.join(map(str, key))})", steps) for key, steps in runs]


def _inputs(steps: Sequence[Step]) -> tuple[Var, ...]:
    inside = {v for step in steps for v in step.eqn.outvars}
    return tuple(v for v in dict.fromkeys(v for step in steps for v in reads(step.eqn)) if v not in inside)


def _shared_depth(scopes: set[tuple[str, ...]]) -> int:
    """Number of outermost scopes that are the same everywhere; of a single scope, all but its last part."""
    if len(scopes) < 2:
        return max(0, max(map(len, scopes), default=0) - 1)
    least = min(map(len, scopes))
    return next((i for i in range(least) if len({scope[i] for scope in scopes}) > 1), least)


def _equation_name(step: Step) -> str:
    result = step.eqn.outvars[0].aval.str_short() if step.eqn.outvars else ""
    return f"{step.eqn.primitive.name}({result})"
