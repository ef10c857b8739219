"""A plan as text: inputs and outputs by path, intermediates by module and line, collectives, findings."""

from __future__ import annotations

import functools
import itertools
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from html import escape

from shardy_py.dialect.format import printable, short_location, sizes_text
from shardy_py.dialect.grouping import grouped
from shardy_py.errors import ShardyError
from shardy_py.ir.jax_calls import CALLS
from shardy_py.plan.checks.table import findings_of
from shardy_py.plan.collectives import Collective, format_bytes, received_by, trips_text
from shardy_py.plan.compiled import compiled_of
from shardy_py.plan.executed import collectives_of, remark_on
from shardy_py.plan.findings import Finding
from shardy_py.plan.memory import analysis as memory_analysis
from shardy_py.plan.paths import check_length, names_path, path_parts, paths_as_one
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.values import PlannedValue
from shardy_py.view.text_tree import Seen, TreeNode, bytes_of, counted, fitted, joined, leaf, repeated, tree_of, written

LIMIT = 60
"""Default number of lines of each part of the text."""

MAX_NOTES = 3
"""Of notes of one kind, that many are listed; warnings and errors always are."""

WIDTH = 100
"""Sentences are broken at this column; tables are as wide as they are."""


_LEFT_OUT = frozenset((*CALLS, "broadcast_in_dim", "iota", "sdy.reshard"))
"""Results of calls, and what is resharded on its way into them, are listed inside; XLA fuses broadcasts and iotas into their readers."""


def plan_text(
    plan: PlanRecord, *, values: bool = True, where: Where = None, depth: int | None = None, limit: int | None = LIMIT, width: int = WIDTH
) -> str:
    """See `Plan.as_text`."""
    for name, number in (("depth", depth), ("limit", limit)):
        if number is not None and (not isinstance(number, int) or number < 1):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ShardyError(f"{name} is {number!r}", where="Plan.as_text", why="it counts lines or levels", fix="at least 1, or None")
    axes = sizes_text(plan.mesh.shape)
    shown = Filter(where, plan)
    lines = [f"plan of {plan.name} on mesh {axes}"]
    if where is not None:
        lines[0] += f", where {where!r}" if isinstance(where, str) else f", where {getattr(where, '__name__', 'asked')}"
    elif plan.search is not None:
        lines += textwrap.wrap(f"planner: {plan.search.headline}", width, subsequent_indent="  ")
    seen: Seen = {}
    parts = [
        _by_path("inputs", plan, list(filter(shown.value, plan.inputs)), depth, limit, seen),
        _by_path("outputs", plan, list(filter(shown.value, plan.outputs)), depth, limit, seen),
    ]
    if values:
        listed = [v for v in plan.values if v.kind == "intermediate" and v.shape and (where is not None or v.primitive not in _LEFT_OUT)]
        listed = [value for value in listed if shown.value(value)]
        parts.append(_by_module(plan, listed, depth, limit))
    if where is None and (remark := remark_on(plan)):
        lines += textwrap.wrap(remark, width, subsequent_indent="  ")
    for target, answer in compiled_of(plan).items() if where is None else ():
        lines += textwrap.wrap(f"compiled for {target}: {answer.headline}", width, subsequent_indent="  ")
    parts.append(moves_lines(plan, limit, shown))
    parts.append(findings_lines([finding for finding in findings_of(plan) if shown.finding(finding)], limit, width))
    if where is not None and not any(len(part) > 1 for part in parts):
        return f"{lines[0]}\n  nothing of {len(plan.values):,} values is like that"
    for title, part in zip(("inputs", "outputs"), parts):
        lines += part or ([title] if where is None else [])
    return "\n".join([*lines, *(line for part in parts[2:] for line in part)])


CARD_OPS = 5_000
"""A plan of more ops is not partitioned for a notebook, which would take more than a second or so."""

CARD_LINES = 16


def card(plan: PlanRecord) -> str | None:
    """A plan in a notebook: its peak, and its text without intermediates; None of a large plan that has not been partitioned."""
    if not collectives_of.is_computed(plan) and sum(1 for _ in itertools.islice(plan.program.walk(), CARD_OPS + 1)) > CARD_OPS:
        return None
    head, *text = plan_text(plan, values=False, limit=CARD_LINES).splitlines()
    peak = f"peak memory  {format_bytes(memory_analysis.analyse(plan).peak_memory_in_bytes)} on each device"
    text = printable("\n".join((head, peak, *text)))
    return f"<pre>{escape(text)}</pre>"


def moves_lines(plan: PlanRecord, limit: int | None, shown: Filter | None = None) -> list[str]:
    """The collectives of a plan, a row for alike ones, those of the most bytes first; at most a third of the `limit` of all parts."""
    shown = shown or Filter(None, plan)
    collectives = [c for c in collectives_of(plan) if shown.shows((c.value,), c.primitive, c.location, c.module)]
    if not collectives:
        return []
    alike = grouped(collectives, lambda c: (c.kind, c.axes, c.dtype, c.shape, c.trips, c.location, c.primitive)).values()
    groups = sorted(alike, key=lambda group: -len(group) * group[0].call_bytes)
    listed = groups if limit is None else groups[: max(limit // 3, 1)]
    rows = list(map(_row, listed))
    widths = [min(max(len(cells[k]) for cells in rows), 24) for k in range(4)]
    lines = []
    for size, trips, *cells in rows:
        columns = [f"{cell:<{width}}" for cell, width in zip(cells, widths[2:]) if width]
        lines.append("  ".join([f"  {size:>{widths[0]}}{trips:<{widths[1]}}", *columns, cells[-1]]).rstrip())
    count, left = len(collectives), groups[len(listed) :]
    least = "at least " if any(c.trips is None for c in collectives) else ""
    total = format_bytes(received_by(collectives))
    more = [f"  ... and {sum(map(len, left)):,} more collectives, of {format_bytes(left[0][0].call_bytes)} or less each"] if left else []
    return [f"collectives  {count:,}, which bring{'s' * (count == 1)} {least}{total} to each device in a call", *lines, *more]


def _row(group: Sequence[Collective]) -> tuple[str, str, str, str, str]:
    """Bytes, trips, kind and axes, place, and the value that moves."""
    c = group[0]
    what = " of ".join(part for part in (c.operand, c.value) if part) + (f" and {len(group) - 1} more" if len(group) > 1 else "")
    return format_bytes(c.received_bytes), trips_text(c.trips), c.title, short_location(c.location), f"{what}  {c.primitive}"


def _by_path(
    title: str,
    plan: PlanRecord,
    values: Sequence[PlannedValue],
    depth: int | None,
    limit: int | None,
    seen: Seen,
) -> list[str]:
    """The leaves of arguments or results."""
    if not values:
        return []
    nodes = tree_of([(path_parts(value.path), leaf(plan, value)) for value in values], depth)
    lines = joined(nodes)
    host = bytes_of(leaf(plan, value) for value in values if value.memory_kind)
    beside = f", {format_bytes(host)} in the host's memory for each" if host else ""
    head = f"{title}  {counted(len(values), 'array')}, {format_bytes(bytes_of(nodes) - host)} on each device{beside}"
    return [head, *written(lines if limit is None else fitted(repeated(lines, seen), limit))]


def _by_module(plan: PlanRecord, values: Sequence[PlannedValue], depth: int | None, limit: int | None) -> list[str]:
    """Groups of equal primitives and types per source line, lines below their module."""
    if not values:
        return []
    groups: dict[tuple[str, tuple[str, int]], dict[tuple[str, str], list[TreeNode]]] = {}
    leaves: dict[tuple[object, object], TreeNode] = {}
    for value in values:
        key = (value.type, value.sharding)
        node = leaves.get(key)
        if node is None:
            node = leaves[key] = leaf(plan, value)
        group = groups.setdefault((value.module, _place(value)), {})
        group.setdefault((value.primitive, node.text), []).append(node)
    first = {module: i for i, module in reversed(list(enumerate(module for module, _ in groups)))}
    ordered = sorted(groups.items(), key=lambda entry: (first[entry[0][0]], entry[0][1]))
    entries: list[tuple[list[str], TreeNode]] = []
    for (module, (file, line)), rows in ordered:
        labels = [*(f"{name}/" for name in module.split("/") if name), f"{short_location(file)}:{line}" if file else "(no source line)"]
        for (primitive, _), equal in rows.items():
            entries.append(([*labels, primitive], replace(equal[0], times=len(equal))))
    nodes = tree_of(entries, depth, lambda label: label.endswith("/"))
    head = f"values  {counted(len(values), 'array')} on {counted(len({key[1] for key in groups}), 'source line')}"
    return [head, *written(fitted(_named(nodes), limit, each=True), lambda node: "")]


def _place(value: PlannedValue) -> tuple[str, int]:
    file, _, line = value.location.rpartition(":")
    return (file, int(line)) if line.isdigit() else ("", 0)


def _named(nodes: Sequence[TreeNode]) -> list[TreeNode]:
    """Merges modules that contain only one module; lines keep a line of their own."""
    out = []
    for node in nodes:
        children = _named(node.children)
        while len(children) == 1 and children[0].children and node.label.endswith("/") and children[0].label.endswith("/"):
            only = children[0]
            node, children = replace(only, label=node.label + only.label, times=node.times * only.times), list(only.children)
        out.append(replace(node, children=tuple(children)))
    return out


def findings_lines(findings: Sequence[Finding], limit: int | None, width: int) -> list[str]:
    """Errors and warnings, then notes, of which few of each kind are listed; those that are the same in every layer are one."""
    if not findings:
        return []
    counts = [
        (name, sum(f.severity == severity for f in findings))
        for severity, name in (("error", "error"), ("warning", "warning"), ("info", "note"))
    ]
    lines = ["findings  " + ", ".join(counted(n, name) for name, n in counts if n)]
    notes = grouped((finding for finding in findings if finding.severity == "info"), lambda finding: finding.kind)
    grave = [finding for finding in findings if finding.severity != "info"]
    listed = grave if limit is None else grave[:limit]
    for finding in listed:
        lines += _finding(finding, width)
    if len(grave) > len(listed):
        lines.append(f"  ... and {len(grave) - len(listed):,} more, all in plan.findings")
    for kind, alike in notes.items():
        listed_notes = alike if limit is None else alike[:MAX_NOTES]
        for finding in listed_notes:
            lines += _finding(finding, width)
        if len(alike) > len(listed_notes):
            lines.append(f"  ... and {len(alike) - len(listed_notes):,} more notes of kind {kind}")
    return lines


def _finding(finding: Finding, width: int) -> list[str]:
    where = ", ".join(part for part in (paths_as_one(finding.all_paths), short_location(finding.location)) if part)
    text = f"{finding.severity}: {finding.kind}: {finding.message}" + (f" [{where}]" if where else "")
    lines = textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    if finding.fix:
        fix = f"fix: {finding.fix}"
        lines += textwrap.wrap(
            fix, width, initial_indent="    ", subsequent_indent="         ", break_long_words=False, break_on_hyphens=False
        )
    return lines


Where = str | Callable[[PlannedValue], object] | None


class Filter:
    """The conditions of `where=`.

    A string is looked for in paths, primitives, `file:line` and modules. With `*` or `?` it is a pattern (`plan/paths`), for the last
    components of one of these or for all of it as it is printed. A function is asked of each value; movements and findings follow the
    values they name, and what they say of themselves. Raises TypeError if it is neither. Raises ShardyError if the string is too long.
    """

    def __init__(self, where: Where, plan: PlanRecord) -> None:
        if where is not None and not isinstance(where, str) and not callable(where):
            raise TypeError(f"where is {where!r}, a {type(where).__name__}; it is a string, as '*attention*', or a function of a value")
        self._shows_all = where is None
        self._matches = _matcher(where) if isinstance(where, str) else None
        self._paths = {value.path for value in plan.values if where(value)} if callable(where) else set()
        self._modules = {value.path: value.module for value in plan.values if value.module} if isinstance(where, str) else {}

    def value(self, value: PlannedValue) -> bool:
        """Whether a value is shown."""
        return self.shows((value.path,), value.primitive, value.location)

    def finding(self, finding: Finding) -> bool:
        """Whether a finding is shown."""
        return self.shows(finding.all_paths, finding.kind, finding.location)

    def shows(self, paths: Iterable[str], name: str, location: str, module: str = "") -> bool:
        """Whether anything is shown of these values, with a name, a line and a module, by default the value's."""
        if self._shows_all or self._matches is None:
            return self._shows_all or not self._paths.isdisjoint(paths)
        texts = ((path, name, module or self._modules.get(path, ""), short_location(location), location) for path in paths)
        return any(text and self._matches(text) for of_path in texts for text in of_path)


def _matcher(pattern: str) -> Callable[[str], object]:
    check_length(pattern, "where")
    if not any(char in pattern for char in "*?"):
        return lambda text: pattern in text
    return functools.partial(names_path, pattern)
