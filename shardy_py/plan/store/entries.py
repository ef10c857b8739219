"""Values, findings, donations and collectives of a plan as rows: one list per entry, its fields in the order of a header."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from shardy_py.dialect import TensorSharding
from shardy_py.ir import Type
from shardy_py.plan.collectives import Collective
from shardy_py.plan.donation import Donated
from shardy_py.plan.findings import Finding
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


PLAIN: dict[Any, FieldCodec] = {
    str: FieldCodec(_same, lambda tables, data: text(data)),
    bool: FieldCodec(_same, lambda tables, data: boolean(data)),
    int: FieldCodec(_same, lambda tables, data: integer(data)),
    Type: FieldCodec(Writer.type, Reader.type),
    TensorSharding: FieldCodec(Writer.sharding, Reader.sharding),
    TensorSharding | None: FieldCodec(Writer.sharding, Reader.sharding),
}
"""Annotation -> the codec of fields that have it; numbers are counts."""


def codec_of(annotation: Any) -> FieldCodec:
    """The codec of a field: a key of `PLAIN`, a `Literal` of words, or `... | None` or `tuple[..., ...]` of these."""
    if annotation in PLAIN:
        return PLAIN[annotation]
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return _one_of(*parts)
    if origin is tuple and parts[1:] == (...,):
        return _several(codec_of(parts[0]))
    if type(None) in parts and len(parts) == 2:
        return _or_none(codec_of(next(part for part in parts if part is not type(None))))
    raise TypeError(f"no field of a stored class is a {annotation}")


CODECS: dict[type[Any], dict[str, FieldCodec]] = {
    cls: {name: codec_of(annotation) for name, annotation in get_type_hints(cls).items()}
    for cls in (PlannedValue, Finding, Donated, Collective, Constraint)
}
"""Codecs of the fields of all stored classes; a file without a field has its default."""

CODECS[Collective]["group_size"] = FieldCodec(_same, lambda tables, data: integer(data, 1))


def write_entries(cls: type[Any], entries: Sequence[Any], tables: Writer) -> dict[str, Any]:
    """Writes entries as JSON data."""
    names = [field.name for field in fields(cls)]
    codecs = [(name, CODECS[cls][name]) for name in names]
    return {"fields": names, "rows": [[codec.write(tables, getattr(item, name)) for name, codec in codecs] for item in entries]}


def read_entries(cls: type[Any], data: Any, tables: Reader) -> tuple[Any, ...]:
    """The inverse of `write_entries`; raises StoreError for any other data."""
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
