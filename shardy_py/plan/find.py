"""Resolves a user's target to a value: by path, name, variable, scope or source line."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import linecache
import re
from collections.abc import Sequence
from typing import NamedTuple

from shardy_py.ir import Op, Program, Value
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
    lines_by_location: dict[int, list[str]] = {}
    for value, planned in entries:
        op = value.defining_op
        location = None if op is None else op.location
        lines = lines_by_location.get(id(location))
        if lines is None:
            lines = lines_by_location[id(location)] = list(dict.fromkeys(program.calls(location)))
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
    if not _NAME.fullmatch(target):
        return ()
    files: dict[str, dict[int, list[tuple[Value, PlannedValue]]]] = {}
    for entry in entries:
        file, colon, line = entry[1].location.rpartition(":")
        if colon and line.isdigit():
            files.setdefault(file, {}).setdefault(int(line), []).append(entry)
    assigned: set[Value] = set()
    for file, by_line in files.items():
        for first, last in _assignments(file).get(target, ()):
            assigned.update(value for line in range(first, last + 1) for value, _ in by_line.get(line, ()))
    return [entry for entry in entries if entry[0] in assigned]


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
        lines = {int(v.location.rpartition(":")[2]) for _, v in plan.intermediates if _in_file(v.location, file)}
        near = [f"{file}:{line}" for line in sorted(lines, key=lambda line: (abs(line - int(number)), line))[:3]] or near
    return PlanError(
        f"the plan has no value {target!r}",
        where=f"plan of {plan.name}",
        why="it is not a path of an input or output, name of a value, source line on which a value is made, scope or assigned variable",
        fix=f"one of {', '.join(near)}" if near else "plan.values lists all of them",
    )


def _in_file(location: str, file: str) -> bool:
    name = location.rpartition(":")[0]
    return name == file or name.endswith("/" + file)
