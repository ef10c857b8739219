"""The difference of two plans: values, movements of data, findings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from typing import Any, Literal, TypeVar

from shardy_py.dialect.format import aligned, printable, short_location, sizes_text
from shardy_py.dialect.grouping import grouped
from shardy_py.ir import Op, Value
from shardy_py.ir.types import local_bytes
from shardy_py.plan.checks.table import observed_in
from shardy_py.plan.collectives import format_bytes, received_by
from shardy_py.plan.compiled import compiled_of
from shardy_py.plan.executed import collectives_of, reshards_of
from shardy_py.plan.findings import Finding, Findings
from shardy_py.plan.paths import paths_as_one, without_numbers
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.report import Report, table
from shardy_py.plan.reshards import Reshard
from shardy_py.plan.values import PlannedValue, source_of, typed

_MAX_ALIGNED = 64
"""Up to so many equals, changed shardings are distinguished from additions and removals."""


def partners(plan: PlanRecord, other: PlanRecord) -> list[int]:
    """For each of `plan.values` the number of its match among the values of the other plan; -1 where there is none.

    Runs in time linear in the number of ops.
    """
    named = {(v.kind, v.path): number for number, v in enumerate(other.values) if v.kind != "intermediate"}
    matches = [named.get((value.kind, value.path), -1) for value in plan.values]
    numbers: dict[Hashable, int] = {}
    first, second = _descriptions(plan, numbers), _descriptions(other, numbers)
    offset, other_offset = len(plan.inputs), len(other.inputs)
    left, right = range(len(first)), range(len(second))
    for level in range(_LEVELS):
        there = grouped(right, lambda j, level=level: second[j][level])
        taken: set[int] = set()
        for key, here in grouped(left, lambda i, level=level: first[i][level]).items():
            alike = there.get(key, [])
            if len(here) == len(alike) or (level >= _ENOUGH and alike):
                for i, j in zip(here, alike) if len(here) == len(alike) else _aligned(plan, other, here, alike):
                    matches[offset + i] = other_offset + j
                    taken.add(j)
        left = [i for i in left if matches[offset + i] < 0]
        right = [j for j in right if j not in taken]
    return matches


_LEVELS = 6
"""Descriptions of a value, finest first: its op with two rounds of neighbours, with one, alone; by scope, by function, by rank."""

_ENOUGH = 2
"""From this one on, a description suffices where the plans have different numbers of equals."""


def _descriptions(plan: PlanRecord, numbers: dict[Hashable, int]) -> list[tuple[Hashable, ...]]:
    """The descriptions of each intermediate; `numbers` has those of ops, equal ones of both plans with one number."""

    def number(key: Hashable) -> int:
        return numbers.setdefault(key, len(numbers))

    def maker(value: Value) -> Op | int:
        owner = value.owner
        if isinstance(owner, Op):
            return number(("constant", value.type)) if owner.name == "sdy.constant" else owner
        if isinstance(owner.parent, Op):
            return number(("argument", owner.parent.name, value.index))
        return number(("input", plan.inputs[value.index].path if value.index < len(plan.inputs) else value.index))

    def user(op: Op, operand: int) -> Op | int:
        if op.name == "func.return":
            return number(("output", plan.outputs[operand].path if operand < len(plan.outputs) else operand))
        return number((op.name, operand)) if op.name.endswith(".return") else op

    def round_of(last: dict[Op, int], op: Op) -> int:
        before, after = ([last.get(each, -1) if isinstance(each, Op) else each for each in near] for near in around[op])
        return number((last[op], tuple(before), tuple(sorted(after))))

    functions: dict[Op, str] = {}
    alone: dict[Op, int] = {}
    for value, planned in plan.intermediates:
        op = value.owner
        assert isinstance(op, Op)
        if op not in functions:  # inside of a library's function the one in which it was called
            where = source_of(plan.program, op)
            functions[op] = "" if where is None else where.function
            types = tuple(result.type for result in op.results)
            alone[op] = number((planned.primitive, types, planned.module, functions[op], planned.depth))
    around = {op: ([*map(maker, op.operands)], [user(*use) for result in op.results for use in result.uses]) for op in alone}
    near = {op: round_of(alone, op) for op in alone}
    far = {op: round_of(near, op) for op in alone}
    return [
        (
            *((rounds[op], value.index) for rounds in (far, near, alone)),
            (v.primitive, v.type, v.module, value.index),
            (v.primitive, v.type, functions[op], value.index),
            (v.primitive, v.module, v.type.rank, functions[op], value.index),
        )
        for value, v in plan.intermediates
        if isinstance(op := value.owner, Op)
    ]


def _aligned(plan: PlanRecord, other: PlanRecord, here: list[int], there: list[int]) -> list[tuple[int, int]]:
    """Pairs equals of which one plan has more; equal shardings first."""
    if len(here) > _MAX_ALIGNED or len(there) > _MAX_ALIGNED:
        return list(zip(here, there))
    a, b = ([p.intermediates[i][1].text for i in part] for p, part in ((plan, here), (other, there)))
    pairs: list[tuple[int, int]] = []
    i = j = 0
    for block in SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks():
        pairs += zip(here[i : block.a], there[j : block.b])
        pairs += zip(here[block.a : block.a + block.size], there[block.b : block.b + block.size])
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


_C = TypeVar("_C", ValueChange, ReshardChange)


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
        compiled: What compilers said of each plan, where they were asked; no difference either.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> plan = sp.auto_shard(jnp.dot, mesh={"x": 4}, in_shardings=(jax.P(None, "x"), jax.P("x"))).plan(jnp.eye(8), jnp.eye(8))
        >>> bool(plan.diff(plan)), plan.diff(plan).bytes
        (False, (384, 384))
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
    compiled: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    def __bool__(self) -> bool:
        parts = (self.values, self.reshards, self.collectives, self.new_findings, self.gone_findings)
        return self.meshes[0] != self.meshes[1] or any(parts)

    def as_text(self, limit: int | None = 30) -> str:
        """The differences as text; the same differences give the same text in every process.

        Args:
            limit: Limit of the lines of inputs, outputs, intermediates and reshards each, largest bytes first for the last two; None for
                all. Collectives and findings are always listed.
        """
        before, after = self.names
        searches = [f"planner {sign} {text or 'none, annotations alone'}" for sign, text in zip("-+", self.searches)]
        searches = searches if self.searches[0] != self.searches[1] else []
        searches += [f"compiled {sign} {text}" for sign, texts in zip("-+", self.compiled) for text in texts]
        if not self:
            same = f"no difference between the plans of {before} and {after}" if before != after else f"no difference: plan of {after}"
            return printable("\n".join([same, *searches]))
        lines = [f"from the plan of {before} to the plan of {after}" if before != after else f"changes of the plan of {after}"]
        if self.meshes[0] != self.meshes[1]:
            lines.append(f"mesh  {self.meshes[0]} -> {self.meshes[1]}")
        lines += searches
        inputs, outputs, inside = ([c for c in self.values if c.kind == kind] for kind in ("input", "output", "intermediate"))
        lines += _section("inputs", _ends(inputs), limit)
        lines += _section("outputs", _ends(outputs), limit)
        lines += _section("values", _intermediates(inside), limit)
        lines += _collective_lines(self)
        lines += _section("reshards", _reshard_lines(self.reshards), limit)
        findings = [*(("-", f) for f in self.gone_findings), *(("+", f) for f in self.new_findings)]
        lines += _section("findings", [f"{sign} {finding}" for sign, finding in findings], None)
        return printable("\n".join(lines))

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
    names = {  # that values of the first plan have in the second
        v.path: after.values[j].path if j >= 0 else f"{v.path} before" for v, j in zip(before.values, matches) if v.kind == "intermediate"
    }
    searches = ("" if plan.search is None else plan.search.headline for plan in (before, after))
    answers = (tuple(f"for {target}: {answer.headline}" for target, answer in compiled_of(p).items()) for p in (before, after))
    return PlanDiff(
        names=(before.name, after.name),
        meshes=(sizes_text(before.mesh.shape), sizes_text(after.mesh.shape)),
        values=tuple(_values(before, after, matches)),
        reshards=tuple(_reshards(before, after, names)),
        collectives=tuple(_collectives(before, after)),
        new_findings=Findings(_only_in(after, before, {new: old for old, new in names.items()})),
        gone_findings=Findings(_only_in(before, after, names)),
        bytes=(received_by(collectives_of(before)), received_by(collectives_of(after))),
        searches=(next(searches), next(searches)),
        compiled=(next(answers), next(answers)),
    )


def _values(before: PlanRecord, after: PlanRecord, matches: Sequence[int]) -> Iterable[ValueChange]:
    old = {j: value for value, j in zip(before.values, matches) if j >= 0}
    pairs: list[tuple[PlannedValue | None, PlannedValue | None]] = [(old.get(j), value) for j, value in enumerate(after.values)]
    pairs += [(value, None) for value, j in zip(before.values, matches) if j < 0]
    for kind in ("input", "intermediate", "output"):
        for was, now in pairs:
            shown = now or was
            assert shown is not None
            if shown.kind != kind or (was and now and was.type is now.type and was.sharding is now.sharding):
                continue
            old_text, new_text = ("" if value is None else typed(value.type, value.sharding) for value in (was, now))
            if old_text != new_text:
                sizes = (0 if v is None else local_bytes(v.type, v.sharding, p.program.meshes) for v, p in ((was, before), (now, after)))
                origin = shown.primitive, shown.location, shown.module
                yield ValueChange(_sign(was, now), kind, shown.path, old_text, new_text, next(sizes), next(sizes), *origin)


def _sign(was: object, now: object) -> Sign:
    return "added" if was is None else "removed" if now is None else "changed"


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
        matched: dict[int, Reshard] = {}
        for reshard in left:
            if queue := waiting.get(key(reshard, names.get(reshard.value, reshard.value))):
                matched[id(reshard)] = queue.pop()
        pairs += ((reshard, matched[id(reshard)]) for reshard in left if id(reshard) in matched)
        taken = set(map(id, matched.values()))
        left, right = [r for r in left if id(r) not in matched], [r for r in right if id(r) not in taken]
    pairs += [*((None, reshard) for reshard in right), *((reshard, None) for reshard in left)]
    for was, now in pairs:
        shown = now or was
        assert shown is not None
        old_text, new_text = ("" if reshard is None else _movement(reshard) for reshard in (was, now))
        old_size, new_size = (0 if reshard is None else reshard.call_bytes for reshard in (was, now))
        if old_text != new_text or old_size != new_size:
            head = _sign(was, now), shown.value, shown.reason
            yield ReshardChange(*head, old_text, new_text, old_size, new_size, shown.location)


def _without_numbers(reason: str) -> str:
    """A reason without the numbers by which computations of one name are told apart."""
    return re.sub(r"_\d+\b", "", reason)


def _movement(reshard: Reshard) -> str:
    return f"{reshard.change}: {reshard.steps}"


def _collectives(before: PlanRecord, after: PlanRecord) -> Iterable[CollectiveChange]:
    groups = [grouped(collectives_of(plan), lambda c: (c.kind, ",".join(c.axes))) for plan in (before, after)]
    for kind, axes in sorted(groups[0].keys() | groups[1].keys()):
        alike = [of_plan.get((kind, axes), []) for of_plan in groups]
        change = CollectiveChange(kind, axes, *map(len, alike), *map(received_by, alike))
        if change.count_before != change.count_after or change.bytes_before != change.bytes_after:
            yield change


def _only_in(plan: PlanRecord, other: PlanRecord, names: Mapping[str, str]) -> Iterable[Finding]:
    """Findings that the other plan lacks by kind, severity and path, counted with multiplicity."""
    counts = Counter((f.kind, f.severity, path) for f in observed_in(other)[0] for path in f.all_paths)
    for finding in observed_in(plan)[0]:
        keys = Counter((finding.kind, finding.severity, names.get(path, path)) for path in finding.all_paths)
        if keys - counts:
            yield finding
        counts -= keys


_SIGNS = {"changed": "~", "added": "+", "removed": "-"}


def _section(title: str, lines: Sequence[str], limit: int | None) -> list[str]:
    head = list(lines if limit is None else lines[:limit])
    left = len(lines) - len(head)
    return [title, *(f"  {line}" for line in head), *([f"  ... and {left} more"] if left else [])] if lines else []


def _to(before: str, after: str) -> str:
    return f"{before} -> {after}" if before and after else before or after


def _ends(changes: Iterable[ValueChange]) -> list[str]:
    """Inputs or outputs; those that differ only in numbers of the path share a line."""
    alike = grouped(changes, lambda c: (c.sign, without_numbers(c.path), c.before, c.after)).values()
    return aligned([(f"{_SIGNS[g[0].sign]} {paths_as_one([c.path for c in g])}", _to(g[0].before, g[0].after)) for g in alike])


def _largest_first(groups: Iterable[list[_C]]) -> list[tuple[_C, str]]:
    """The first of alike changes, those of the most bytes first, with the count of the others as text."""
    ordered = sorted(groups, key=lambda group: -len(group) * max(group[0].bytes_before, group[0].bytes_after))
    return [(group[0], f" and {len(group) - 1} more" if len(group) > 1 else "") for group in ordered]


def _intermediates(changes: Iterable[ValueChange]) -> list[str]:
    """Equal changes on one source line share a line; the largest first."""
    alike = grouped(changes, lambda c: (c.sign, c.location, c.module, c.primitive, c.before, c.after)).values()
    rows: list[tuple[str, ...]] = []
    for c, more in _largest_first(alike):
        rows.append((_SIGNS[c.sign], short_location(c.location), c.primitive, c.path + more, _to(c.before, c.after)))
    return aligned(rows)


def _collective_lines(diff: PlanDiff) -> list[str]:
    rows = [
        (
            _SIGNS["changed" if c.count_before and c.count_after else "added" if c.count_after else "removed"],
            f"{c.kind}({c.axes})",
            f"{c.count_before} -> {c.count_after}",
            f"{format_bytes(c.bytes_before)} -> {format_bytes(c.bytes_after)}",
        )
        for c in diff.collectives
    ]
    total = ("", "all of them", "", " -> ".join(map(format_bytes, diff.bytes)))
    return table("collectives, bytes per device and call", [*rows, total]) if rows else []


def _reshard_lines(changes: Iterable[ReshardChange]) -> list[str]:
    alike = grouped(changes, lambda c: (c.sign, c.location, c.reason, c.before, c.after, c.bytes_before, c.bytes_after)).values()
    lines = []
    for c, more in _largest_first(alike):
        sizes = [format_bytes(size) for size, text in ((c.bytes_before, c.before), (c.bytes_after, c.after)) if text]
        head = f"{_SIGNS[c.sign]} {c.value}{more} {c.before or c.after}"
        lines.append("  ".join(filter(None, (head, " -> ".join(dict.fromkeys(sizes)), short_location(c.location), c.reason))))
        if c.sign == "changed" and c.before != c.after:
            lines[-1] += f"\n    now {c.after}"
    return lines
