"""The difference of two plans: values, movements of data, findings."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from typing import Any, Literal

from shardy_py.dialect.format import aligned, printable, short_location, sizes_text
from shardy_py.dialect.grouping import grouped
from shardy_py.ir import Block, Op, Value
from shardy_py.ir.pieces import local_bytes
from shardy_py.plan.checks.table import observed_in
from shardy_py.plan.collectives import format_bytes, received_by
from shardy_py.plan.executed import collectives_of, reshards_of
from shardy_py.plan.findings import Finding, Findings
from shardy_py.plan.paths import paths_as_one
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.report import Report
from shardy_py.plan.reshards import Reshard
from shardy_py.plan.values import PlannedValue, typed

_ROUNDS = 2
"""Radius of the surroundings of a value, in ops."""

_MAX_ALIGNED = 64
"""Up to so many equals, changed shardings are distinguished from additions and removals."""


def partners(plan: PlanRecord, other: PlanRecord) -> list[int]:
    """For each of `plan.values` the number of its match among the values of the other plan; -1 where there is none.

    Runs in time linear in the number of ops.
    """
    matches = [-1] * len(plan.values)
    named = {(v.kind, v.path): number for number, v in enumerate(other.values) if v.kind != "intermediate"}
    for number, value in enumerate(plan.values):
        if value.kind != "intermediate":
            matches[number] = named.get((value.kind, value.path), -1)
    numbers: dict[Hashable, int] = {}
    first, second = _Descriptions(plan, numbers), _Descriptions(other, numbers)
    offset, other_offset = len(plan.inputs), len(other.inputs)
    left, right = list(range(len(first.planned))), list(range(len(second.planned)))
    for level in range(len(_LEVELS)):
        pairs = list(_pairs(level, first, second, left, right))
        for i, j in pairs:
            matches[offset + i] = other_offset + j
        matched, matched_there = {i for i, _ in pairs}, {j for _, j in pairs}
        left = [i for i in left if i not in matched]
        right = [j for j in right if j not in matched_there]
        if not left or not right:
            break
    return matches


class _Descriptions:
    """The intermediates of a plan with their descriptions; equal descriptions are equal numbers in both plans."""

    def __init__(self, plan: PlanRecord, numbers: dict[Hashable, int]) -> None:
        self.plan = plan
        self.numbers = numbers
        self.values = [value for value, _ in plan.intermediates]
        self.planned = [planned for _, planned in plan.intermediates]
        self.functions = self._functions()
        self.rounds = self._rounds()

    def number(self, key: Hashable) -> int:
        """The number of a description."""
        return self.numbers.setdefault(key, len(self.numbers))

    def _functions(self) -> list[str]:
        """The user's function in which each was written; inside a library's function, in which it was called."""
        names: dict[Op, str] = {}
        locate = self.plan.program.locate
        functions: list[str] = []
        for value in self.values:
            op = value.owner
            assert isinstance(op, Op)
            name = names.get(op)
            if name is None:
                where = locate(op.location)
                inherited = "" if op.parent is None else names.get(op.parent, "")
                name = names[op] = inherited if where is None else where.function
            functions.append(name)
        return functions

    def _rounds(self) -> list[dict[Op, int]]:
        """Descriptions of each op: alone, with its neighbours, and with theirs."""
        ops: dict[Op, int] = {}
        for value, planned, function in zip(self.values, self.planned, self.functions):
            op = value.owner
            assert isinstance(op, Op)
            if op not in ops:
                types = tuple(result.type for result in op.results)
                ops[op] = self.number((planned.primitive, types, planned.module, function, planned.depth))
        around = {op: self._around(op) for op in ops}
        rounds = [ops]
        for _ in range(_ROUNDS):
            last = rounds[-1]
            rounds.append({op: self._with_neighbours(last, op, *around[op]) for op in ops})
        return rounds

    def _with_neighbours(self, last: dict[Op, int], op: Op, before: Sequence[Any], after: Sequence[Any]) -> int:
        operands = tuple(last.get(b, -1) if isinstance(b, Op) else b for b in before)
        users = tuple(sorted(last.get(a, -1) if isinstance(a, Op) else a for a in after))
        return self.number((last[op], operands, users))

    def _around(self, op: Op) -> tuple[list[Any], list[Any]]:
        before = [self._maker(operand) for operand in op.operands]
        after = [self._user(user, i) for result in op.results for user, i in result.uses]
        return before, after

    def _maker(self, value: Value) -> Op | int:
        owner = value.owner
        if isinstance(owner, Op):
            return self.number(("constant", value.type)) if owner.name == "sdy.constant" else owner
        parent = owner.parent if isinstance(owner, Block) else None
        if isinstance(parent, Op):
            return self.number(("argument", parent.name, value.index))
        return self.number(("input", self.plan.inputs[value.index].path if value.index < len(self.plan.inputs) else value.index))

    def _user(self, op: Op, operand: int) -> Op | int:
        if op.name == "func.return":
            return self.number(("output", self.plan.outputs[operand].path if operand < len(self.plan.outputs) else operand))
        return self.number((op.name, operand)) if op.name.endswith(".return") else op


def _near(rounds: int) -> Callable[[_Descriptions, int], Hashable]:
    def key(plan: _Descriptions, i: int) -> Hashable:
        value = plan.values[i]
        op = value.owner
        assert isinstance(op, Op)
        return plan.rounds[rounds][op], value.index

    return key


def _by(*parts: Callable[[PlannedValue], Hashable], function: bool = False) -> Callable[[_Descriptions, int], Hashable]:
    def key(plan: _Descriptions, i: int) -> Hashable:
        description = tuple(part(plan.planned[i]) for part in parts)
        return (*description, plan.functions[i], plan.values[i].index) if function else (*description, plan.values[i].index)

    return key


_LEVELS: tuple[tuple[Callable[[_Descriptions, int], Hashable], bool], ...] = (
    (_near(2), False),
    (_near(1), False),
    (_near(0), True),
    (_by(lambda v: v.primitive, lambda v: v.type, lambda v: v.module), True),
    (_by(lambda v: v.primitive, lambda v: v.type, function=True), True),
    (_by(lambda v: v.primitive, lambda v: v.module, lambda v: v.type.rank, function=True), True),
)
"""Descriptions that values match by, finest first; and whether one suffices where the plans have different numbers of equals."""


def _pairs(level: int, first: _Descriptions, second: _Descriptions, left: Sequence[int], right: Sequence[int]) -> list[tuple[int, int]]:
    key, enough = _LEVELS[level]
    groups: dict[Hashable, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for i in left:
        groups[key(first, i)][0].append(i)
    for j in right:
        groups[key(second, j)][1].append(j)
    pairs: list[tuple[int, int]] = []
    for of_first, of_second in groups.values():
        if len(of_first) == len(of_second):
            pairs += zip(of_first, of_second)
        elif enough and of_first and of_second:
            pairs += _aligned(first, second, of_first, of_second)
    return pairs


def _aligned(first: _Descriptions, second: _Descriptions, of_first: list[int], of_second: list[int]) -> list[tuple[int, int]]:
    """Pairs equals of which one plan has more; equal shardings first."""
    a = [typed(first.planned[i].type, first.planned[i].sharding) for i in of_first]
    b = [typed(second.planned[j].type, second.planned[j].sharding) for j in of_second]
    if len(a) > _MAX_ALIGNED or len(b) > _MAX_ALIGNED:
        return list(zip(of_first, of_second))
    pairs: list[tuple[int, int]] = []
    i = j = 0
    for block in SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks():
        pairs += zip(of_first[i : block.a], of_second[j : block.b])
        pairs += zip(of_first[block.a : block.a + block.size], of_second[block.b : block.b + block.size])
        i, j = block.a + block.size, block.b + block.size
    return pairs


FORMAT = "shardy_py.diff"
VERSION = 1

Sign = Literal["changed", "added", "removed"]


@dataclass(frozen=True, slots=True)
class ValueChange:
    """A value that differs between the plans, or exists in only one of them.

    Attributes:
        path: Its path or name in the second plan; of one that was removed in the first.
        before: Type with sharding in the first plan; empty where it was added.
    """

    sign: Sign
    kind: str
    path: str
    before: str
    after: str
    bytes_before: int
    bytes_after: int
    primitive: str = ""
    location: str = ""
    module: str = ""


@dataclass(frozen=True, slots=True)
class ReshardChange:
    """A movement of data that differs between the plans, or exists in only one of them.

    Attributes:
        value: Path or name of the value that moves, in the second plan; of one that was removed in the first.
        before: Its collectives in the first plan, `all_gather(model)  9 MiB x3`, without the bytes; empty where it was added.
        bytes_before: Bytes that each device receives in a call, with unknown numbers of trips taken for one.
    """

    sign: Sign
    value: str
    reason: str
    before: str
    after: str
    bytes_before: int
    bytes_after: int
    location: str = ""


@dataclass(frozen=True, slots=True)
class CollectiveChange:
    """All collectives of a kind over the same axes, where their number or bytes (a device's, unknown trips once) differ."""

    kind: str
    axes: str
    count_before: int
    count_after: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True, repr=False)
class PlanDiff(Report):
    """The differences between two plans; false where there are none.

    Attributes:
        names: Names of the two functions.
        meshes: Axes and sizes of the two meshes, `data=2, model=4`.
        values: Inputs, then intermediates, then outputs.
        reshards: Movements of data.
        collectives: In the order of kinds.
        new_findings: Findings that only the second plan has.
        gone_findings: Findings that only the first plan has.
        bytes: Bytes that a device receives in a call of each plan, over all collectives.
        searches: Objective, bound and budget of the planner's searches; empty where there was none. Like times, they are no difference.
    """

    names: tuple[str, str]
    meshes: tuple[str, str]
    values: tuple[ValueChange, ...]
    reshards: tuple[ReshardChange, ...]
    collectives: tuple[CollectiveChange, ...]
    new_findings: Findings
    gone_findings: Findings
    bytes: tuple[int, int]
    searches: tuple[str, str] = ("", "")

    def __bool__(self) -> bool:
        parts = (self.values, self.reshards, self.collectives, self.new_findings, self.gone_findings)
        return self.meshes[0] != self.meshes[1] or any(parts)

    def as_text(self, limit: int | None = 30) -> str:
        """The differences as text; the same differences give the same text in every process.

        Args:
            limit: Limit of the lines of inputs, outputs, intermediates and reshards each, largest bytes first for the last two; None for
                all. Collectives and findings are always listed.
        """
        return printable(diff_text(self, limit))

    def to_dict(self) -> dict[str, Any]:
        """The differences as dicts, lists, strings and numbers, with a version."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    def __repr__(self) -> str:
        signs = Counter(change.sign for change in self.values)
        counts = ", ".join(f"{signs[sign]} values {sign}" for sign in ("changed", "added", "removed"))
        return f"<PlanDiff of {self.names[1]}: {counts}, {len(self.reshards)} reshards differ>" if self else "<PlanDiff: no difference>"


def diff_plans(before: PlanRecord, after: PlanRecord) -> PlanDiff:
    """Compares two plans."""
    matches = partners(before, after)
    names = _new_names(before, after, matches)
    return PlanDiff(
        names=(before.name, after.name),
        meshes=(sizes_text(before.mesh.shape), sizes_text(after.mesh.shape)),
        values=tuple(_values(before, after, matches)),
        reshards=tuple(_reshards(before, after, names)),
        collectives=tuple(_collectives(before, after)),
        new_findings=Findings(_only_in(after, before, {new: old for old, new in names.items()})),
        gone_findings=Findings(_only_in(before, after, names)),
        bytes=(received_by(collectives_of(before)), received_by(collectives_of(after))),
        searches=(_search_text(before), _search_text(after)),
    )


def _search_text(plan: PlanRecord) -> str:
    return "" if plan.search is None else plan.search.headline


def _new_names(before: PlanRecord, after: PlanRecord, matches: Sequence[int]) -> dict[str, str]:
    """The names that values of the first plan have in the second."""
    others = after.values
    return {v.path: others[j].path if j >= 0 else f"{v.path} before" for v, j in zip(before.values, matches) if v.kind == "intermediate"}


def _values(before: PlanRecord, after: PlanRecord, matches: Sequence[int]) -> Iterable[ValueChange]:
    old = {j: value for value, j in zip(before.values, matches) if j >= 0}
    pairs: list[tuple[PlannedValue | None, PlannedValue | None]] = [(old.get(j), value) for j, value in enumerate(after.values)]
    pairs += [(value, None) for value, j in zip(before.values, matches) if j < 0]
    changes = [change for pair in pairs if (change := _change(*pair, before, after)) is not None]
    order = {"input": 0, "intermediate": 1, "output": 2}
    return sorted(changes, key=lambda change: order[change.kind])


def _change(old: PlannedValue | None, new: PlannedValue | None, before: PlanRecord, after: PlanRecord) -> ValueChange | None:
    if old is not None and new is not None and old.type is new.type and old.sharding is new.sharding:
        return None
    was, now = ("" if value is None else typed(value.type, value.sharding) for value in (old, new))
    if was == now:
        return None
    shown = new or old
    assert shown is not None
    sign: Sign = "added" if old is None else "removed" if new is None else "changed"
    sizes = _size(old, before), _size(new, after)
    return ValueChange(sign, shown.kind, shown.path, was, now, sizes[0], sizes[1], shown.primitive, shown.location, shown.module)


def _size(value: PlannedValue | None, plan: PlanRecord) -> int:
    return 0 if value is None else local_bytes(value.type, value.sharding, plan.program.meshes)


def _reshards(before: PlanRecord, after: PlanRecord, names: Mapping[str, str]) -> Iterable[ReshardChange]:
    left, right = list(reshards_of(before)), list(reshards_of(after))
    pairs: list[tuple[Reshard | None, Reshard | None]] = []
    keys: tuple[Callable[[Reshard, str], Hashable], ...] = (
        lambda r, name: (name, _without_numbers(r.reason), r.type, _movement(r)),
        lambda r, name: (name, _without_numbers(r.reason)),
        lambda r, name: (_without_numbers(r.reason), r.type),
    )
    for key in keys:
        waiting = grouped(reversed(right), lambda reshard, key=key: key(reshard, reshard.value))
        unmatched: list[Reshard] = []
        matched: set[int] = set()
        for reshard in left:
            queue = waiting.get(key(reshard, names.get(reshard.value, reshard.value)))
            if queue:
                other = queue.pop()
                matched.add(id(other))
                pairs.append((reshard, other))
            else:
                unmatched.append(reshard)
        left, right = unmatched, [reshard for reshard in right if id(reshard) not in matched]
    pairs += ((None, reshard) for reshard in right)
    pairs += ((reshard, None) for reshard in left)
    for old, new in pairs:
        was, now = ("" if reshard is None else _movement(reshard) for reshard in (old, new))
        size, new_size = (0 if reshard is None else reshard.call_bytes for reshard in (old, new))
        if was == now and size == new_size:
            continue
        representative = new or old
        assert representative is not None
        sign: Sign = "added" if old is None else "removed" if new is None else "changed"
        yield ReshardChange(sign, representative.value, representative.reason, was, now, size, new_size, representative.location)


def _without_numbers(reason: str) -> str:
    """A reason without the numbers by which computations of one name are told apart."""
    return re.sub(r"_\d+\b", "", reason)


def _movement(reshard: Reshard) -> str:
    steps = ", ".join(map(str, reshard.collectives))
    return f"{reshard.change}: {steps}"


def _collectives(before: PlanRecord, after: PlanRecord) -> Iterable[CollectiveChange]:
    counted: list[dict[tuple[str, str], list[int]]] = []
    for plan in (before, after):
        totals: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
        for c in collectives_of(plan):
            total = totals[c.kind, ",".join(c.axes)]
            total[0] += 1
            total[1] += c.call_bytes
        counted.append(totals)
    for kind, axes in sorted(counted[0].keys() | counted[1].keys()):
        (count, size), (new_count, new_size) = (totals.get((kind, axes), [0, 0]) for totals in counted)
        if (count, size) != (new_count, new_size):
            yield CollectiveChange(kind, axes, count, new_count, size, new_size)


def _only_in(plan: PlanRecord, other: PlanRecord, names: Mapping[str, str]) -> Iterable[Finding]:
    """Findings that the other plan lacks by kind, severity and path, counted with multiplicity."""
    counts = Counter((f.kind, f.severity, path) for f in observed_in(other)[0] for path in f.all_paths)
    for finding in observed_in(plan)[0]:
        keys = Counter((finding.kind, finding.severity, names.get(path, path)) for path in finding.all_paths)
        if keys - counts:
            yield finding
        counts -= keys


_SIGNS = {"changed": "~", "added": "+", "removed": "-"}


def diff_text(diff: PlanDiff, limit: int | None = None) -> str:
    """Renders inputs, outputs, intermediates, collectives, reshards and findings, without sections that have no difference."""
    before, after = diff.names
    if not diff:
        same = f"no difference between the plans of {before} and {after}" if before != after else f"no difference: plan of {after}"
        return "\n".join([same, *search_lines(diff)])
    lines = [f"from the plan of {before} to the plan of {after}" if before != after else f"changes of the plan of {after}"]
    if diff.meshes[0] != diff.meshes[1]:
        lines.append(f"mesh  {diff.meshes[0]} -> {diff.meshes[1]}")
    lines += search_lines(diff)
    for title, kind in (("inputs", "input"), ("outputs", "output")):
        lines += _section(title, _input_lines([change for change in diff.values if change.kind == kind]), limit)
    lines += _section("values", _intermediates([change for change in diff.values if change.kind == "intermediate"]), limit)
    lines += _collective_lines(diff)
    lines += _section("reshards", _reshard_lines(diff.reshards), limit)
    findings = [*(("-", f) for f in diff.gone_findings), *(("+", f) for f in diff.new_findings)]
    lines += _section("findings", [f"  {sign} {finding}" for sign, finding in findings], None)
    return "\n".join(lines)


def search_lines(diff: PlanDiff) -> list[str]:
    """A line for each of two searches that differ."""
    if diff.searches[0] == diff.searches[1]:
        return []
    return [f"planner {sign} {text or 'none, annotations alone'}" for sign, text in zip("-+", diff.searches)]


def alike_layers(changes: Iterable[ValueChange]) -> list[list[ValueChange]]:
    """Changes that differ only in numbers of the path together, in order of the first of each."""
    return list(grouped(changes, lambda c: (c.sign, re.sub(r"\d+", "#", c.path), c.before, c.after)).values())


def alike_values(changes: Iterable[ValueChange]) -> list[list[ValueChange]]:
    """Equal changes on one source line together, those of the most bytes first."""
    groups = grouped(changes, lambda c: (c.sign, c.location, c.module, c.primitive, c.before, c.after))
    return sorted(groups.values(), key=lambda group: -len(group) * max(group[0].bytes_before, group[0].bytes_after))


def alike_reshards(changes: Iterable[ReshardChange]) -> list[list[ReshardChange]]:
    """Changes that differ in nothing but the value together, those of the most bytes first."""
    groups = grouped(changes, lambda c: (c.sign, c.location, c.reason, c.before, c.after, c.bytes_before, c.bytes_after))
    return sorted(groups.values(), key=lambda group: -len(group) * max(group[0].bytes_before, group[0].bytes_after))


def _section(title: str, lines: Sequence[str], limit: int | None) -> list[str]:
    head = list(lines if limit is None else lines[:limit])
    left = len(lines) - len(head)
    return [title, *head, *([f"  ... and {left} more"] if left else [])] if lines else []


def _to(before: str, after: str) -> str:
    return f"{before} -> {after}" if before and after else before or after


def _input_lines(changes: Sequence[ValueChange]) -> list[str]:
    rows = [(group[0], paths_as_one([c.path for c in group])) for group in alike_layers(changes)]
    width = max((len(path) for _, path in rows), default=0)
    return [f"  {_SIGNS[c.sign]} {path:<{width}}  {_to(c.before, c.after)}" for c, path in rows]


def _intermediates(changes: Sequence[ValueChange]) -> list[str]:
    """Equal changes on one source line share a line; the largest first."""
    rows = []
    for group in alike_values(changes):
        c = group[0]
        name = c.path if len(group) == 1 else f"{c.path} and {len(group) - 1} more"
        place = short_location(c.location)
        rows.append((_SIGNS[c.sign], place, c.primitive, name, _to(c.before, c.after)))
    return _table(rows)


def _collective_lines(diff: PlanDiff) -> list[str]:
    if not diff.collectives:
        return []
    rows = [
        (
            "~" if c.count_before and c.count_after else "+" if c.count_after else "-",
            f"{c.kind}({c.axes})",
            f"{c.count_before} -> {c.count_after}",
            f"{format_bytes(c.bytes_before)} -> {format_bytes(c.bytes_after)}",
        )
        for c in diff.collectives
    ]
    rows.append(("", "all of them", "", " -> ".join(map(format_bytes, diff.bytes))))
    return _section("collectives, bytes per device and call", _table(rows), None)


def _reshard_lines(changes: Sequence[ReshardChange]) -> list[str]:
    lines = []
    for group in alike_reshards(changes):
        c = group[0]
        name = c.value if len(group) == 1 else f"{c.value} and {len(group) - 1} more"
        sizes = [format_bytes(size) for size, text in ((c.bytes_before, c.before), (c.bytes_after, c.after)) if text]
        place = short_location(c.location)
        moved = " -> ".join(dict.fromkeys(sizes))
        head = f"  {_SIGNS[c.sign]} {name} {c.before or c.after}"
        lines.append("  ".join(part for part in (head, moved, place, c.reason) if part))
        if c.sign == "changed" and c.before != c.after:
            lines[-1] += f"\n    now {c.after}"
    return lines


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    return [f"  {line}" for line in aligned(rows)]
