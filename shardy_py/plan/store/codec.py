"""One codec for the data of stored plans: the annotations of a class say how its fields are written, and what a file may hold for them.

A value of a frozen dataclass is an object with a member for each field that has not its default; several are rows, with the names of
such fields of any of them as a head. Data that occurs many times, types and shardings above all, stands once in a table of its own and
is referred to by number.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from shardy_py.dialect import Mesh
from shardy_py.dialect.grouping import Interner
from shardy_py.errors import ShardyError

LIMIT = 1 << 63
"""No number in a file is as large."""

MOST_DEVICES = (1 << 31) - 1
"""Numbers of devices have 32 bits in JAX and XLA."""

_LONGEST = 60


class StoreError(ShardyError):
    """A stored plan that cannot be read: damaged, of another version, or no plan at all. `where` names the entry."""


@contextmanager
def at(where: str) -> Iterator[None]:
    """Adds the place in the file to errors inside, and turns errors of constructors that reject their data into StoreErrors."""
    try:
        yield
    except StoreError as error:
        error.at(where)
        raise
    except ShardyError as error:
        inner = f"{where}, {error.where}" if error.where else where
        raise StoreError(error.what, where=inner, why=error.why, fix=error.fix) from error


def described(data: Any) -> str:
    """A piece of a file, short enough for a message.

    Example:
        >>> described({"a": 1}), described([1, 2]), described("x" * 100)[:5]
        ('an object of 1', 'a list of 2', "'xxxx")
    """
    if data is None or isinstance(data, bool):
        return {None: "null", True: "true", False: "false"}[data]
    if isinstance(data, dict | list):
        return f"{'an object' if isinstance(data, dict) else 'a list'} of {len(data)}"
    if isinstance(data, int):
        return str(data) if abs(data) < 1 << 200 else f"a number of {data.bit_length()} bits"
    shown = repr(data)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."


def integer(data: Any, low: int = 0, high: int = LIMIT) -> int:
    """A whole number, at least `low` and below `high`; raises StoreError for any other data.

    Example:
        >>> integer(3), integer(-1, -1)
        (3, -1)
    """
    if type(data) is not int or not low <= data < high:
        raise StoreError(f"expected a whole number from {low} to {high - 1}, got {described(data)}")
    return data


def text(data: Any) -> str:
    """A text; raises StoreError for any other data."""
    if type(data) is not str:
        raise StoreError(f"expected a text, got {described(data)}")
    return data


def items(data: Any, length: int | None = None) -> list[Any]:
    """A list, of `length` entries if that is not None; raises StoreError for any other data."""
    if type(data) is not list:
        raise StoreError(f"expected a list, got {described(data)}")
    if length is not None and len(data) != length:
        raise StoreError(f"expected a list of {length}, got one of {len(data)}")
    return data


def members(data: Any, names: Sequence[str] = (), optional: Sequence[str] | None = ()) -> dict[str, Any]:
    """An object with these members, `optional` ones, any of which if that is None, and no others; raises StoreError for any other data."""
    if type(data) is not dict:
        raise StoreError(f"expected an object, got {described(data)}")
    every = dict.fromkeys((*names, *(data if optional is None else optional)))
    other = next((name for name in data if name not in every), None)
    if other is not None:
        raise StoreError(f"unknown member {described(other)}", fix=f"the members are {', '.join(every)}")
    missing = next((name for name in names if name not in data), None)
    if missing is not None:
        raise StoreError(f"the member {missing!r} is missing")
    return data


def read_each(data: Any, read: Callable[[Any], Any], what: str = "row") -> list[Any]:
    """The entries of a list in a file; errors say which."""
    rows, entries = items(data), list[Any]()
    try:
        for row in rows:
            entries.append(read(row))
    except ShardyError:
        with at(f"{what} {len(entries)}"):
            raise
    return entries


def entry(table: Sequence[Any], data: Any) -> Any:
    """The entry of a table by its number in the file; raises StoreError if there is none."""
    if type(data) is not int or not 0 <= data < len(table):
        raise StoreError(f"there is no entry {described(data)}: the table has {len(table)}")
    return table[data]


class Codec(NamedTuple):
    """Writes a value as JSON data, and reads it: each with the tables of the file, which hold what stands in it once."""

    write: Callable[[Any, Any], Any]
    read: Callable[[Any, Any], Any]


class StoredTable(Interner[Hashable]):
    """Data that stands once in a file: rows as they are written, and the entries that were read."""

    def __init__(self, codec: Codec) -> None:
        super().__init__()
        self.codec = codec
        self.entries: list[Any] = []


def in_table(name: str) -> Codec:
    """The codec of data that stands in the table of a name; None is null."""

    def write(tables: Any, value: Any) -> int | None:
        if value is None:
            return None
        table: StoredTable = tables[name]
        return table(value, lambda: table.codec.write(tables, value))

    return Codec(write, lambda tables, data: None if data is None else entry(tables[name].entries, data))


def read_mesh(data: Any) -> Mesh:
    """A mesh from its SDY text; raises StoreError for any other text."""
    mesh = Mesh.parse(text(data))
    if mesh.size > MOST_DEVICES:
        raise StoreError(f"a mesh of more than {MOST_DEVICES} devices")
    return mesh


def _boolean(data: Any) -> bool:
    if type(data) is not bool:
        raise StoreError(f"expected true or false, got {described(data)}")
    return data


def _number(data: Any) -> float:
    if type(data) not in (int, float) or not math.isfinite(data):
        raise StoreError(f"expected a number, got {described(data)}")
    return float(data)


def _plain(read: Callable[[Any], Any]) -> Codec:
    return Codec(lambda tables, value: value, lambda tables, data: read(data))


CODECS: dict[Any, Codec] = {
    str: _plain(text),
    bool: _plain(_boolean),
    int: _plain(integer),
    float: _plain(_number),
    str | int: _plain(lambda data: integer(data, -LIMIT) if type(data) is int else text(data)),
    Mesh: Codec(lambda tables, mesh: str(mesh), lambda tables, data: read_mesh(data)),
}
"""Annotation -> its codec; whole numbers are counts."""

UNSTORED: dict[type[Any], tuple[str, ...]] = {}
"""Class -> the fields that a file does not have; they get their defaults."""


def codec_of(annotation: Any) -> Codec:
    """The codec of an annotation: a key of `CODECS`, a `Literal`, a dataclass, or tuples, mappings and unions with None of these."""
    if annotation in CODECS:
        return CODECS[annotation]
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return _plain(functools.partial(_word, parts))
    if origin is tuple and parts[1:] == (...,):
        return _rows(parts[0]) if is_dataclass(parts[0]) else _several(codec_of(parts[0]))
    if origin is Mapping and parts[0] is str:
        return _mapping(codec_of(parts[1]))
    if origin in (Union, types.UnionType) and len(parts) == 2 and parts[1] is type(None):
        return _or_none(codec_of(parts[0]))
    if is_dataclass(annotation) and isinstance(annotation, type):
        return CODECS.setdefault(annotation, _object(annotation))
    raise TypeError(f"no field of a stored class is a {annotation}")


def _word(words: tuple[str, ...], data: Any) -> str:
    if data not in words:
        raise StoreError(f"unknown word {described(data)}", fix=f"one of {', '.join(map(repr, words))}")
    return data


def _or_none(codec: Codec) -> Codec:
    return Codec(
        lambda tables, value: None if value is None else codec.write(tables, value),
        lambda tables, data: None if data is None else codec.read(tables, data),
    )


def _several(codec: Codec) -> Codec:
    return Codec(
        lambda tables, values: [codec.write(tables, item) for item in values],
        lambda tables, data: tuple(read_each(data, functools.partial(codec.read, tables))),
    )


def _object(cls: type[Any]) -> Codec:
    def write(tables: Any, value: Any) -> dict[str, Any]:
        stored = ((name, getattr(value, name), field, codec) for name, (field, codec) in stored_fields(cls).items())
        return {name: codec.write(tables, item) for name, item, field, codec in stored if item != default_of(field)}

    return Codec(write, lambda tables, data: cls(**read_fields(cls, tables, data)))


def row_of(cls: Any) -> Codec:
    """The codec of values of a dataclass as rows, the fields of which the format names once and for all."""

    def write(tables: Any, value: Any) -> list[Any]:
        return [codec.write(tables, getattr(value, name)) for name, (_, codec) in stored_fields(cls).items()]

    def read(tables: Any, data: Any) -> Any:
        codecs = [codec for _, codec in stored_fields(cls).values()]
        return cls(*(codec.read(tables, item) for codec, item in zip(codecs, items(data, len(codecs)))))

    return Codec(write, read)


def _rows(cls: Any) -> Codec:
    """The codec of several values of a dataclass."""

    def write(tables: Any, values: Sequence[Any]) -> dict[str, Any]:
        stored = stored_fields(cls).items()
        names = [name for name, (field, _) in stored if any(getattr(value, name) != default_of(field) for value in values)]
        codecs = [(name, stored_fields(cls)[name][1]) for name in names]
        return {"fields": names, "rows": [[codec.write(tables, getattr(value, name)) for name, codec in codecs] for value in values]}

    def read(tables: Any, data: Any) -> tuple[Any, ...]:
        table = members(data, ("fields", "rows"))
        names = list(map(text, items(table["fields"])))
        if len(set(names)) != len(names):
            raise StoreError("a field stands twice", where="fields")
        objects = [dict(zip(names, items(row, len(names)))) for row in items(table["rows"])]
        return values.read(tables, objects)

    values = _several(_object(cls))
    return Codec(write, read)


def _mapping(codec: Codec) -> Codec:
    return Codec(
        lambda tables, values: {name: codec.write(tables, value) for name, value in values.items()},
        lambda tables, data: {name: codec.read(tables, value) for name, value in members(data, optional=None).items()},
    )


@functools.cache
def stored_fields(cls: type[Any]) -> dict[str, tuple[Field[Any], Codec]]:
    """The fields of a class that a file has, and their codecs."""
    hints = get_type_hints(cls)
    return {f.name: (f, codec_of(hints[f.name])) for f in fields(cls) if f.name not in UNSTORED.get(cls, ())}


def read_fields(cls: type[Any], tables: Any, data: Any) -> dict[str, Any]:
    """The fields of a class that a file has; others have their defaults."""
    declared = stored_fields(cls)
    required = [name for name, (field, _) in declared.items() if default_of(field) is MISSING]
    values: dict[str, Any] = {}
    for name, item in members(data, required, tuple(declared)).items():
        with at(name):
            values[name] = declared[name][1].read(tables, item)
    return values


def default_of(field: Field[Any]) -> Any:
    """The default of a field; MISSING where it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory()
