"""A plan as the plain data of a page: tables, columns of numbers with one entry per value, and short lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from shardy_py.cost.hardware import Hardware
from shardy_py.dialect import AxisRef, Mesh, TensorSharding
from shardy_py.dialect.format import short_location
from shardy_py.dialect.grouping import Interner
from shardy_py.ir import Program, TensorType, Type, Value
from shardy_py.ir.types import local_bytes, local_shape
from shardy_py.passes.collection import no_collection
from shardy_py.passes.propagation.graph import Holder
from shardy_py.plan import costing
from shardy_py.plan.checks.specs import sharding_text
from shardy_py.plan.checks.table import findings_of
from shardy_py.plan.collectives import Collective, format_bytes
from shardy_py.plan.compiled import compiled_of
from shardy_py.plan.cost_analysis import Share, layout_text, summary_rows
from shardy_py.plan.derivation import Fact, derive
from shardy_py.plan.executed import collectives_of, remark_on
from shardy_py.plan.explain import explain
from shardy_py.plan.explainer import Explainer, explainer_of
from shardy_py.plan.explanation import KINDS, Missing
from shardy_py.plan.findings import Finding
from shardy_py.plan.memory import analysis as memory_analysis
from shardy_py.plan.memory.analysis import MemoryAnalysis
from shardy_py.plan.memory.analysis import summary_rows as memory_rows
from shardy_py.plan.paths import path_parts
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.values import PlannedValue, typed


@no_collection()
def payload(plan: PlanRecord, hardware: str | Hardware | None = None) -> dict[str, Any]:
    """Everything that the page of one plan shows; the same plan gives the same data in every process.

    Values are numbered as in `plan.values`: inputs, intermediates, outputs. Numbers behind those stand for values that a plan does not
    list, such as arguments of loop bodies, which `links` refers to; `unlisted` has their names.
    """
    data = _Reader(plan)
    return {**data.read(), **costs(plan, hardware, data.by_path), **search_data(plan, data.by_path)}


class _Reader:
    def __init__(self, plan: PlanRecord) -> None:
        self.plan = plan
        self.tables = Tables(plan.program, plan.mesh, _devices(plan))
        self.listed = plan.intermediates
        self.first_output = len(plan.inputs) + len(self.listed)
        self.count = self.first_output + len(plan.outputs)
        self.numbers: dict[Any, int] = {value: len(plan.inputs) + i for i, (value, _) in enumerate(self.listed)}
        self.numbers.update((value, i) for i, value in enumerate(plan.program.main.arguments[: len(plan.inputs)]))
        self.unlisted: list[str] = []
        self.by_path: dict[str, int] = {}

    def read(self) -> dict[str, Any]:
        plan, tables = self.plan, self.tables
        values = self._values()
        collectives = [self._collective(c) for c in collectives_of(plan)]
        findings = [row for number, finding in enumerate(findings_of(plan)) for row in self._finding(finding, number)]
        data = {
            "name": plan.name,
            "lowering": plan.lowering,
            "remark": remark_on(plan),
            "values": values,
            "links": links(plan, tables, self._number),
            "unlisted": self.unlisted,
            "collectives": collectives,
            "findings": findings,
            "absences": absences(plan, [f[3] for f in findings if f[3] >= 0], [tables.types.rows[t]["bytes"] for t in values["types"]]),
            "donation": [[d.input, -1 if d.output is None else self.first_output + d.output, d.reason, d.fix] for d in plan.donation],
        }
        return {**data, "tables": tables.rows()}

    def _values(self) -> dict[str, Any]:
        plan, tables = self.plan, self.tables
        types, primitives, places, depths = [], [], [], []
        paths: list[list[int]] = []
        text = tables.strings
        for value in plan.values:
            self.by_path.setdefault(value.path, len(types))
            types.append(tables.types((value.type, value.sharding, value.memory_kind)))
            primitives.append(text(value.primitive))
            places.append(tables.places((value.location, value.module)))
            depths.append(value.depth)
            if value.kind != "intermediate":
                paths.append([text(part) for part in path_parts(value.path)])
        names = [planned.path for _, planned in self.listed]
        user_shardings = [-1 if v.given is None else tables.types((v.type, v.given, v.memory_kind)) for v in (*plan.inputs, *plan.outputs)]
        return {
            "inputs": len(plan.inputs),
            "outputs": len(plan.outputs),
            "paths": paths,
            "given": user_shardings,
            "names": None if names == [f"%{i}" for i in range(len(names))] else names,  # the page numbers them itself
            "types": types,
            "primitives": primitives,
            "places": places,
            "depths": depths,
        }

    def _number(self, holder: Holder, name: str) -> int:
        if not isinstance(holder, Value):
            return self.first_output + holder.index
        number = self.numbers.get(holder)
        if number is None:
            number = self.numbers[holder] = self.count + len(self.unlisted)
            self.unlisted.append(name)
        return number

    def _moving(self, name: str) -> int:
        """The number of a value that moves; -1 if the plan does not list it."""
        value, _ = self.plan.by_path.get(name, (None, None))
        return self.numbers.get(value, -1) if isinstance(value, Value) else -1

    def _at(self, location: str) -> int:
        return self.tables.places((location, ""))

    def _collective(self, c: Collective) -> list[Any]:
        text = self.tables.strings
        head = [self._moving(c.value), c.value, c.kind, list(c.axes), c.group_size, c.operand]
        return [*head, c.received_bytes, c.trips, text(c.primitive + ", overlapped" * c.overlapped), self._at(c.location)]

    def _finding(self, f: Finding, number: int) -> list[list[Any]]:
        """A row for each value that a finding is about, with the number of the finding."""
        tail = [self._at(f.location), f.bytes, f.fix, number]
        return [[f.severity, f.kind, f.message, self.by_path.get(path, -1), path, *tail] for path in f.all_paths]


def _devices(plan: PlanRecord) -> tuple[int, ...]:
    """The ids of the devices of the user's mesh, in its order; none where they are 0, 1, 2, ... or it has none."""
    return () if plan.pytrees is None else plan.pytrees.structure(plan).devices


def links(plan: PlanRecord, tables: Tables, number: Callable[[Holder, str], int]) -> dict[str, Any] | None:
    """The links of all axes of all values; None where the plan keeps no record of them.

    Returns:
        `first`: for every value in the order of `plan.values`, every dimension and every axis of it, the number of its link. Then, with
        one entry per link: `holders`, the number of the value; `spots`, the row in `spot_rows`, `[dimension, axes with which it begins]`;
        `ways`, the row in `way_rows`, `[cause, through, rule, factor, annotation, user priority, op priority]`, texts as numbers of
        strings; `places`; `steps`, the number of the step in the log, -1 for what was given; `needs`, the number of the link that it
        needs, -1 for none, or a list where it needs several.
    """
    if not plan.propagation.recorded:
        return None
    explainer = explainer_of(plan)
    derived, first = derive(_facts(plan, explainer), explainer.history, plan.program.meshes)
    text = tables.strings
    spots = Interner[tuple[int, tuple[str, ...]]](lambda spot: [spot[0], [*spot[1]]])
    causes = Interner[tuple[Any, ...]](lambda way: [*map(text, way[:5]), *way[5:]])
    columns: dict[str, list[Any]] = {name: [] for name in ("holders", "spots", "ways", "places", "steps", "needs")}
    for link in derived:
        reason = explainer.reason(link, link.needs)
        columns["holders"].append(number(link.fact.holder, reason.value))
        columns["spots"].append(spots((reason.dim, reason.axes)))
        way = (reason.cause, reason.through, reason.rule, reason.factor, reason.annotation, reason.user_priority, reason.op_priority)
        columns["ways"].append(causes(way))
        columns["places"].append(tables.places((reason.location, "")))
        columns["steps"].append(reason.step)
        columns["needs"].append(-1 if not link.needs else link.needs[0] if len(link.needs) == 1 else [*link.needs])
    return {"first": first, **columns, "spot_rows": spots.rows, "way_rows": causes.rows}


def _facts(plan: PlanRecord, explainer: Explainer) -> list[Fact]:
    values: list[tuple[Value | int, PlannedValue]] = [*zip(plan.program.main.arguments, plan.inputs), *plan.intermediates]
    facts: list[Fact] = []
    for value, planned in (*values, *enumerate(plan.outputs)):
        for d, dim in enumerate(() if planned.sharding is None else planned.sharding.dims[: len(planned.shape)]):
            facts += (Fact(explainer.holder(value), d, dim.axes[: n + 1]) for n in range(len(dim.axes)))
    return facts


LISTED = 12
"""Inputs of an alternative that a page lists, of those that are sharded differently from the plan."""


def search_data(plan: PlanRecord, numbers: Mapping[str, int]) -> dict[str, Any]:
    """The entry of a page's data: `search`, of a plan whose shardings were chosen."""
    search = plan.search
    if search is None:
        return {}
    own = {v.path: "P()" if v.sharding is None else sharding_text(v.sharding) for v in plan.inputs}
    alternatives: list[list[Any]] = []
    for alternative in search.alternatives:
        others = [[numbers[path], path, spec] for path, spec in alternative.inputs.items() if path in own and spec != own[path]]
        alternatives.append([alternative.name, alternative.objective_seconds, others[:LISTED], max(0, len(others) - LISTED)])
    budget = "" if search.budget_bytes is None else f" of {format_bytes(search.budget_bytes)}"
    return {
        "search": {
            "hardware": search.hardware,
            "seconds": search.objective_seconds,
            "bound": search.lower_bound_seconds if search.has_bound else None,
            "gap": f"{search.gap:.1%} gap" if search.has_bound else "",
            "peak": f"{format_bytes(search.peak_bytes)}{budget}",
            "text": search.bound_text,
            "space": [[name, str(text)] for name, text in search.space.items()],
            "alternatives": alternatives,
        }
    }


MOST = 200
"""Of that many values a page says it: a search through the program for each axis that one lacks takes milliseconds."""

_NOTHING = frozenset(("absent", "unrelated"))
"""Kinds that name nothing that is in the way."""

_ORDER = {kind: n for n, kind in enumerate(KINDS)}


def absences(plan: PlanRecord, with_findings: Iterable[int], sizes: Sequence[int]) -> list[list[int | str]]:
    """The obstacles of axes that values do not have: of those with findings, and of inputs and outputs, the largest first.

    Returns:
        Rows `[number of the value, axis, why, what to do]`, one per axis that no dimension has and that something keeps away from one; of
        several dimensions the reason that says most. No rows where the plan keeps no record of its propagation.
    """
    if not plan.propagation.recorded:
        return []
    axes = [axis.name for axis in plan.mesh.axes if axis.size > 1]
    rows: list[list[int | str]] = []
    for number in values_to_explain(plan, with_findings, sizes):
        value = plan.values[number]
        there = set() if value.sharding is None else {axis.name for dim in value.sharding.dims for axis in dim.axes}
        for axis in axes:
            if axis not in there:
                rows += ([number, axis, why.message, why.fix] for why in _best(plan, value, axis))
    return rows


def values_to_explain(plan: PlanRecord, with_findings: Iterable[int], sizes: Sequence[int], most: int = MOST) -> list[int]:
    """The numbers of the values whose missing axes a page explains, in order."""
    count, outputs = len(plan.values), len(plan.outputs)
    ends = [*range(len(plan.inputs)), *range(count - outputs, count)]
    ends.sort(key=lambda number: -sizes[number])
    chosen = dict.fromkeys((*sorted(set(with_findings)), *ends))
    return sorted([number for number in chosen if plan.values[number].shape][:most])


def _best(plan: PlanRecord, value: PlannedValue, axis: str) -> list[Missing]:
    missing = [why for why in explain(plan, value, axis, None).missing if why.kind not in _NOTHING]
    return sorted(missing, key=lambda why: _ORDER[why.kind])[:1]


_PLACE = re.compile(r"(?P<file>.+):(?P<line>[0-9]{1,9})(?: \(.*\))?", re.DOTALL)


class Tables:
    """All interned tables of one plan.

    Args:
        devices: The ids of its devices, in the mesh's order; none for 0, 1, 2, ...

    Attributes:
        meshes: `{"axes": [[name, size], ...], "ids": [...]}`; the ids are left out where they are 0, 1, 2, ...
        shardings: `{"mesh": m, "dims": [[axis, ...], ...], "unreduced": [...], "replicated": [...]}`; an axis is its number in the mesh,
            or `[number, pre_size, size]` for a part of it.
        types: `{"text", "host", "dtype", "shape", "sharding", "local", "bytes", "all"}`: as the project writes it, whether it lies in the
            host's memory, the shape of a device's piece, its bytes, and those of the whole; `sharding` is -1 for None.
        places: `[file, line, module]`; file and module as numbers of strings.
    """

    def __init__(self, program: Program, mesh: Mesh, devices: Sequence[int] = ()) -> None:
        self._meshes = dict(program.meshes)
        self.strings = Interner[str]()
        self.meshes = Interner[Mesh](lambda each: _mesh(each, devices if each.same_axes(mesh) else ()))
        self.meshes(mesh)  # it is number 0
        self.shardings = Interner[TensorSharding](self._sharding)
        self.types = Interner[tuple[Type, TensorSharding | None, str]](self._type)
        self.places = Interner[tuple[str, str]](self._place)

    def rows(self) -> dict[str, list[Any]]:
        """All tables by name."""
        return {name: getattr(self, name).rows for name in ("strings", "meshes", "shardings", "types", "places")}

    def _sharding(self, sharding: TensorSharding) -> dict[str, Any]:
        mesh = sharding.mesh_in(self._meshes)
        row: dict[str, Any] = {"mesh": self.meshes(mesh), "dims": [[_axis(a, mesh) for a in dim.axes] for dim in sharding.dims]}
        for name in ("unreduced", "replicated"):
            axes = getattr(sharding, name)
            if axes:
                row[name] = [_axis(a, mesh) for a in axes]
        return row

    def _type(self, key: tuple[Type, TensorSharding | None, str]) -> dict[str, Any]:
        type_, sharding, memory_kind = key
        if sharding is not None and sharding.rank > type_.rank:
            sharding = sharding.with_dims(sharding.dims[: type_.rank])
        return {
            "text": typed(type_, sharding) + (f" in {memory_kind}" if memory_kind else ""),
            "host": bool(memory_kind),
            "dtype": type_.dtype,
            "shape": list(type_.shape),
            "sharding": -1 if sharding is None or not isinstance(type_, TensorType) else self.shardings(sharding),
            "local": list(local_shape(type_, sharding, self._meshes)),
            "bytes": local_bytes(type_, sharding, self._meshes),
            "all": type_.bytes,
        }

    def _place(self, key: tuple[str, str]) -> list[int]:
        location, module = key
        match = _PLACE.fullmatch(location)
        if match is None:
            return [self.strings(location), 0, self.strings(module)]
        return [self.strings(match["file"]), int(match["line"]), self.strings(module)]


def _mesh(mesh: Mesh, devices: Sequence[int]) -> dict[str, Any]:
    row: dict[str, Any] = {"axes": [[axis.name, axis.size] for axis in mesh.axes]}
    ids = [*(mesh.device_ids or devices)]
    if ids and ids != [*range(mesh.size)]:
        row["ids"] = ids
    return row


def _axis(axis: AxisRef, mesh: Mesh) -> int | list[int]:
    number = mesh.axis_index(axis.name)
    if axis.pre_size is None or axis.size is None:
        return number
    return [number, axis.pre_size, axis.size]


POINTS = 1200
"""Limit of the points of the curve of live memory; of steps that share one the largest counts."""

LARGEST = 12
"""Entries of the lists of buffers at the peak, and of modules and lines that take time."""


FIGURES = {row: row for row in ("operations", "to and from host", "fed", "step", "fits", "does not fit")}
FIGURES |= {"  of it exposed": "exposed communication", "in the host's memory": "host memory"}
"""Rows of the cost and the memory that stand at the top of a page, and their titles there."""


def costs(plan: PlanRecord, hardware: str | Hardware | None, numbers: Mapping[str, int]) -> dict[str, Any]:
    """Entries of a page's data: `figures`, `memory`, and with hardware `time`."""
    analysis = costing.analyse(plan, hardware)
    memory = memory_analysis.analyse(plan, hardware)
    figures = [[FIGURES[what], much] for what, much in (*summary_rows(analysis), *memory_rows(memory)) if what in FIGURES]
    figures += [["links", layout_text(analysis)]] if analysis.links else []
    figures += [[f"compiled for {target}", answer.headline] for target, answer in compiled_of(plan).items()]
    charts: dict[str, Any] = {"figures": figures, "memory": _memory(memory, numbers)}
    if analysis.hardware is not None:
        charts["time"] = {"modules": _shares(analysis.by_module), "lines": _shares(analysis.by_line), "ops": _shares(analysis.by_op)}
    return charts


def _memory(memory: MemoryAnalysis, numbers: Mapping[str, int]) -> dict[str, Any]:
    at, heights = thinned(memory.series)
    peak = memory.peak
    text = "" if peak is None else " at ".join(part for part in (peak.primitive, short_location(peak.location)) if part)
    top = [
        [
            -1 if part.role == "temporary" else numbers.get(part.name, -1),
            part.title + (f" × {part.count}" if part.count > 1 else ""),
            part.bytes,
            short_location(part.location) if part.role == "temporary" else part.role,
        ]
        for part in memory.contributors[:LARGEST]
    ]
    rest = memory.contributors[LARGEST:]
    if rest:
        top.append([-1, f"{len(rest)} more", sum(part.bytes for part in rest), ""])
    return {
        "at": at,
        "bytes": heights,
        "end": len(memory.series),
        "peak": memory.peak_memory_in_bytes,
        "peak_at": memory.peak_step,
        "where": text,
        "top": top,
    }


def thinned(series: Sequence[int]) -> tuple[list[int], list[int]]:
    """The points at which a curve changes; neighbours share a point, the highest of them, where there are too many.

    Example:
        >>> thinned([5, 5, 7, 6])
        ([0, 2, 3], [5, 7, 6])
    """
    wide = -(-len(series) // POINTS)
    at: list[int] = []
    heights: list[int] = []
    for start in range(0, len(series), max(1, wide)):
        height = max(series[start : start + wide])
        if not heights or heights[-1] != height:
            at.append(start)
            heights.append(height)
    return at, heights


def _shares(shares: Sequence[Share]) -> list[list[Any]]:
    """Name, seconds of computing and of communication."""
    return [[s.name, s.compute_seconds or 0.0, s.communication_seconds or 0.0] for s in shares[:LARGEST] if s.seconds]
