"""Writes a plan as one JSON text, and reads it.

Every table row and every op has a line of its own, so that texts can be compared by line. Nothing in the text depends on the process
that wrote it: no clock, no timings, no addresses.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from shardy_py.dialect import Mesh
from shardy_py.errors import ShardyError
from shardy_py.files import write_file
from shardy_py.ir import Program
from shardy_py.passes.collection import no_collection
from shardy_py.plan.collectives import Collective
from shardy_py.plan.executed import collectives_of
from shardy_py.plan.feeding import Feeding
from shardy_py.plan.findings import Finding
from shardy_py.plan.record import PlanRecord, Pytrees, RegionPartitioner, Structure
from shardy_py.plan.search import Alternative, Search
from shardy_py.plan.store.codec import CODECS, UNSTORED, StoreError, at, codec_of, described, members, read_fields
from shardy_py.plan.store.program import FAILURES, PROGRAM, read_log, read_program, write_log, write_program
from shardy_py.plan.values import PlannedValue

P = TypeVar("P", bound=PlanRecord)

FORMAT = "shardy_py.plan"
VERSION = 8
"""Raised by each change that makes older readers fail; `read_plan` reads this version only."""

MOST_BYTES = 1 << 30
"""A text of more bytes is not read: a small file can be made to unpack without end."""

_GZIP = b"\x1f\x8b"
_HEAD = ("format", "version", "digest")
_FILE = "the stored plan"
_WRITES = "Plan.save writes such files"

UNSTORED.update({Search: ("timings", "pricer"), Alternative: ("planned", "peak_of", "constrained")})


@dataclass(frozen=True)
class StoredPartition:
    """The partitioned program stored with a plan; a `RegionPartitioner`."""

    communication: tuple[Collective, ...]
    partitioning_findings: tuple[Finding, ...]
    program: Program
    is_stand_in: bool = False

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
        """Whether the stored region runs; else XLA partitions, and figures are read from it."""
        return not self.is_stand_in

    def has_region(self, plan: PlanRecord) -> bool:
        """Yes: it is stored."""
        return True

    def local_program(self, plan: PlanRecord) -> Program:
        """The region that runs on every device."""
        return self.program


@dataclass(frozen=True)
class StoredPytrees(Structure):
    """The pytrees of a stored plan. Only its trees need JAX."""

    def trees(self, plan: PlanRecord) -> Any:
        """The trees over a mesh without devices."""
        from shardy_py.api.stored_trees import stored_trees

        return stored_trees(plan, self)

    def place(self, plan: PlanRecord, args: Any, mesh: Any) -> Any:
        """The arguments where the plan has them."""
        from shardy_py.api.placing import placed_arguments

        return placed_arguments(plan, args, dict(plan.mesh.shape) if mesh is None else mesh)

    def structure(self, plan: PlanRecord) -> Structure:
        """The stored structure."""
        return self


UNSTORED[PlanRecord] = ("program", "log", "timings", "variants")
CODECS[Pytrees] = codec_of(StoredPytrees)
CODECS[RegionPartitioner] = codec_of(StoredPartition)
_PLAN = codec_of(PlanRecord)


def _stored(plan: PlanRecord) -> PlanRecord:
    """A plan whose parts a file has; it is partitioned if it has not been."""
    findings, active, pytrees, partition = plan.planning_findings, plan.active_partitioner, plan.pytrees, None
    if active is not None:
        partition = StoredPartition(collectives_of(plan), active.findings(plan), active.local_program(plan), plan.lowering == "jit")
    elif plan.partitioner is not None:  # the reason why there is no region
        findings = (*findings, *plan.partitioner.findings(plan))
    return replace(
        plan,
        planning_findings=findings,
        partitioner=partition,
        pytrees=None if pytrees is None else StoredPytrees(**vars(pytrees.structure(plan))),
        search=None if plan.search is None else plan.search.stored(),
        stated_feeding=plan.feeding,
    )


SEARCH = codec_of(Search)
"""Of a search without constraints, which need no tables."""

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def write_plan(plan: PlanRecord) -> str:
    """A plan as JSON text, equal for equal plans in every process; it is partitioned if it has not been."""
    with no_collection():
        program, tables = write_program(plan.program)
        contents: dict[str, Any] = {"log": write_log(plan.log, tables), **_PLAN.write(tables, _stored(plan)), **program}
        return "".join(_lines(sealed({"format": FORMAT, "version": VERSION, "digest": "", **contents})))


def sealed(data: dict[str, Any]) -> dict[str, Any]:
    """A document with the digest of its contents, whatever the order of members and the white space between them."""
    contents = {name: value for name, value in data.items() if name not in _HEAD}
    text = json.dumps(contents, sort_keys=True, separators=(",", ":"))
    return {**data, "digest": hashlib.sha256(text.encode("ascii")).hexdigest()}


def _lines(data: Any) -> Iterator[str]:
    """Writes an object with one member per line, its lists with one entry per line."""
    yield "{\n"
    for number, (name, value) in enumerate(data.items()):
        yield f"{_encode(name)}:" if number == 0 else f",\n{_encode(name)}:"
        if isinstance(value, list) and value:
            yield "[\n" + ",\n".join(map(_encode, value)) + "\n]"
        elif isinstance(value, dict) and (name in ("log", "program", "partitioner") or "rows" in value):
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
            "this is not a stored plan",
            where="member 'format'",
            why=f"a stored plan has {FORMAT!r} there",
            fix=_WRITES,
        )
    if data.get("version") != VERSION or type(data["version"]) is not int:
        raise StoreError(
            f"the stored plan has the version {described(data.get('version'))}",
            why=f"this shardy_py reads version {VERSION}",
            fix="read it with the shardy_py that wrote it, or plan again",
        )
    try:
        if data.get("digest") != sealed(data)["digest"]:
            why, fix = "its contents have another digest than the one that was written with them", "plan again, and save that plan"
            raise StoreError("the stored plan was changed or damaged", where="member 'digest'", why=why, fix=fix)
        return _read({name: value for name, value in data.items() if name not in _HEAD}, kind)
    except StoreError as error:
        if error.where is None:
            error.at(_FILE)
        raise
    except (ShardyError, RecursionError, *FAILURES) as error:
        raise StoreError(f"the stored plan is damaged: {getattr(error, 'what', error)}", where=_FILE) from error


def _read(data: dict[str, Any], kind: type[P]) -> P:
    members(data, (*PROGRAM, "log"), optional=None)
    tables = read_program({name: data.pop(name) for name in PROGRAM})
    with at("log"):
        log = read_log(data.pop("log"), tables)
    plan = kind(program=tables.program, log=log, **read_fields(PlanRecord, tables, data))
    _check(plan)
    return plan


def _check(plan: PlanRecord) -> None:
    """Raises StoreError unless numbers, ranks and meshes of a plan are those of its program."""
    main, feeding = plan.program.main, plan.stated_feeding or Feeding()
    for side, values, program_values in (("input", plan.inputs, main.arguments), ("output", plan.outputs, main.body.terminator.operands)):
        if len(values) != len(program_values):
            raise StoreError(f"{len(values)} values where the program has {len(program_values)}", where=f"{side}s")
        for number, (value, program_value) in enumerate(zip(values, program_values)):
            with at(f"{side}s, row {number}"):
                _check_value(value, side, program_value.type.rank, plan)
    _check_numbers("donation", [d.input for d in plan.donation], plan.inputs)
    _check_numbers("donation", [d.output for d in plan.donation if d.output is not None], plan.outputs)
    _check_numbers("dropped", plan.dropped, plan.inputs)
    _check_numbers("stated_feeding", feeding.arguments, plan.inputs)
    _check_numbers("stated_feeding", feeding.results, plan.outputs)
    if isinstance(plan.pytrees, StoredPytrees):
        with at("pytrees"):
            _check_structure(plan.pytrees, len(plan.inputs), len(plan.outputs), plan.mesh)


def _check_numbers(where: str, numbers: Any, values: tuple[PlannedValue, ...]) -> None:
    if any(number >= len(values) for number in numbers):
        raise StoreError("there is no such input or output", where=where)


def _check_value(value: PlannedValue, kind: str, rank: int, plan: PlanRecord) -> None:
    if value.kind != kind:
        raise StoreError(f"expected an {kind}, got {value.kind}")
    if not value.path:
        raise StoreError("a value without a path")
    # A PRNG key has fewer dimensions than its physical array.
    if value.type.rank > rank or (value.sharding is not None and value.sharding.rank != rank):
        raise StoreError(f"the value's rank is not {rank}, the rank in the program")
    if value.memory_kind not in ("", "pinned_host", "unpinned_host"):
        raise StoreError(f"there is no memory kind {described(value.memory_kind)}")
    mesh = plan.mesh if value.sharding is None else value.sharding.mesh_in(plan.program.meshes)
    if mesh is not plan.mesh and mesh.axes and not mesh.is_maximal:
        raise StoreError(f"the value lies on the mesh {mesh}, the plan is for {plan.mesh}")


def _check_structure(structure: Structure, inputs: int, outputs: int, mesh: Mesh) -> None:
    for tree, count in ((structure.inputs, inputs), (structure.outputs, outputs)):
        if tree.leaves != count:
            raise StoreError(f"a tree of {tree.leaves} leaves where there are {count} values")
    if [structure.inputs.kind, *(child.kind for child in structure.inputs.children)] != ["tuple", "tuple", "dict"]:
        raise StoreError("expected a tuple of positional arguments and a dict of others")
    if len(structure.names) != len(structure.inputs.children[0].children):
        raise StoreError(f"{len(structure.names)} names of {len(structure.inputs.children[0].children)} arguments")
    devices = structure.devices
    if len(structure.axis_types) != len(mesh.axes) or (devices and not len(set(devices)) == len(devices) == mesh.size):
        raise StoreError("the types of axes, or the order of devices, are not those of the mesh")


def _json(document: str | bytes) -> Any:
    try:
        if isinstance(document, bytes | bytearray):
            document = bytes(document).decode("utf-8")
        return json.loads(document, object_pairs_hook=_members, parse_constant=_no_constant)
    except StoreError:
        raise
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise StoreError(
            f"this is not JSON: {error.msg}", where=where, why="the file is cut short, or is something else", fix=_WRITES
        ) from None
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


def save_text(document: str, path: str | os.PathLike[str]) -> None:
    """Writes a text, gzip for a path ending in `.gz`: equal texts give equal bytes, atomically. Raises OSError if it cannot."""
    content = document.encode("utf-8")
    if os.fsdecode(path).endswith(".gz"):
        content = gzip.compress(content, compresslevel=6, mtime=0)
    write_file(path, content)


def load_plan(path: str | os.PathLike[str], kind: type[P]) -> P:
    """A plan from a file that `Plan.save` wrote. Raises OSError if it cannot be read, StoreError if it is not a plan of this version."""
    with open(path, "rb") as file:
        content = file.read(MOST_BYTES + 1)
    try:
        content = _decompressed(content) if content.startswith(_GZIP) else content
        if len(content) > MOST_BYTES:
            raise StoreError(f"a text of more than {MOST_BYTES} bytes")
        return read_plan(content, kind)
    except StoreError as error:
        error.at(os.fspath(path))
        raise


def _decompressed(content: bytes) -> bytes:
    decompressor = zlib.decompressobj(wbits=31)
    try:
        data = decompressor.decompress(content, MOST_BYTES + 1)
    except zlib.error as error:
        raise StoreError(f"the gzip file is damaged: {error}") from None
    if not decompressor.eof and len(data) <= MOST_BYTES:
        raise StoreError("the gzip file is cut short")
    return data
