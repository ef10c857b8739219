"""The program of a plan as rows, in the order in which `Program.walk` goes.

`["function", ...]`, then its body; a body is `["block", types, shardings]`, its ops, `["end"]`. An op is
`[kind, location, operands, shardings of results]`, with the number of its regions where it has any; their bodies follow.
Values are numbered in the order in which rows define them, so that an operand has a smaller number than results computed from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardy_py.errors import ShardyError
from shardy_py.ir import Block, Function, Location, Op, Program, Value
from shardy_py.ir.verifier import verify
from shardy_py.plan.store.checks import StoreError, at, entry, integer, items, text
from shardy_py.plan.store.op_facts import check_ops
from shardy_py.plan.store.tables import Reader, Writer

DEEPEST = 200
"""Limit of bodies in bodies."""


class Numbers:
    """The numbers of values and ops."""

    def __init__(self) -> None:
        self.values: dict[Any, int] = {}
        self.ops: dict[Op, int] = {}

    def add(self, values: Sequence[Any]) -> None:
        """Assigns the next numbers to values."""
        numbers = self.values
        for value in values:
            numbers[value] = len(numbers)


def write_program(program: Program, tables: Writer) -> tuple[list[Any], Numbers]:
    """The rows of a program, and the numbers that they give to its values and ops."""
    rows: list[Any] = []
    numbers = Numbers()
    for function in program.functions:
        rows.append(
            [
                "function",
                function.name,
                function.visibility,
                [tables.type(t) for t in function.result_types],
                [tables.sharding(s) for s in function.result_shardings],
                tables.attributes(function.attributes),
                [tables.attributes(a) for a in function.argument_attributes],
                [tables.attributes(a) for a in function.result_attributes],
            ]
        )
        _write_block(function.body, tables, numbers, rows)
    return rows, numbers


def _write_block(block: Block, tables: Writer, numbers: Numbers, rows: list[Any]) -> None:
    numbers.add(block.arguments)
    rows.append(["block", [tables.type(a.type) for a in block.arguments], [tables.sharding(a.sharding) for a in block.arguments]])
    ops, values, location = numbers.ops, numbers.values, tables.location
    before, last = None, None
    for op in block.ops:
        ops[op] = len(ops)
        number = location(op)
        if before is not None and number == last and op.location is not before.location:
            number = tables.place_apart(op)  # ops at one location are of one equation: predictions read programs equation by equation
        row = write_op(op, tables, numbers, number)
        before, last = op, number
        for value in op.results:
            values[value] = len(values)
        rows.append(row)
        if op.regions:
            row.append(len(op.regions))
            for region in op.regions:
                _write_block(region, tables, numbers, rows)
    rows.append(["end"])


def write_op(op: Op, tables: Writer, numbers: Numbers, location: int | None) -> list[Any]:
    """The row of an op without its regions."""
    values, sharding = numbers.values, tables.sharding
    operands, results = [values[operand] for operand in op.operands], [sharding(result.sharding) for result in op.results]
    return [tables.kind(op), location, operands, results]


def names_of(numbers: Numbers) -> list[Any]:
    """`[number, name]` of each value that has a name."""
    return [[number, value.name] for value, number in numbers.values.items() if isinstance(value, Value) and value.name is not None]


class ProgramReader:
    """Makes a program from its rows."""

    def __init__(self, tables: Reader) -> None:
        self.tables = tables
        self.values: list[Any] = []
        self.ops: list[Op] = []
        self.functions: list[Function] = []
        self._open: list[Block] = []
        self._function: list[Any] | None = None
        self._regions: list[tuple[Op, list[Block], int]] = []

    def program(self, rows: Any, attributes: dict[str, Any] | None, mesh_attributes: dict[str, dict[str, Any]]) -> Program:
        """The program of rows; raises StoreError if they are not one, or if it breaks a rule of its ops."""
        for number, row in enumerate(items(rows)):
            try:
                self._row(row)
            except ShardyError as error:
                raise _at(error, f"program, row {number}") from error
        if self._open or self._regions or self._function is not None:
            raise StoreError("a body has no end", where="program")
        program = Program(self.functions, self.tables.meshes)
        program.attributes = dict(attributes or {})
        program.mesh_attributes = mesh_attributes
        program.locate = _located
        try:
            verify(program)
            program.main.body.terminator  # noqa: B018
        except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
            has_context = isinstance(error, ShardyError)
            what = error.what if has_context else "the program is not well formed"
            where = error.where if has_context else None
            raise StoreError(what, where=f"program, {where}" if where else "program", why=None if has_context else str(error)) from error
        with at("program"):
            check_ops(program)
        return program

    def _row(self, row: Any) -> None:
        kind = row[0] if items(row) else None
        if kind == "function":
            self._begin_function(row)
        elif kind == "block":
            self._begin_block(row)
        elif kind == "end":
            items(row, 1)
            self._end_block()
        elif not self._open:
            raise StoreError("an op stands outside of any body")
        else:
            self._op(row)

    def _begin_function(self, row: list[Any]) -> None:
        if self._open or self._function is not None:
            raise StoreError("a function begins inside of another")
        items(row, 8)
        self._function = row

    def _end_function(self, body: Block) -> None:
        assert self._function is not None
        _, name, visibility, types, shardings, attributes, of_arguments, of_results = self._function
        tables = self.tables
        function = Function(text(name), body, [tables.type(t) for t in items(types)], visibility=text(visibility))
        count = len(function.result_types)
        ranks = [type_.rank for type_ in function.result_types]
        function.result_shardings = [tables.sharding_of(s, rank) for s, rank in zip(items(shardings, count), ranks)]
        function.attributes = dict(tables.members(attributes) or {})
        function.argument_attributes = [dict(tables.members(a) or {}) for a in items(of_arguments, len(body.arguments))]
        function.result_attributes = [dict(tables.members(a) or {}) for a in items(of_results, count)]
        self.functions.append(function)
        self._function = None

    def _begin_block(self, row: list[Any]) -> None:
        _, types, shardings = items(row, 3)
        if not self._awaits() and (self._function is None or self._open):
            raise StoreError("a body begins where none is awaited")
        if len(self._open) >= DEEPEST:
            raise StoreError(f"more than {DEEPEST} bodies in bodies")
        block = make_block(self.tables, types, shardings)
        self.values += block.arguments
        self._open.append(block)

    def _end_block(self) -> None:
        if not self._open or self._awaits():
            raise StoreError("a body ends where none has begun, or before the bodies of its last op")
        block = self._open.pop()
        if not self._open:
            self._end_function(block)
            return
        op, regions, count = self._regions[-1]
        regions.append(block)
        block.parent = op
        if len(regions) == count:
            op.regions = tuple(regions)
            self._regions.pop()

    def _awaits(self) -> bool:
        """Whether the last op of the open body waits for bodies of its own."""
        return bool(self._regions) and bool(self._open) and self._regions[-1][0].block is self._open[-1]

    def _op(self, row: list[Any]) -> None:
        if self._awaits():
            raise StoreError("an op stands where the body of one before it is awaited")
        regions = 0
        if len(row) == 5:
            regions = integer(row[4], 1, 1 << 16)
            row = row[:4]
        op = make_op(self.tables, row, self.values)
        for i, operand in enumerate(op.operands):
            operand.uses[op, i] = None
        self._open[-1].append(op)
        self.ops.append(op)
        self.values += op.results
        if regions:
            self._regions.append((op, [], regions))


def make_block(tables: Reader, types: Any, shardings: Any) -> Block:
    """An empty block with its arguments; raises StoreError for other data than their numbers."""
    block = Block([tables.type(t) for t in items(types)])
    for argument, sharding in zip(block.arguments, items(shardings, len(block.arguments))):
        argument.sharding = tables.sharding_of(sharding, argument.type.rank)
    return block


def make_op(tables: Reader, row: Any, values: list[Any]) -> Op:
    """An op that is not yet among the uses of its operands, from `[kind, location, operands, shardings]`; raises StoreError otherwise."""
    number, location, operands, shardings = items(row, 4)
    kind = entry(tables.kinds, number)
    op = Op(
        kind.name,
        (),
        kind.types,
        kind.attributes,
        rule=kind.rule,
        rule_decided=kind.rule_decided,
        location=tables.location(location),
        primitive=kind.primitive,
    )
    op.operands = [entry(values, operand) for operand in items(operands)]
    for result, sharding in zip(op.results, items(shardings, len(op.results))):
        result.sharding = tables.sharding_of(sharding, result.type.rank)
    return op


def read_names(data: Any, values: list[Any]) -> None:
    """Gives values their names; raises StoreError for other data than names."""
    for pair in items(data):
        number, name = items(pair, 2)
        entry(values, number).name = text(name)


def _located(location: object) -> Location | None:
    return location if isinstance(location, Location) else None


def _at(error: ShardyError, where: str) -> StoreError:
    if isinstance(error, StoreError):
        error.at(where)
        return error
    return StoreError(error.what, where=where if error.where is None else f"{where}, {error.where}", why=error.why, fix=error.fix)
