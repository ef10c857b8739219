"""A section of a file: a program with its meshes and tables. A file has one, and a second one where the plan has been partitioned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardy_py.ir import Program
from shardy_py.plan.store.checks import StoreError, at, items, text
from shardy_py.plan.store.program import Numbers, ProgramReader, names_of, read_names, write_program
from shardy_py.plan.store.tables import NAMES, Reader, Writer, read_mesh

MEMBERS = ("meshes", *NAMES, "program", "program_attributes", "value_names")


@dataclass(frozen=True)
class SectionWriter:
    """A section while it is written."""

    tables: Writer
    numbers: Numbers
    parts: dict[str, Any]

    def data(self) -> dict[str, Any]:
        """The members, tables included."""
        return {**self.parts, **{name: table.rows for name, table in self.tables.tables.items()}}


def write_section(program: Program) -> SectionWriter:
    """Writes a program as JSON data. It stays alive until all is written, since tables go by identity."""
    tables = Writer(program)
    rows, numbers = write_program(program, tables)
    mesh_attributes = program.mesh_attributes
    parts: dict[str, Any] = {
        "meshes": [[name, str(mesh), tables.attributes(mesh_attributes.get(name, {}))] for name, mesh in program.meshes.items()],
        **dict.fromkeys(NAMES),
        "program": rows,
        "program_attributes": tables.attributes(program.attributes),
        "value_names": names_of(numbers),
    }
    return SectionWriter(tables, numbers, parts)


@dataclass(frozen=True)
class Section:
    """A section that was read."""

    tables: Reader
    reader: ProgramReader
    program: Program


def read_section(data: dict[str, Any]) -> Section:
    """The inverse of `write_section`, of an object with at least `MEMBERS`; raises StoreError for any other data."""
    with at("meshes"):
        rows = [items(row, 3) for row in items(data["meshes"])]
        meshes = {text(name): read_mesh(mesh) for name, mesh, _ in rows}
        if len(meshes) != len(rows):
            raise StoreError("the name of a mesh stands twice")
    tables = Reader(meshes)
    for name in NAMES:
        tables.load(name, data[name])
    with at("meshes"):
        of_meshes = {name: tables.members(row) for name, _, row in rows}
    with at("program_attributes"):
        attributes = tables.members(data["program_attributes"])
    reader = ProgramReader(tables)
    program = reader.program(data["program"], attributes, {name: dict(entries) for name, entries in of_meshes.items() if entries})
    with at("value_names"):
        read_names(data["value_names"], reader.values)
    return Section(tables, reader, program)
