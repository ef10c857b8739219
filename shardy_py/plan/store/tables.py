"""Tables of data that occur many times in a plan, so that an op is a few numbers."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from shardy_py.dialect import Mesh, OpShardingRule, TensorSharding
from shardy_py.dialect.verify import verify_sharding
from shardy_py.ir import Location, Op, Program, Type
from shardy_py.plan.store import attributes
from shardy_py.plan.store.checks import StoreError, at, boolean, entry, integer, items, text

NAMES = ("types", "shardings", "rules", "attributes", "locations", "kinds")
"""The tables of a file, in order; an entry of `kinds` refers to the others."""

MOST_DEVICES = (1 << 31) - 1
"""Numbers of devices have 32 bits in JAX and XLA."""

COMPARED = 1 << 16
"""Arrays of fewer bytes are equal where their elements are."""


class Rows:
    """A table under construction, without duplicate entries."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.numbers: dict[Hashable, int] = {}

    def number(self, key: Hashable, make: Callable[[], Any]) -> int:
        """The number of an entry; a new entry is added."""
        number = self.numbers.get(key)
        if number is None:
            number = self.numbers[key] = len(self.rows)
            self.rows.append(make())
        return number


class Writer:
    """The tables of a plan while it is written."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.tables = {name: Rows() for name in NAMES}
        self._numbers_of_shardings = self.tables["shardings"].numbers
        self._located: dict[int, int | None] = {}
        self._attributes: dict[tuple[int, Type | None], int | None] = {}
        self._kinds: dict[tuple[Any, ...], int] = {}
        self._arrays: dict[Hashable, int] = {}

    def type(self, type_: Type) -> int:
        """The number of a type."""
        key = repr(type_)
        return self.tables["types"].number(key, lambda: attributes.write_type(type_))

    def sharding(self, sharding: TensorSharding | None) -> int | None:
        """The number of a sharding."""
        if sharding is None:
            return None
        number = self._numbers_of_shardings.get(sharding)
        return self.tables["shardings"].number(sharding, lambda: sharding.text(short=True)) if number is None else number

    def rule(self, rule: OpShardingRule | None) -> int | None:
        """The number of a rule."""
        return None if rule is None else self.tables["rules"].number(rule, lambda: str(rule).removeprefix("#sdy.op_sharding_rule"))

    def location(self, op: Op) -> int | None:
        """The number of the location of an op; None where none of its frames is the user's."""
        location = op.location
        if location is None:
            return None
        key = id(location)  # the program keeps it alive
        number = self._located.get(key, -1)
        if number == -1:
            number = self._located[key] = self.place(self.program.locate(location))
        return number

    def place(self, where: Location | None) -> int | None:
        """The number of a location."""
        if where is None:
            return None
        row = (where.file, where.line, where.function, where.scope)
        return self.tables["locations"].number(row, lambda: list(row))

    def place_apart(self, op: Op) -> int | None:
        """The number of an op's location, from now on another one than those of other equations on its line."""
        where = None if op.location is None else self.program.locate(op.location)
        place = self.place(where)
        if place is None:
            return None
        number = self._located[id(op.location)] = self.tables["locations"].number((place, id(op.location)), lambda: place)
        return number

    def attributes(self, members: dict[str, Any], constant: Type | None = None) -> int | None:
        """The number of the attributes of an op; None where it has none."""
        if not members:
            return None
        key = (id(members), constant)
        if key not in self._attributes:
            data = attributes.write_members(members, constant, self._array)
            self._attributes[key] = self.tables["attributes"].number(_frozen(data), lambda: data)
        return self._attributes[key]

    def _array(self, value: Any) -> int:
        """The number of an array that is too large to be stored; arrays that are not small are only equal to themselves."""
        small = getattr(value, "nbytes", COMPARED) < COMPARED and hasattr(value, "tobytes")
        key = (str(value.dtype), value.shape, value.tobytes()) if small else id(value)
        return self._arrays.setdefault(key, len(self._arrays))

    def kind(self, op: Op) -> int:
        """The number of an op's name, primitive, attributes, rule and result types."""
        types = tuple([result.type for result in op.results])
        attributes_row = None
        if op.attributes:
            attributes_row = self.attributes(op.attributes, types[0] if len(types) == 1 and "constant" in op.name else None)
        key = (op.name, op.primitive, attributes_row, op.rule, op.rule_decided, types)
        number = self._kinds.get(key)
        if number is None:
            row = [*key[:3], self.rule(op.rule), op.rule_decided, [self.type(t) for t in types]]
            number = self._kinds[key] = len(self.tables["kinds"].rows)
            self.tables["kinds"].rows.append(row)
        return number


def _frozen(data: Any) -> Hashable:
    """A hashable form of JSON data, equal for equal data; 1, 1.0 and true differ."""
    if isinstance(data, dict):
        return tuple((name, _frozen(value)) for name, value in data.items())
    if isinstance(data, list):
        return (None, *map(_frozen, data))
    return type(data), repr(data)


@dataclass(frozen=True, slots=True)
class KindOfOp:
    """The data that many ops share."""

    name: str
    primitive: str | None
    attributes: dict[str, Any] | None
    rule: OpShardingRule | None
    rule_decided: bool
    types: tuple[Type, ...]


@dataclass(frozen=True)
class Reader:
    """The tables of a file."""

    meshes: dict[str, Mesh]
    types: list[Type] = field(default_factory=list)
    shardings: list[TensorSharding] = field(default_factory=list)
    rules: list[OpShardingRule] = field(default_factory=list)
    attributes: list[dict[str, Any]] = field(default_factory=list)
    locations: list[Location] = field(default_factory=list)
    kinds: list[KindOfOp] = field(default_factory=list)

    def type(self, data: Any) -> Type:
        """The type that a number stands for."""
        return entry(self.types, data)

    def sharding(self, data: Any) -> TensorSharding | None:
        """The sharding that a number stands for."""
        return None if data is None else entry(self.shardings, data)

    def sharding_of(self, data: Any, rank: int) -> TensorSharding | None:
        """The sharding of a value of that rank that a number stands for."""
        sharding = None if data is None else entry(self.shardings, data)
        if sharding is not None and sharding.rank != rank and not sharding.mesh_in(self.meshes).is_maximal:
            raise StoreError(f"the sharding {sharding.text(short=True)} is for values of rank {sharding.rank}, this one has {rank}")
        return sharding

    def rule(self, data: Any) -> OpShardingRule | None:
        """The rule that a number stands for."""
        return None if data is None else entry(self.rules, data)

    def location(self, data: Any) -> Location | None:
        """The location that a number stands for."""
        return None if data is None else entry(self.locations, data)

    def members(self, data: Any) -> dict[str, Any] | None:
        """The attributes that a number stands for."""
        return None if data is None else entry(self.attributes, data)

    def load(self, name: str, rows: Any) -> None:
        """Reads one of `NAMES`, after the tables before it; raises StoreError for any other data."""
        table, read = getattr(self, name), _READERS[name]
        with at(name):
            for number, row in enumerate(items(rows)):
                with at(f"entry {number}"):
                    table.append(read(self, row))


def read_mesh(data: Any) -> Mesh:
    """A mesh from its SDY text; raises StoreError for any other text."""
    mesh = Mesh.parse(text(data))
    if mesh.size > MOST_DEVICES:
        raise StoreError(f"a mesh of more than {MOST_DEVICES} devices")
    return mesh


def _read_sharding(tables: Reader, row: Any) -> TensorSharding:
    sharding = TensorSharding.parse(text(row))
    if isinstance(sharding.mesh, Mesh) and sharding.mesh.size > MOST_DEVICES:
        raise StoreError(f"a mesh of more than {MOST_DEVICES} devices")
    plain = sharding.without_priorities()
    verify_sharding(plain, (1,) * sharding.rank, tables.meshes)
    return sharding


def _read_location(tables: Reader, row: Any) -> Location:
    if isinstance(row, int):  # an equation of its own on a line that has been read
        same = entry(tables.locations, row)
        return Location(same.file, same.line, same.function, same.scope)
    file, line, function, scope = items(row, 4)
    return Location(text(file), integer(line), text(function), text(scope))


def _read_kind(tables: Reader, row: Any) -> KindOfOp:
    name, primitive, attributes_row, rule, rule_decided, type_rows = items(row, 6)
    types = tuple(tables.type(t) for t in items(type_rows))
    return KindOfOp(
        text(name),
        None if primitive is None else text(primitive),
        tables.members(attributes_row),
        tables.rule(rule),
        boolean(rule_decided),
        types,
    )


_READERS: dict[str, Callable[[Reader, Any], Any]] = {
    "types": lambda tables, row: attributes.read_type(row),
    "shardings": _read_sharding,
    "rules": lambda tables, row: OpShardingRule.parse(text(row)),
    "attributes": lambda tables, row: attributes.read_members(row),
    "locations": _read_location,
    "kinds": _read_kind,
}
