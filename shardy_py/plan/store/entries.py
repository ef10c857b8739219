"""Values, findings, donations and collectives of a plan as rows: one list per entry, its fields in the order of a header."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, get_args

from shardy_py.plan.collectives import Collective
from shardy_py.plan.donation import Donated, Kind
from shardy_py.plan.findings import Finding, Severity
from shardy_py.plan.search import Constraint
from shardy_py.plan.store.checks import StoreError, at, boolean, described, integer, items, members, text
from shardy_py.plan.store.tables import Reader, Writer
from shardy_py.plan.values import PlannedValue


@dataclass(frozen=True, slots=True)
class FieldCodec:
    """Writer and reader of a field."""

    write: Callable[[Writer, Any], Any]
    read: Callable[[Reader, Any], Any]


def _same(tables: Writer, value: Any) -> Any:
    return value


def _or_none(codec: FieldCodec) -> FieldCodec:
    return FieldCodec(
        lambda tables, value: None if value is None else codec.write(tables, value),
        lambda tables, data: None if data is None else codec.read(tables, data),
    )


def _several(codec: FieldCodec) -> FieldCodec:
    return FieldCodec(
        lambda tables, value: [codec.write(tables, item) for item in value],
        lambda tables, data: tuple(codec.read(tables, item) for item in items(data)),
    )


def _one_of(*words: str) -> FieldCodec:
    def read(tables: Reader, data: Any) -> str:
        if data not in words:
            raise StoreError(f"unknown word {described(data)}", fix=f"one of {', '.join(words)}")
        return data

    return FieldCodec(_same, read)


TEXT = FieldCodec(_same, lambda tables, data: text(data))
FLAG = FieldCodec(_same, lambda tables, data: boolean(data))
COUNT = FieldCodec(_same, lambda tables, data: integer(data))
TYPE = FieldCodec(Writer.type, Reader.type)
SHARDING = FieldCodec(Writer.sharding, Reader.sharding)

CODECS: dict[type[Any], dict[str, FieldCodec]] = {
    PlannedValue: {
        "path": TEXT,
        "kind": _one_of("input", "output", "intermediate"),
        "type": TYPE,
        "sharding": SHARDING,
        "primitive": TEXT,
        "location": TEXT,
        "depth": COUNT,
        "module": TEXT,
        "given": SHARDING,
        "given_by": TEXT,
    },
    Finding: {
        "kind": TEXT,
        "message": TEXT,
        "path": TEXT,
        "location": TEXT,
        "severity": _one_of(*get_args(Severity)),
        "bytes": COUNT,
        "fix": TEXT,
    },
    Donated: {
        "path": TEXT,
        "type": TYPE,
        "sharding": SHARDING,
        "aliased": _or_none(TEXT),
        "reason": TEXT,
        "bytes_per_device": COUNT,
        "kind": _one_of(*get_args(Kind)),
        "fix": TEXT,
        "input": COUNT,
        "output": _or_none(COUNT),
        "slot": COUNT,
        "local_shape": _several(COUNT),
        "parameter": _or_none(COUNT),
    },
    Collective: {
        "kind": TEXT,
        "axes": _several(TEXT),
        "group_size": FieldCodec(_same, lambda tables, data: integer(data, 1)),
        "operand_bytes": COUNT,
        "trips": _or_none(COUNT),
        "dtype": TEXT,
        "shape": _several(COUNT),
        "value": TEXT,
        "primitive": TEXT,
        "location": TEXT,
        "module": TEXT,
        "backward": FLAG,
    },
    Constraint: {
        "value": TEXT,
        "type": TYPE,
        "location": TEXT,
        "sharding": SHARDING,
        "primitive": TEXT,
        "is_in_front": FLAG,
        "number": COUNT,
    },
}
"""Codecs of all stored fields; a new field of a class is added here, and a file without it has its default."""


def write_entries(cls: type[Any], entries: Sequence[Any], tables: Writer) -> dict[str, Any]:
    """Writes entries as JSON data.

    Args:
        cls: Their class, one of `CODECS`.
        entries: The entries.
        tables: The tables for types and shardings.
    """
    names = [field.name for field in fields(cls)]
    codecs = [(name, CODECS[cls][name]) for name in names]
    return {"fields": names, "rows": [[codec.write(tables, getattr(item, name)) for name, codec in codecs] for item in entries]}


def read_entries(cls: type[Any], data: Any, tables: Reader) -> tuple[Any, ...]:
    """The inverse of `write_entries`.

    Args:
        cls: Their class.
        data: JSON data of the file.
        tables: The tables of the file.

    Raises:
        StoreError: They are no such entries.
    """
    table = members(data, ("fields", "rows"))
    names = [text(name) for name in items(table["fields"])]
    declared = {field.name: field for field in fields(cls)}
    for name in names:
        if name not in declared or names.count(name) > 1:
            raise StoreError(f"unknown or repeated field {described(name)} of {cls.__name__}", where="fields")
    for name, field in declared.items():
        if name not in names and field.default is MISSING:
            raise StoreError(f"the field {name!r} of {cls.__name__} is missing", where="fields")
    codecs = [CODECS[cls][name] for name in names]
    entries = []
    for number, row in enumerate(items(table["rows"])):
        with at(f"row {number}"):
            values = [codec.read(tables, value) for codec, value in zip(codecs, items(row, len(codecs)))]
            entries.append(cls(**dict(zip(names, values))))
    return tuple(entries)
