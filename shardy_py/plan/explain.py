"""`Plan.explain`: resolves the target and assembles its explanation."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import linecache
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from shardy_py.dialect import TensorSharding
from shardy_py.dialect.axis import Axes
from shardy_py.dialect.format import sizes_text
from shardy_py.errors import UserError
from shardy_py.ir import Op, Program, Value
from shardy_py.passes.propagation.graph import Holder
from shardy_py.plan.cost_analysis import seconds_text
from shardy_py.plan.explainer import Explainer, explainer_of
from shardy_py.plan.explanation import Explanation, Missing, Reason, Source
from shardy_py.plan.missing import missing
from shardy_py.plan.record import PlanError, PlanRecord
from shardy_py.plan.values import PlannedValue, in_backward_pass, typed

_LINE = re.compile(r".+:\d+")
_NAME = re.compile(r"[A-Za-z_]\w*")
Entries = Sequence[tuple[Value, PlannedValue]]


class Match(NamedTuple):
    """The value that a target names."""

    value: Value | int
    planned: PlannedValue
    nearby: tuple[str, ...] = ()


def find(plan: PlanRecord, target: str | PlannedValue) -> Match:
    """The value that a target names.

    A path or the name of a value stands for itself. A line stands for what is made on it or, where nothing is, in calls on it; a stored
    plan does not know of the latter. A name of several values, a source line, a scope or a variable, means the last one that the
    forward computation made there, outside of loops where there is one: that which a line or a module gives to the rest. Raises PlanError
    if there is not a such value.

    Args:
        target: `params['w']`, `result[0]`, `%12`, a name given by `checkpoint_name`, `file.py:12`, the path of a scope or module or the
            end of one, a variable that is assigned to in the source, or one of `plan.values`.
    """
    path = target.path if isinstance(target, PlannedValue) else target
    if not isinstance(path, str):
        raise TypeError(f"explain takes a path, a name, file:line or one of plan.values, got {type(target).__name__}")
    exact = plan.by_path.get(path)
    if exact is not None:
        return Match(*exact)
    entries = plan.intermediates
    for candidates in (_by_name, _by_line, _by_scope, _by_variable):
        matches = candidates(path, entries)
        if matches:
            return _choose(matches, plan.program)
    at_calls = _at_calls(entries, plan.program)
    for candidates in (_by_line, _by_variable):
        matches = candidates(path, at_calls)
        if matches:
            inside = {value for value, _ in matches}
            return _choose([entry for entry in entries if entry[0] in inside], plan.program)
    raise _error(plan, path)


def _at_calls(entries: Entries, program: Program) -> Entries:
    """Every value once for each call in which it is made, as if it were made on the line of the call."""
    values: list[tuple[Value, PlannedValue]] = []
    for value, planned in entries:
        lines = () if value.defining_op is None else dict.fromkeys(program.calls(value.defining_op.location))
        values += [(value, dataclasses.replace(planned, location=line)) for line in lines]
    return values


def _by_name(target: str, entries: Entries) -> Entries:
    return [entry for entry in entries if entry[0].name == target]


def _by_line(target: str, entries: Entries) -> Entries:
    if not _LINE.fullmatch(target):
        return ()
    return [entry for entry in entries if entry[1].location == target or entry[1].location.endswith("/" + target)]


def _by_scope(target: str, entries: Entries) -> Entries:
    scope = f"/{target.strip('/')}/"
    return [entry for entry in entries if scope in f"/{entry[1].module}/"] if scope != "//" else ()


def _by_variable(target: str, entries: Entries) -> Entries:
    def is_assigned(location: str) -> bool:
        file, _, line = location.rpartition(":")
        return line.isdigit() and any(first <= int(line) <= last for first, last in _assignments(file).get(target, ()))

    return [entry for entry in entries if is_assigned(entry[1].location)] if _NAME.fullmatch(target) else ()


@functools.lru_cache(maxsize=64)
def _assignments(file: str) -> dict[str, list[tuple[int, int]]]:
    """Variable -> first and last lines of the statements of a file that assign to it."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    spans: dict[str, list[tuple[int, int]]] = {}
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)] if isinstance(node, _ASSIGN) else []
        for target in targets:
            for name in ast.walk(target) if target is not None else ():
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store) and isinstance(node, ast.stmt | ast.expr):
                    spans.setdefault(name.id, []).append((node.lineno, node.end_lineno or node.lineno))
    return spans


_ASSIGN = (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)
_MOST_NEARBY = 12


def _choose(matches: Entries, program: Program) -> Match:
    """The last value of the forward computation that is used elsewhere, in as few bodies as any; derivatives keep further values there."""

    def forward(op: Op | None) -> bool:
        return op is None or not in_backward_pass(program, op)

    entries = [entry for entry in matches if forward(entry[0].defining_op)] or matches
    inside = {value.defining_op for value, _ in matches}
    used = [entry for entry in entries if any(op not in inside and forward(op) for op, _ in entry[0].uses)] or entries
    depth = min(planned.depth for _, planned in used)
    value, planned = [entry for entry in used if entry[1].depth == depth][-1]
    others = [f"{p.path} {p.primitive} {typed(p.type, p.sharding)}" for v, p in matches if v is not value]
    more = len(others) - _MOST_NEARBY
    return Match(value, planned, (*others[:_MOST_NEARBY], f"{more} more") if more > 0 else tuple(others))


def _error(plan: PlanRecord, target: str) -> Exception:
    paths = [v.path for v in (*plan.inputs, *plan.outputs)]
    near = [path for path in paths if target in path][:5] or difflib.get_close_matches(target, paths, 5)
    if _LINE.fullmatch(target):
        file, _, number = target.rpartition(":")
        lines = {
            int(v.location.rpartition(":")[2]) for _, v in plan.intermediates if f"/{v.location}".rpartition(":")[0].endswith(f"/{file}")
        }
        near = [f"{file}:{line}" for line in sorted(lines, key=lambda line: (abs(line - int(number)), line))[:3]] or near
    return PlanError(
        f"the plan has no value {target!r}",
        where=f"plan of {plan.name}",
        why="it is not a path of an input or output, name of a value, source line that computes a value, scope or assigned variable",
        fix=f"one of {', '.join(near)}" if near else "plan.values lists all of them",
    )


def explain(plan: PlanRecord, target: str | PlannedValue, axis: str | None, dim: int | None) -> Explanation:
    """Explains a value of a plan; see `Plan.explain` for arguments and result."""
    _check_axis(plan, axis)
    match = find(plan, target)
    _check_dim(plan, match.planned, dim)
    if not plan.propagation.recorded:
        raise PlanError(
            f"the plan does not know why {match.planned.path} is {typed(match.planned.type, match.planned.sharding)}",
            where=f"plan of {plan.name}",
            why="it was made with Options(provenance=False), which keeps no steps of the propagation",
            fix="plan with Options(provenance=True), which is the default",
        )
    planned, sharding = match.planned, match.planned.sharding
    facts = [
        (d, dims.axes[: n + 1])
        for d, dims in enumerate(() if sharding is None else sharding.dims[: len(planned.shape)])
        for n, a in enumerate(dims.axes)
        if (axis is None or a.name == axis) and (dim is None or d == dim)
    ]
    explanation = Explanation(
        planned.path,
        typed(planned.type, sharding),
        (),
        axis,
        nearby=match.nearby,
        asked="" if not isinstance(target, str) or target == planned.path else target,
        primitive=planned.primitive,
        location=planned.location,
    )
    if plan.is_assigned or (plan.search is not None and planned.kind != "intermediate"):
        chains = tuple((_chosen(plan, planned, d, axes),) for d, axes in facts)
        return dataclasses.replace(explanation, chains=chains, choice="" if chains else "the planner leaves it whole")
    explainer = explainer_of(plan)
    holder = explainer.holder(match.value)
    chains, also, connected = [], dict[Source, None](), dict[Source, None]()
    for d, axes in facts:
        links = explainer.derivation(holder, d, axes)
        chains.append(explainer.reasons(links))
        more, further = explainer.other_sources(holder, d, axes[-1], links)
        also.update(dict.fromkeys(more))
        connected.update(dict.fromkeys(further))
    return dataclasses.replace(
        explanation,
        chains=tuple(chains),
        missing=_missing(explainer, holder, planned, axis, dim, bool(chains)),
        also=tuple(also),
        connected=tuple(source for source in connected if source not in also),
    )


def _chosen(plan: PlanRecord, planned: PlannedValue, dim: int, axes: Axes) -> Reason:
    """The reason for the last of some axes on a dimension of a value that a planner sharded, unless the user stated it."""
    names = tuple(each.name for each in axes)
    if planned.given is not None and any(names[-1] == own.name for own in planned.given.dims[dim].axes):
        return Reason(planned.path, dim, names[-1], "annotation", annotation=planned.given_by, axes=names)
    return Reason(planned.path, dim, names[-1], "planner", annotation=_choice(plan, planned, dim), axes=names)


def _choice(plan: PlanRecord, planned: PlannedValue, dim: int) -> str:
    """The decision of a planner on a dimension, with what it costs to leave it whole."""
    decision = "chosen by the planner"
    if plan.search is None or plan.search.pricer is None or planned.sharding is None:
        return decision
    spec = [
        () if d == dim else tuple(axis.name for axis in each.axes) for d, each in enumerate(planned.sharding.dims[: len(planned.shape)])
    ]
    try:
        more = plan.search.price(planned.path, spec).seconds
    except UserError:  # an annotation of a value that lies alike
        return f"{decision}, as an annotation needs it"
    if math.isinf(more):
        return f"{decision}: with it whole no plan was found"
    return f"{decision}: {seconds_text(more)} less than whole" if more > 0 else f"{decision}: it costs nothing beside whole"


def _missing(
    explainer: Explainer, holder: Holder, planned: PlannedValue, axis: str | None, dim: int | None, has_chains: bool
) -> tuple[Missing, ...]:
    dims = [d for d in range(len(planned.shape)) if dim is None or d == dim]
    if axis is not None:
        return () if has_chains else tuple(missing(explainer, holder, d, axis, planned) for d in dims)
    if not has_chains:
        axes = [each.name for each in explainer.plan.mesh.axes if each.size > 1]
        return tuple(missing(explainer, holder, d, name, planned) for name in axes for d in dims)
    before = explainer.history.at(holder, explainer.history.end)
    cut = [(d, name) for d in dims for name in _names(before, d) if name not in _names(planned.sharding, d)]
    return tuple(missing(explainer, holder, d, name, planned) for d, name in cut)


def _names(sharding: TensorSharding | None, dim: int) -> list[str]:
    return [] if sharding is None else list(dict.fromkeys(axis.name for axis in sharding.dims[dim].axes))


def _check_axis(plan: PlanRecord, axis: str | None) -> None:
    if axis is not None and axis not in plan.mesh.shape:
        raise PlanError(
            f"unknown mesh axis {axis!r}",
            where=f"plan of {plan.name}",
            why=f"the mesh has {sizes_text(plan.mesh.shape)}",
            fix=f"use one of {', '.join(map(repr, plan.mesh.shape))}",
        )


def _check_dim(plan: PlanRecord, planned: PlannedValue, dim: int | None) -> None:
    if dim is not None and not (isinstance(dim, int) and 0 <= dim < len(planned.shape)):
        raise PlanError(
            f"{planned.path} has no dimension {dim!r}",
            where=f"plan of {plan.name}",
            why=f"it is {typed(planned.type, planned.sharding)}",
            fix=f"use a number from 0 to {len(planned.shape) - 1}" if planned.shape else "leave dim out",
        )
