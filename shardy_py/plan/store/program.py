"""The program of a plan as rows, in the order in which `Program.walk` goes, and its propagation log.

`["function", ...]`, then its body; a body is `["block", types, shardings]`, its ops, `["end"]`. An op is
`[kind, location, operands, shardings of results]`, with the number of its regions where it has any; their bodies follow.
Values are numbered in the order in which rows define them, so that an operand has a smaller number than results computed from it.

Export erases ops, data-flow edges above all, that steps of the log speak of. They are kept apart from the program, without their
regions, under the numbers that follow those of the program; then come the results of the function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shardy_py.cost.compute import work_of
from shardy_py.cost.sizes import LocalSizes
from shardy_py.dialect import Mesh, OpShardingRule, TensorSharding
from shardy_py.dialect.grouping import Interner
from shardy_py.dialect.verify import verify_sharding
from shardy_py.errors import ShardyError
from shardy_py.ir import Block, Function, Location, Op, Program, Type, Value
from shardy_py.ir.printer import print_program
from shardy_py.ir.verifier import verify
from shardy_py.passes.propagation.log import FunctionResult, LogStep
from shardy_py.plan.derivation import IDENTITIES
from shardy_py.plan.store.attributes import read_attributes, read_type, stored_constant, write, write_type
from shardy_py.plan.store.codec import (
    CODECS,
    MOST_DEVICES,
    Codec,
    StoredTable,
    StoreError,
    at,
    described,
    entry,
    in_table,
    integer,
    items,
    members,
    read_each,
    read_mesh,
    row_of,
    text,
)
from shardy_py.plan.values import source_of
from shardy_py.rules import RULES, rule_for

DEEPEST = 200
"""Limit of bodies in bodies."""

COMPARED = 1 << 16
"""Arrays of fewer bytes are equal where their elements are."""

FAILURES = (ArithmeticError, AssertionError, AttributeError, LookupError, StopIteration, TypeError, ValueError)
"""What code raises that is given a program which no front end makes."""

_FROM_VALUES = (RULES.keys() | IDENTITIES) - {"stablehlo.custom_call"}
"""Ops that compute something from something."""

_LOG = ("erased", "results", "tensors", "steps")

Attributes = dict[str, Any]


@dataclass(frozen=True, slots=True)
class OpKind:
    """The data that many ops share."""

    name: str
    primitive: str | None
    attributes: Attributes | None
    rule: OpShardingRule | None
    rule_decided: bool
    types: tuple[Type, ...]


@dataclass(frozen=True, slots=True)
class FunctionHead:
    """A function without its body."""

    name: str
    visibility: str
    result_types: tuple[Type, ...]
    result_shardings: tuple[TensorSharding | None, ...]
    attributes: Attributes | None
    argument_attributes: tuple[Attributes | None, ...]
    result_attributes: tuple[Attributes | None, ...]


class ProgramTables(dict[str, StoredTable]):
    """The tables of a program, by name, and the numbers of its values and ops."""

    def __init__(self, program: Program | None = None, meshes: dict[str, Mesh] | None = None) -> None:
        super().__init__({name: StoredTable(codec) for name, codec in _TABLES.items()})
        self.program = program
        self.meshes = meshes or {}
        self.defined: list[Any] = []
        self.ops: list[Op] = []
        self.numbers: dict[Any, int] = {}
        self.op_numbers: dict[Op, int] = {}
        self._attributes: dict[tuple[int, Type | None], int] = {}
        self._arrays: dict[Hashable, int] = {}

    def add(self, values: Sequence[Any]) -> None:
        """Assigns the next numbers to values that are written."""
        for value in values:
            self.numbers[value] = len(self.numbers)

    def attributes(self, attributes: Attributes | None, constant: Type | None = None) -> int | None:
        """The number of attributes, those of a constant of a type if that is given; None where there are none."""
        if not attributes:
            return None
        key = (id(attributes), constant)
        if key not in self._attributes:
            if constant is not None and "value" in attributes:
                attributes = {**attributes, "value": stored_constant(attributes["value"], constant, self._array)}
            data = {name: write(value) for name, value in attributes.items()}
            self._attributes[key] = self["attributes"](_frozen(data), lambda: data)
        return self._attributes[key]

    def _array(self, value: Any) -> int:
        """The number of an array that is too large to be stored; arrays that are not small are only equal to themselves."""
        small = getattr(value, "nbytes", COMPARED) < COMPARED and hasattr(value, "tobytes")
        key = (str(value.dtype), value.shape, value.tobytes()) if small else id(value)
        return self._arrays.setdefault(key, len(self._arrays))

    def kind(self, op: Op) -> int:
        """The number of an op's name, primitive, attributes, rule and result types."""
        types = tuple([result.type for result in op.results])
        constant = types[0] if len(types) == 1 and "constant" in op.name else None
        key = (op.name, types, op.primitive, self.attributes(op.attributes, constant), op.rule, op.rule_decided)

        def row() -> list[Any]:
            written = self["kinds"].codec.write(self, OpKind(op.name, op.primitive, None, op.rule, op.rule_decided, types))
            return [*written[:2], key[3], *written[3:]]

        return self["kinds"](key, row)

    def sharding_of(self, data: Any, rank: int) -> TensorSharding | None:
        """The sharding of a value of that rank that a number in a file stands for."""
        sharding = _SHARDING.read(self, data)
        if sharding is not None and sharding.rank != rank and not sharding.mesh_in(self.meshes).is_maximal:
            raise StoreError(f"the sharding {sharding.text(short=True)} is for values of rank {sharding.rank}, this one has {rank}")
        return sharding


def _frozen(data: Any) -> Hashable:
    """A hashable form of JSON data, equal for equal data; 1, 1.0 and true differ."""
    if isinstance(data, dict):
        return tuple((name, _frozen(value)) for name, value in data.items())
    if isinstance(data, list):
        return (None, *map(_frozen, data))
    return type(data), repr(data)


def _read_sharding(tables: ProgramTables, row: Any) -> TensorSharding:
    sharding = TensorSharding.parse(text(row))
    if isinstance(sharding.mesh, Mesh) and sharding.mesh.size > MOST_DEVICES:
        raise StoreError(f"a mesh of more than {MOST_DEVICES} devices")
    verify_sharding(sharding.without_priorities(), (1,) * sharding.rank, tables.meshes)
    return sharding


def _as_it_is(tables: ProgramTables, row: Any) -> Any:
    return row


_SHARDING, _LOCATION = in_table("shardings"), in_table("locations")
CODECS.update(
    {
        Type: in_table("types"),
        TensorSharding: _SHARDING,
        OpShardingRule: in_table("rules"),
        Attributes: Codec(ProgramTables.attributes, in_table("attributes").read),
        Program: Codec(lambda tables, program: write_program(program)[0], lambda tables, data: read_program(data).program),
    }
)
_TABLES = {
    "types": Codec(lambda tables, type_: write_type(type_), lambda tables, row: read_type(row)),
    "shardings": Codec(lambda tables, sharding: sharding.text(short=True), _read_sharding),
    "rules": Codec(
        lambda tables, rule: str(rule).removeprefix("#sdy.op_sharding_rule"), lambda tables, row: OpShardingRule.parse(text(row))
    ),
    "attributes": Codec(_as_it_is, lambda tables, row: read_attributes(row)),
    "locations": row_of(Location),
    "kinds": row_of(OpKind),
}
"""The tables of a file, in order; an entry of `kinds` refers to the others."""

_SIGNATURE = row_of(FunctionHead)
PROGRAM = ("meshes", *_TABLES, "program", "program_attributes", "value_names")


def write_program(program: Program) -> tuple[dict[str, Any], ProgramTables]:
    """A program as JSON data, with the tables that it and the rest of the file refer to, which grow while that is written.

    The program has to stay alive until all is written, since tables go by identity.
    """
    tables = ProgramTables(program)
    rows: list[Any] = []
    for function in program.functions:
        rows.append(["function", *_SIGNATURE.write(tables, function)])
        _write_block(function.body, tables, rows)
    of_meshes = program.mesh_attributes
    return {
        "meshes": [[name, str(mesh), tables.attributes(of_meshes.get(name))] for name, mesh in program.meshes.items()],
        **{name: table.rows for name, table in tables.items()},
        "program": rows,
        "program_attributes": tables.attributes(program.attributes),
        "value_names": [[number, value.name] for value, number in tables.numbers.items() if value.name is not None],
    }, tables


def _write_block(block: Block, tables: ProgramTables, rows: list[Any]) -> None:
    rows.append(_block_row(block, tables))
    ops, values = tables.op_numbers, tables.numbers
    for op in block.ops:
        ops[op] = len(ops)
        row = _write_op(op, tables, None if tables.program is None else tables.program.locate(op.location))
        for value in op.results:
            values[value] = len(values)
        rows.append(row)
        if op.regions:
            row.append(len(op.regions))
            for region in op.regions:
                _write_block(region, tables, rows)
    rows.append(["end"])


def _block_row(block: Block, tables: ProgramTables) -> list[Any]:
    tables.add(block.arguments)
    of_type, sharding = CODECS[Type].write, _SHARDING.write
    return ["block", [of_type(tables, a.type) for a in block.arguments], [sharding(tables, a.sharding) for a in block.arguments]]


def _write_op(op: Op, tables: ProgramTables, where: Location | None) -> list[Any]:
    """The row of an op without its regions."""
    values, sharding = tables.numbers, _SHARDING.write
    shardings = [sharding(tables, result.sharding) for result in op.results]
    return [tables.kind(op), _LOCATION.write(tables, where), [values[v] for v in op.operands], shardings]


class Reader(ProgramTables):
    """A program that was read, with the tables that the rest of the file refers to."""

    program: Program
    row = 0

    def functions(self, rows: list[Any]) -> Iterator[Function]:
        """The functions of rows, of which `row` counts those that have been read."""
        waiting = iter(rows)
        for row in waiting:
            self.row += 1
            if items(row)[:1] != ["function"]:
                raise StoreError(f"a function begins where an op stands, {described(row)}")
            signature = _SIGNATURE.read(self, row[1:])
            body = self._block(waiting, 0)
            function = Function(signature.name, body, signature.result_types, visibility=signature.visibility)
            if len(signature.argument_attributes) != len(body.arguments) or {
                len(signature.result_shardings),
                len(signature.result_attributes),
            } != {len(signature.result_types)}:
                raise StoreError("attributes or shardings are not one for each argument and result")
            for sharding, type_ in zip(signature.result_shardings, signature.result_types):
                if sharding is not None and sharding.rank != type_.rank and not sharding.mesh_in(self.meshes).is_maximal:
                    raise StoreError(f"the sharding {sharding.text(short=True)} is not for results of rank {type_.rank}")
            function.result_shardings = list(signature.result_shardings)
            function.attributes = dict(signature.attributes or {})
            function.argument_attributes = [dict(attributes or {}) for attributes in signature.argument_attributes]
            function.result_attributes = [dict(attributes or {}) for attributes in signature.result_attributes]
            yield function

    def _next(self, rows: Iterator[Any]) -> list[Any]:
        row = next(rows, None)
        if row is None:
            raise StoreError("a body has no end")
        self.row += 1
        return items(row)

    def _block(self, rows: Iterator[Any], depth: int) -> Block:
        if depth >= DEEPEST:
            raise StoreError(f"more than {DEEPEST} bodies in bodies")
        block = self.block(self._next(rows))
        while (row := self._next(rows)) != ["end"]:
            count = integer(row[4], 1, 1 << 16) if len(row) == 5 else 0
            op = self.op(row[:4])
            for i, operand in enumerate(op.operands):
                operand.uses[op, i] = None
            block.append(op)
            regions: list[Block] = []
            for _ in range(count):
                regions.append(self._block(rows, depth + 1))
                regions[-1].parent = op
            op.regions = tuple(regions)
        return block

    def block(self, row: Any) -> Block:
        """An empty block with its arguments; raises StoreError for other data."""
        head, types, shardings = items(row, 3)
        if head != "block":
            raise StoreError(f"expected a body, got {described(row)}")
        block = Block([CODECS[Type].read(self, t) for t in items(types)])
        for argument, sharding in zip(block.arguments, items(shardings, len(block.arguments))):
            argument.sharding = self.sharding_of(sharding, argument.type.rank)
        self.defined += block.arguments
        return block

    def op(self, row: Any) -> Op:
        """An op that is not yet among the uses of its operands; raises StoreError for other data."""
        number, location, operands, shardings = items(row, 4)
        kind: OpKind = entry(self["kinds"].entries, number)
        if kind.name in _FROM_VALUES and not (items(operands) and kind.types):
            raise StoreError(f"{kind.name} without {'results' if operands else 'operands'}")
        where = _LOCATION.read(self, location)
        same = {"rule": kind.rule, "rule_decided": kind.rule_decided, "location": where, "primitive": kind.primitive}
        op = Op(kind.name, (), kind.types, kind.attributes, **same)
        op.operands = [entry(self.defined, operand) for operand in items(operands)]
        for result, sharding in zip(op.results, items(shardings, len(op.results))):
            result.sharding = self.sharding_of(sharding, result.type.rank)
        self.ops.append(op)
        self.defined += op.results
        return op


def read_program(data: Any) -> Reader:
    """The inverse of `write_program`; raises StoreError for data that are no program, or one that cannot be used."""
    members(data, PROGRAM)
    with at("meshes"):
        rows = [items(row, 3) for row in items(data["meshes"])]
        meshes = {text(name): read_mesh(mesh) for name, mesh, _ in rows}
        if len(meshes) != len(rows):
            raise StoreError("the name of a mesh stands twice")
    reader = Reader(None, meshes)
    if not items(data["program"]):
        raise StoreError("a program without a function", where="program")
    for name, table in reader.items():
        with at(name):
            table.entries = read_each(data[name], functools.partial(table.codec.read, reader), "entry")
    attributes = CODECS[Attributes].read
    try:
        program = reader.program = Program(reader.functions(data["program"]), meshes)
    except StoreError as error:
        error.at(f"program, row {reader.row - 1}")
        raise
    with at("attributes"):
        program.attributes = dict(attributes(reader, data["program_attributes"]) or {})
        program.mesh_attributes = {name: dict(attributes(reader, row)) for name, _, row in rows if row is not None}
    for pair in items(data["value_names"]):
        number, name = items(pair, 2)
        entry(reader.defined, number).name = text(name)
    with at("program"):
        _check(program)
    return reader


def _check(program: Program) -> None:
    """Raises StoreError unless the program is well formed, and rules, work and text can be made of each op, as views make them.

    What a front end makes has attributes and shapes that fit. A file may say anything, and a view of it should not be what fails.
    """
    sizes = LocalSizes(program.meshes)
    valid: set[tuple[object, ...]] = set()
    where = "the program"
    try:
        verify(program)
        program.main.body.terminator  # noqa: B018
        for op in program.walk():
            where, values = op.name, (*op.operands, *op.results)
            key = (op.name, op.primitive, id(op.attributes), len(op.operands), *[(value.type, value.sharding) for value in values])
            if key in valid or op.regions:
                continue
            rule_for(op)
            work_of(op, sizes)
            valid.add(key)
        print_program(program)
    except ShardyError as error:
        raise StoreError(error.what, where=error.where or where, why=error.why, fix=error.fix) from error
    except FAILURES as error:
        what = "attributes, operands or results are not those of the op"
        raise StoreError(what, where=where, why=f"{type(error).__name__}: {error}") from error


def write_log(log: Sequence[LogStep], tables: ProgramTables) -> dict[str, Any]:
    """Writes the log of a program's propagation as JSON data; the erased values and ops get numbers in its tables."""
    erased: list[Any] = []
    results: dict[FunctionResult, None] = {}
    seen: set[int] = set()
    for step in log:
        tensors = () if id(step.tensors) in seen else step.tensors  # the steps of an op, or of a group, share their tuple
        seen.add(id(step.tensors))
        for value in (step.target, *tensors):
            if value not in tables.numbers:
                if isinstance(value, Value):
                    _write_erased(value.owner, tables, erased)
                else:
                    results[value] = None
        if step.op is not None and step.op not in tables.op_numbers:
            _write_erased(step.op, tables, erased)
    tables.add(list(results))
    groups = Interner[tuple[int, ...]](list)
    values, ops = tables.numbers, tables.op_numbers
    sharding = functools.partial(_SHARDING.write, tables)
    group_rows: dict[int, int | None] = {}
    steps: list[Any] = []
    for step in log:
        key = id(step.tensors)  # the log keeps it alive
        if key not in group_rows:
            row = tuple(values[tensor] for tensor in step.tensors)
            own = step.op is not None and step.tensors == (*step.op.operands, *step.op.results)
            group_rows[key] = None if own else groups(row)
        op = None if step.op is None else ops[step.op]
        rest = (group_rows[key], step.reason, step.user_priority, step.op_priority)
        steps.append([values[step.target], sharding(step.old), sharding(step.new), op, *rest])
    of_results = [[result.index, sharding(result.sharding)] for result in results]
    return dict(zip(_LOG, (erased, of_results, groups.rows, steps)))


def _write_erased(first: Op | Block, tables: ProgramTables, rows: list[Any]) -> None:
    """Writes an erased op after the ops of its operands, or the arguments of an erased body."""
    waiting: list[Op | Block] = [first]
    begun: set[Op] = set()
    while waiting:
        owner = waiting[-1]
        if isinstance(owner, Block):
            waiting.pop()
            rows.append(_block_row(owner, tables))
            continue
        missing = [operand.owner for operand in owner.operands if operand not in tables.numbers]
        if missing and owner not in begun:
            begun.add(owner)
            waiting += missing
            continue
        waiting.pop()
        if owner not in tables.op_numbers:
            tables.op_numbers[owner] = len(tables.op_numbers)
            assert tables.program is not None
            rows.append(_write_op(owner, tables, source_of(tables.program, owner)))
            tables.add(owner.results)


def read_log(data: Any, reader: Reader) -> list[LogStep]:
    """The inverse of `write_log`; raises StoreError for any other data."""
    parts = members(data, _LOG)
    values, ops = reader.defined, reader.ops

    def each(name: str, read: Callable[[list[Any]], Any]) -> list[Any]:
        with at(name):
            return read_each(parts[name], lambda row: read(items(row)))

    sharding = functools.partial(_SHARDING.read, reader)

    def result(row: list[Any]) -> None:
        index, of_result = items(row, 2)
        values.append(FunctionResult(integer(index), sharding(of_result)))

    each("erased", lambda row: reader.block(row) if row[:1] == ["block"] else reader.op(row))
    each("results", result)
    tensors = each("tensors", lambda row: tuple(entry(values, value) for value in row))
    op_tensors: dict[Op, tuple[Any, ...]] = {}

    def step(row: list[Any]) -> LogStep:
        target, old, new, by, tensors_row, reason, user_priority, op_priority = items(row, 8)
        value, op = entry(values, target), None if by is None else entry(ops, by)
        if tensors_row is not None:
            of_step = entry(tensors, tensors_row)
        elif op is None:
            raise StoreError("a step without an op does not say between which values it is")
        else:
            of_step = op_tensors.setdefault(op, (*op.operands, *op.results))
        rule = None if op is None or op.name in IDENTITIES else op.rule
        if reason == "propagate" and rule is not None and len(of_step) != len(rule.mappings):
            raise StoreError(f"{len(of_step)} values of a rule for {len(rule.mappings)}")
        old, new = (reader.sharding_of(s, value.type.rank) if isinstance(value, Value) else sharding(s) for s in (old, new))
        priorities = integer(user_priority), integer(op_priority, -1)
        return LogStep(value, old, new, text(reason), op, of_step, (), *priorities)

    return each("steps", step)
