"""Writes a plan as one JSON text, and reads it.

Every table row and every op has a line of its own, so that texts can be compared by line. Nothing in the text depends on the process
that wrote it: no clock, no timings, no addresses.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeVar, get_args

from shardy_py.dialect import Mesh
from shardy_py.errors import ShardyError
from shardy_py.ir import Program
from shardy_py.passes.collection import no_collection
from shardy_py.passes.propagation.step import Strategy
from shardy_py.plan.collectives import Collective
from shardy_py.plan.donation import Donated
from shardy_py.plan.executed import collectives_of
from shardy_py.plan.feeding import Feeding
from shardy_py.plan.findings import Finding
from shardy_py.plan.record import PlanRecord, RegionPartitioner
from shardy_py.plan.search import Constraint
from shardy_py.plan.settings import PropagationOptions
from shardy_py.plan.store import entries
from shardy_py.plan.store.checks import StoreError, at, boolean, described, integer, items, members, text
from shardy_py.plan.store.log import read_log, write_log
from shardy_py.plan.store.search import CERTIFICATE, CONSTRAINTS, SEARCH, read_search, write_search
from shardy_py.plan.store.section import MEMBERS as SECTION
from shardy_py.plan.store.section import read_section, write_section
from shardy_py.plan.store.structure import MEMBERS as TREES
from shardy_py.plan.store.structure import Structure, checked_arguments, checked_tree
from shardy_py.plan.store.tables import Reader, Writer, read_mesh
from shardy_py.plan.values import PlannedValue

P = TypeVar("P", bound=PlanRecord)

FORMAT = "shardy_py.plan"
VERSION = 5
"""Raised by each change that makes older readers fail; `read_plan` reads this version only."""

_MEMBERS = (
    *("format", "version", "name", "mesh", "platform", *SECTION, "log"),
    *("inputs", "outputs", "noted", "donation", "dropped", "fed", "partitioned", "trees", "propagation"),
)
_PARTITIONED = ("collectives", "findings", "local_program")


@dataclass(frozen=True)
class StoredPartition:
    """The partitioned program stored with a plan; a `RegionPartitioner`."""

    communication: tuple[Collective, ...]
    partitioning_findings: tuple[Finding, ...]
    program: Program

    def collectives(self, plan: PlanRecord) -> tuple[Collective, ...]:
        """The collectives of the stored plan."""
        return self.communication

    def region_jaxpr(self, plan: PlanRecord) -> None:
        """None: a stored plan has no jaxpr."""
        return

    def findings(self, plan: PlanRecord) -> tuple[Finding, ...]:
        """Findings for ops that could not be partitioned."""
        return self.partitioning_findings

    def is_run(self, plan: PlanRecord) -> bool:
        """Yes: a plan that is left to XLA's partitioner is stored without it."""
        return True

    def local_program(self, plan: PlanRecord) -> Program:
        """The region that runs on every device."""
        return self.program


def write_plan(plan: PlanRecord) -> str:
    """A plan as JSON text, equal for equal plans in every process; a plan that runs as a region is partitioned if it has not been."""
    with no_collection():
        return _document(plan)


def _document(plan: PlanRecord) -> str:
    section = write_section(plan.program)
    tables = section.tables
    parts: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "name": plan.name,
        "mesh": str(plan.mesh),
        "platform": plan.platform,
        **section.parts,
        "log": write_log(plan.log, plan.program, tables, section.numbers),
        "inputs": entries.write_entries(PlannedValue, plan.inputs, tables),
        "outputs": entries.write_entries(PlannedValue, plan.outputs, tables),
        "noted": entries.write_entries(Finding, _findings(plan), tables),
        "donation": entries.write_entries(Donated, plan.donation, tables),
        "dropped": list(plan.dropped),
        "fed": [list(plan.feeding.arguments), list(plan.feeding.results)],
        "partitioned": None if plan.active_partitioner is None else _partition_data(plan, plan.active_partitioner, tables),
        "trees": None if plan.pytrees is None else plan.pytrees.structure(plan).to_data(),
        "propagation": asdict(plan.propagation),
        **({} if plan.search is None else {SEARCH: write_search(plan.search)}),
        **({} if plan.search is None else {CONSTRAINTS: entries.write_entries(Constraint, plan.search.constraints, tables)}),
        **({} if plan.search is None else {CERTIFICATE: plan.search.certificate}),
    }
    return "".join(_lines({**parts, **section.data()}))


def _findings(plan: PlanRecord) -> tuple[Finding, ...]:
    """Findings of planning, and the reason why `lowering="auto"` left the plan to XLA's partitioner."""
    if plan.partitioner is None or plan.active_partitioner is not None:
        return plan.planning_findings
    return (*plan.planning_findings, *plan.partitioner.findings(plan))


def _partition_data(plan: PlanRecord, partitioner: RegionPartitioner, tables: Writer) -> dict[str, Any]:
    parts = (
        entries.write_entries(Collective, collectives_of(plan), tables),
        entries.write_entries(Finding, partitioner.findings(plan), tables),
        write_section(partitioner.local_program(plan)).data(),
    )
    return dict(zip(_PARTITIONED, parts))


_WITH_LINES = ("log", "partitioned", "local_program")


_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode

_MARK = "\0entry\0"


def _entries(values: list[Any]) -> list[str]:
    """The text of each entry. They are encoded as one list, as starting an encoder takes longer than encoding an op."""
    marked = [_MARK] * (2 * len(values) - 1)
    marked[::2] = values
    texts = _encode(marked)[1:-1].split(f",{_encode(_MARK)},")
    return texts if len(texts) == len(values) else list(map(_encode, values))  # a user's text may be the mark


def _lines(data: dict[str, Any]) -> Iterator[str]:
    """Writes an object with one member per line, its lists with one entry per line."""
    yield "{\n"
    for number, (name, value) in enumerate(data.items()):
        yield f"{_encode(name)}:" if number == 0 else f",\n{_encode(name)}:"
        if isinstance(value, list) and value:
            yield "[\n" + ",\n".join(_entries(value)) + "\n]"
        elif isinstance(value, dict) and (name in _WITH_LINES or "rows" in value):
            yield from _lines(value)
        else:
            yield _encode(value)
    yield "\n}" + ("\n" if "format" in data else "")


def read_plan(document: str | bytes, kind: type[P]) -> P:
    """The inverse of `write_plan`; nothing of the text is run. Raises StoreError if it is not a stored plan of this version."""
    with no_collection():
        return _plan_of(_json(document), kind)


def _plan_of(data: Any, kind: type[P]) -> P:
    if type(data) is not dict or data.get("format") != FORMAT:
        raise StoreError(
            "this is no stored plan",
            where="member 'format'",
            why=f"it does not say {FORMAT!r}, as that of a stored plan does",
            fix="Plan.save writes such files",
        )
    if data.get("version") != VERSION or type(data["version"]) is not int:
        raise StoreError(
            f"the stored plan has the version {described(data.get('version'))}",
            why=f"this shardy_py reads version {VERSION}",
            fix="read it with the shardy_py that wrote it, or plan again",
        )
    try:
        return _read(members(data, (*_MEMBERS, SEARCH, CONSTRAINTS, CERTIFICATE) if SEARCH in data else _MEMBERS), kind)
    except StoreError:
        raise
    except (ShardyError, RecursionError) as error:
        raise StoreError(f"the stored plan is damaged: {getattr(error, 'what', error)}") from error


def _read(data: dict[str, Any], kind: type[P]) -> P:
    with at("mesh"):
        mesh = read_mesh(data["mesh"])
    section = read_section(data)
    tables, program = section.tables, section.program
    with at("log"):
        log = read_log(data["log"], tables, section.reader)

    def listed(name: str, cls: type[Any]) -> tuple[Any, ...]:
        with at(name):
            return entries.read_entries(cls, data[name], tables)

    inputs, outputs = listed("inputs", PlannedValue), listed("outputs", PlannedValue)
    for name, values, side, program_values in (
        ("inputs", inputs, "input", program.main.arguments),
        ("outputs", outputs, "output", program.main.body.terminator.operands),
    ):
        with at(name):
            _check_values(values, side, [value.type.rank for value in program_values], mesh, tables.meshes)
    with at("partitioned"):
        partitioner = _read_partitioned(data["partitioned"], tables)
    with at("trees"):
        pytrees = _read_pytrees(data["trees"], len(inputs), len(outputs), mesh)
    donation = listed("donation", Donated)
    for number, donated in enumerate(donation):
        if donated.input >= len(inputs) or (donated.output is not None and donated.output >= len(outputs)):
            raise StoreError("there is no such input or output", where=f"donation, row {number}")
    with at("dropped"):
        dropped = tuple(integer(number, 0, len(inputs)) for number in items(data["dropped"]))
    with at("fed"):
        fed = zip(items(data["fed"], 2), (inputs, outputs))
        feeding = Feeding(*(tuple(integer(number, 0, len(values)) for number in items(numbers)) for numbers, values in fed))
    search = None
    if SEARCH in data:
        search = replace(read_search(data[SEARCH]), stored_constraints=listed(CONSTRAINTS, Constraint))
        search = replace(search, stored_certificate=text(data[CERTIFICATE]))
    return kind(
        name=text(data["name"]),
        mesh=mesh,
        inputs=inputs,
        outputs=outputs,
        planning_findings=listed("noted", Finding),
        program=program,
        log=log,
        pytrees=pytrees,
        donation=donation,
        partitioner=partitioner,
        propagation=_read_propagation(data["propagation"]),
        platform=text(data["platform"]),
        search=search,
        dropped=dropped,
        stated_feeding=feeding,
    )


def _read_partitioned(data: Any, tables: Reader) -> StoredPartition | None:
    if data is None:
        return None
    parts = members(data, _PARTITIONED)
    with at("collectives"):
        collectives = entries.read_entries(Collective, parts["collectives"], tables)
    with at("findings"):
        findings = entries.read_entries(Finding, parts["findings"], tables)
    with at("local_program"):
        section = read_section(members(parts["local_program"], SECTION))
    return StoredPartition(collectives, findings, section.program)


def _read_propagation(data: Any) -> PropagationOptions:
    with at("propagation"):
        options = members(data, [field.name for field in fields(PropagationOptions)])
        if options["strategy"] not in get_args(Strategy):
            raise StoreError(f"unknown strategy {described(options['strategy'])}", fix=f"one of {', '.join(get_args(Strategy))}")
        return PropagationOptions(options["strategy"], *(boolean(options[field.name]) for field in fields(PropagationOptions)[1:]))


def _check_values(values: tuple[PlannedValue, ...], kind: str, ranks: list[int], mesh: Mesh, meshes: dict[str, Mesh]) -> None:
    if len(values) != len(ranks):
        raise StoreError(f"{len(values)} values where the program has {len(ranks)}")
    for number, (value, rank) in enumerate(zip(values, ranks)):
        with at(f"row {number}"):
            if value.kind != kind:
                raise StoreError(f"expected an {kind}, got {value.kind}")
            if not value.path:
                raise StoreError("a value without a path")
            # A PRNG key has fewer dimensions than its physical array.
            if value.type.rank > rank or (value.sharding is not None and value.sharding.rank != rank):
                raise StoreError(f"the value has not the rank of that of the program, {rank}")
            value_mesh = mesh if value.sharding is None else value.sharding.mesh_in(meshes)
            if value_mesh is not mesh and value_mesh.axes and not value_mesh.is_maximal:
                raise StoreError(f"the value lies on the mesh {value_mesh}, the plan is for {mesh}")


def _read_pytrees(data: Any, inputs: int, outputs: int, mesh: Any) -> Any:
    if data is None:
        return None
    parts = members(data, TREES)
    names = tuple(map(text, items(parts["names"])))
    trees = checked_arguments(parts["inputs"], inputs, len(names)), checked_tree(parts["outputs"], outputs)
    kinds = tuple(map(text, items(parts["axis_types"], len(mesh.axes))))
    devices = items(parts["devices"], mesh.size if parts["devices"] else 0)
    ids = tuple(map(integer, devices))
    if len(set(ids)) != len(ids):
        raise StoreError("a device stands twice in the order of the mesh's devices")
    return StoredPytrees(Structure(*trees, names, kinds, ids))


@dataclass(frozen=True)
class StoredPytrees:
    """The pytrees of a stored plan. Only these methods need JAX."""

    structures: Structure

    def inputs(self, plan: PlanRecord) -> Any:
        """The input shardings; see `shardy_py.api.stored_trees`."""
        return self._trees(plan).inputs(plan)

    def outputs(self, plan: PlanRecord) -> Any:
        """The output shardings."""
        return self._trees(plan).outputs(plan)

    def abstract(self, plan: PlanRecord, argument: str | int | None, mesh: Any, like: Any) -> Any:
        """The arguments as `jax.ShapeDtypeStruct`s."""
        return self._trees(plan).abstract(plan, argument, mesh, like)

    def _trees(self, plan: PlanRecord) -> Any:
        from shardy_py.api.stored_trees import stored_trees

        return stored_trees(plan, self.structures)

    def place(self, plan: PlanRecord, args: Any, mesh: Any) -> Any:
        """The arguments where the plan has them."""
        from shardy_py.api.placing import placed_arguments

        return placed_arguments(plan, args, dict(plan.mesh.shape) if mesh is None else mesh)

    def structure(self, plan: PlanRecord) -> Structure:
        """The stored structure."""
        return self.structures


def _json(document: str | bytes) -> Any:
    try:
        if isinstance(document, bytes | bytearray):
            document = bytes(document).decode("utf-8")
        return json.loads(document, object_pairs_hook=_members, parse_constant=_no_constant)
    except StoreError:
        raise
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise StoreError(f"this is not JSON: {error.msg}", where=where, why="the file is cut short, or is something else") from None
    except UnicodeDecodeError:
        raise StoreError("this is not UTF-8 text", why="the file is damaged, or is something else") from None
    except RecursionError:
        raise StoreError("the JSON is nested too deep") from None
    except ValueError as error:  # a number of thousands of digits
        raise StoreError(f"this is not JSON: {error}") from None


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise StoreError(f"the member {described(twice)} stands twice in an object")
    return data


def _no_constant(word: str) -> Any:
    raise StoreError(f"JSON has no number {word}")
