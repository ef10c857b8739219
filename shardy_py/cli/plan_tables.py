"""A plan as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from shardy_py.cli.output import table, type_text
from shardy_py.plan.checks.accept import alike
from shardy_py.plan.checks.paths import paths_as_one
from shardy_py.plan.collectives import trips_text
from shardy_py.plan.diff import alike_layers, alike_reshards, alike_values, search_lines
from shardy_py.plan.movements import format_bytes
from shardy_py.plan.values import typed
from shardy_py.view.leaves import Listed, by_path, bytes_of, inputs_of, outputs_of
from shardy_py.view.text_moves import equal_reshards
from shardy_py.view.text_tree import fitted, joined

if TYPE_CHECKING:
    from shardy_py.facade import Plan
    from shardy_py.plan import Finding
    from shardy_py.plan.cost_analysis import CostAnalysis
    from shardy_py.plan.diff import PlanDiff, ReshardChange, ValueChange
    from shardy_py.plan.memory.report import MemoryAnalysis

STYLES = {"error": "bold red", "warning": "yellow", "info": "blue"}
SIGNS = {"changed": ("~", "yellow"), "added": ("+", "green"), "removed": ("-", "red")}


def plan_tables(plan: Plan, limit: int) -> Iterator[RenderableType]:
    """Mesh, inputs, outputs, collectives, reshards, findings.

    Args:
        plan: The plan.
        limit: Lines of each table.
    """
    axes = "  ".join(f"{name}={size}" for name, size in plan.mesh.shape.items())
    yield Text.assemble((plan.name, "bold"), " on ", (axes, "cyan"), f"  {plan.mesh.size:,} devices")
    if plan.search is not None:
        yield Text.assemble("planner: ", plan.search.headline)
    yield ""
    yield _tree("inputs", plan, inputs_of(plan), limit)
    yield ""
    yield _tree("outputs", plan, outputs_of(plan), limit)
    if plan.collectives:
        yield ""
        yield _collectives(plan)
    if plan.reshards:
        yield ""
        yield _reshards(plan, limit)
    if plan.findings:
        yield ""
        yield from finding_lines(plan.findings, limit)


def _tree(title: str, plan: Plan, values: Sequence[Listed], limit: int) -> RenderableType:
    nodes = by_path(plan, values)
    rows: list[tuple[str, Text, str, str]] = []
    stack = [(node, 0) for node in reversed(fitted(joined(nodes), limit))]
    while stack:
        node, level = stack.pop()
        size = format_bytes(node.bytes) if node.count else ""
        rows.append(("  " * level + node.label, type_text(node.text), size, f"x{node.times}" if node.times > 1 else ""))
        stack.extend((child, level + 1) for child in reversed(node.children))
    note = f"{len(values):,} array{'' if len(values) == 1 else 's'}, {format_bytes(bytes_of(nodes))} on each device"
    return (
        table(title, ("path*", "type*", "on each device>", ""), rows, note) if rows else Text.assemble((title, "bold"), ("  none", "dim"))
    )


def _collectives(plan: Plan) -> RenderableType:
    totals: dict[tuple[str, str], list[int]] = {}
    for c in plan.collectives:
        entry = totals.setdefault((c.kind, ", ".join(c.axes)), [0, 0])
        entry[0] += 1
        entry[1] += c.call_bytes
    rows = [
        (kind, Text(axes, "cyan"), f"{count:,}", format_bytes(size))
        for (kind, axes), (count, size) in sorted(totals.items(), key=lambda item: -item[1][1])
    ]
    total = sum(size for _, size in totals.values())
    return table("collectives", ("kind", "axes*", "number>", "received>"), rows, f"{format_bytes(total)} to each device in a call")


def _reshards(plan: Plan, limit: int) -> RenderableType:
    """Reshards with the most bytes first; alike ones of several values share a line."""
    ordered = sorted(equal_reshards(plan.reshards), key=lambda group: -len(group) * group[0].call_bytes)
    rows = []
    for group in ordered[: max(limit // 3, 1)]:
        r = group[0]
        value = r.value + (f" and {len(group) - 1} more" if len(group) > 1 else "")
        only_sums = r.source is not None and r.target is not None and bool(r.source.unreduced) and r.source.are_dim_axes_equal(r.target)
        moved = Text() if only_sums else Text.assemble(type_text(typed(r.type, r.source)), " -> ")
        cells = Text.assemble(f"{value} ", moved, type_text(typed(r.type, r.target)))
        steps, place, size = ", ".join(map(str, r.collectives)), r.location.rpartition("/")[2], format_bytes(r.bytes_per_device)
        rows.append((size + trips_text(r.trips), steps, place, cells, (r.primitive or r.reason) if only_sums else r.reason))
    left = sum(map(len, ordered[len(rows) :]))
    note = f"{len(plan.reshards):,}" + (f", the {left:,} smallest are not shown" if left else "")
    return table("reshards", ("bytes>", "as*", "line", "value*", "for*"), rows, note)


def finding_lines(findings: Sequence[Finding], limit: int | None = None) -> Iterator[RenderableType]:
    """Findings that differ only in numbers of layers grouped, notes last.

    Args:
        findings: The findings.
        limit: The most; None for all.
    """
    groups = alike(findings)
    yield Text.assemble(("findings", "bold"), (f"  {len(findings):,}", "dim"))
    for group in groups[:limit]:
        finding = group.first
        where = ", ".join(part for part in (group.path, finding.location.rpartition("/")[2]) if part)
        head = Text.assemble(("  ", ""), (finding.severity, STYLES[finding.severity]), (f" {finding.kind}", "bold"), (f"  {where}", "dim"))
        yield head
        yield _indented(finding.message)
        if finding.fix:
            yield _indented(f"fix: {finding.fix}", "green")
    if limit is not None and len(groups) > limit:
        yield Text(f"  ... and {sum(group.count for group in groups[limit:]):,} more", "dim")


def _indented(text: str, style: str = "") -> RenderableType:
    from rich.padding import Padding

    return Padding(Text(text, style), (0, 0, 0, 4))


def cost_tables(cost: CostAnalysis, memory: MemoryAnalysis | None) -> Iterator[RenderableType]:
    """Costs of a call on hardware."""
    from shardy_py.plan.cost_analysis import summary_rows, tables
    from shardy_py.plan.memory.report import summary_rows as memory_rows

    on = "" if cost.hardware is None else f", on {cost.hardware.name}"
    yield table("cost of a call", ("", "*"), summary_rows(cost), f"per device{on}")
    for title, heads, cells in tables(cost, 8):
        if title in ("by mesh axis", "by op"):
            yield ""
            yield table(title, [head if i == 0 else f"{head}>" for i, head in enumerate(heads)], cells)
    if memory is not None:
        yield ""
        yield table("memory", ("", "*"), memory_rows(memory), "per device")
        yield from (finding.message for finding in memory.findings)


def diff_tables(diff: PlanDiff, limit: int) -> Iterator[RenderableType]:
    """The differences of two plans.

    Args:
        diff: The differences.
        limit: Lines of each table.
    """
    before, after = diff.names
    if not diff:
        yield Text.assemble("no difference: ", (after, "bold"))
        yield from map(Text, search_lines(diff))
        return
    yield Text.assemble((before, "bold"), *([] if before == after else [" -> ", (after, "bold")]))
    if diff.meshes[0] != diff.meshes[1]:
        yield Text.assemble("mesh ", (diff.meshes[0], "red"), " -> ", (diff.meshes[1], "green"))
    yield from map(Text, search_lines(diff))
    for title, kind in (("inputs", "input"), ("outputs", "output")):
        changes = [change for change in diff.values if change.kind == kind]
        layers = alike_layers(changes)
        rows = [(_sign(group[0].sign), paths_as_one([c.path for c in group]), _types(group[0])) for group in layers]
        yield from _limited(title, ("", "path*", "type*"), rows, limit)
    groups = alike_values(change for change in diff.values if change.kind == "intermediate")
    rows = [
        (_sign(c.sign), c.location.rpartition("/")[2], c.primitive, _counted(c.path, group), _types(c))
        for group in groups
        for c in group[:1]
    ]
    yield from _limited("values", ("", "line", "primitive", "value*", "type*"), rows, limit)
    if diff.collectives:
        totals = [
            (f"{c.kind}({c.axes})", str(c.count_before), str(c.count_after), format_bytes(c.bytes_before), format_bytes(c.bytes_after))
            for c in diff.collectives
        ]
        totals.append(("all of them", "", "", format_bytes(diff.bytes[0]), format_bytes(diff.bytes[1])))
        heads = ("kind*", "number>", "now>", "bytes>", "now>")
        yield from _limited("collectives", heads, totals, None, "per device and call")
    moves = [
        (_sign(c.sign), c.location.rpartition("/")[2], _moved(c, group), " -> ".join(_sizes(c)))
        for group in alike_reshards(diff.reshards)
        for c in group[:1]
    ]
    yield from _limited("reshards", ("", "line", "value*", "bytes>"), moves, limit)
    for title, findings in (("new", diff.new_findings), ("gone", diff.gone_findings)):
        if findings:
            yield ""
            yield Text(f"{title} ", end="")
            yield from finding_lines(findings)


def _limited(
    title: str, heads: Sequence[str], rows: Sequence[Sequence[str | Text]], limit: int | None, note: str = ""
) -> Iterator[RenderableType]:
    """An empty line and a table, where there are rows."""
    if rows:
        shown = rows if limit is None else rows[:limit]
        left = len(rows) - len(shown)
        yield ""
        yield table(title, heads, shown, f"{left:,} more lines are not shown" if left else note)


def _types(change: ValueChange) -> Text:
    arrow = " -> " if change.before and change.after else ""
    return Text.assemble(type_text(change.before), arrow, type_text(change.after))


def _counted(name: str, group: Sequence[object]) -> str:
    return name if len(group) == 1 else f"{name} and {len(group) - 1} more"


def _moved(change: ReshardChange, group: Sequence[object]) -> Text:
    if change.before and change.after and change.before != change.after:
        return Text.assemble(f"{_counted(change.value, group)} ", (change.before, "red"), "\nnow ", (change.after, "green"))
    return Text.assemble(f"{_counted(change.value, group)} ", type_text(change.before or change.after))


def _sizes(change: ReshardChange) -> list[str]:
    sizes = [size for size, text in ((change.bytes_before, change.before), (change.bytes_after, change.after)) if text]
    return list(dict.fromkeys(map(format_bytes, sizes)))


def _sign(sign: str) -> Text:
    return Text(*SIGNS[sign])
