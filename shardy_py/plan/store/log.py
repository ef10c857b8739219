"""The propagation log of a plan as rows, with the ops and values of it that the program no longer has.

Export erases ops, data-flow edges above all, that steps of the log speak of. They are kept apart from the program, without their
regions, under the numbers that follow those of the program; then come the results of the function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardy_py.ir import Block, Op, Program, Value
from shardy_py.passes.propagation.log import FunctionResult, Step
from shardy_py.plan.store.checks import StoreError, at, entry, integer, items, members, text
from shardy_py.plan.store.program import Numbers, ProgramReader, make_block, make_op, write_op
from shardy_py.plan.store.tables import Reader, Rows, Writer
from shardy_py.plan.values import source_of

MEMBERS = ("erased", "results", "tensors", "before", "steps")


def write_log(log: Sequence[Step], program: Program, tables: Writer, numbers: Numbers) -> dict[str, Any]:
    """Writes the log as JSON data; the erased values and ops are added to `numbers`."""
    erased, results = _write_removed(log, program, tables, numbers)
    tensors, before = Rows(), Rows()
    values, ops, sharding = numbers.values, numbers.ops, tables.sharding
    tensor_rows: dict[int, int | None] = {}
    steps: list[Any] = []
    for step in log:
        key = id(step.tensors)  # the log keeps it alive
        if key not in tensor_rows:
            tensor_rows[key] = _tensors(step, values, tensors)
        shardings = step.before
        before_row = before.number(shardings, lambda shardings=shardings: list(map(sharding, shardings)))
        op = None if step.op is None else ops[step.op]
        old, new = sharding(step.old), sharding(step.new)
        steps.append([values[step.target], old, new, op, tensor_rows[key], before_row, step.reason, step.user_priority, step.op_priority])
    return dict(zip(MEMBERS, (erased, results, tensors.rows, before.rows, steps)))


def _tensors(step: Step, values: dict[Any, int], tensors: Rows) -> int | None:
    """None where they are the operands and results of the step's op."""
    if step.op is not None and step.tensors == (*step.op.operands, *step.op.results):
        return None
    row = tuple(values[tensor] for tensor in step.tensors)
    return tensors.number(row, lambda: list(row))


def _write_removed(log: Sequence[Step], program: Program, tables: Writer, numbers: Numbers) -> tuple[list[Any], list[Any]]:
    rows: list[Any] = []
    results: dict[FunctionResult, None] = {}
    seen: set[int] = set()
    for step in log:
        tensors = () if id(step.tensors) in seen else step.tensors  # the steps of an op, or of a group, share their tuple
        seen.add(id(step.tensors))
        for value in (step.target, *tensors):
            if value not in numbers.values:
                if isinstance(value, Value):
                    _write_erased(value.owner, program, tables, numbers, rows)
                else:
                    results[value] = None
        if step.op is not None and step.op not in numbers.ops:
            _write_erased(step.op, program, tables, numbers, rows)
    numbers.add(list(results))
    return rows, [[result.index, tables.sharding(result.sharding)] for result in results]


def _write_erased(first: Op | Block, program: Program, tables: Writer, numbers: Numbers, rows: list[Any]) -> None:
    """Writes an erased op after the ops of its operands, or the arguments of an erased body."""
    waiting: list[Op | Block] = [first]
    begun: set[Op] = set()
    while waiting:
        owner = waiting[-1]
        if isinstance(owner, Block):
            waiting.pop()
            numbers.add(owner.arguments)
            rows.append(["block", [tables.type(a.type) for a in owner.arguments], [tables.sharding(a.sharding) for a in owner.arguments]])
            continue
        missing = [operand.owner for operand in owner.operands if operand not in numbers.values]
        if missing and owner not in begun:
            begun.add(owner)
            waiting += missing
            continue
        waiting.pop()
        if owner not in numbers.ops:
            numbers.ops[owner] = len(numbers.ops)
            row = write_op(owner, tables, numbers, tables.place(source_of(program, owner)))
            numbers.add(owner.results)
            rows.append(row)


def read_log(data: Any, tables: Reader, program: ProgramReader) -> list[Step]:
    """The inverse of `write_log`, which adds erased values and ops to `program`; raises StoreError for any other data."""
    parts = members(data, MEMBERS)
    values, ops = program.values, program.ops
    for number, row in enumerate(items(parts["erased"])):
        with at(f"erased, row {number}"):
            _read_erased(row, tables, values, ops)
    for number, row in enumerate(items(parts["results"])):
        with at(f"results, row {number}"):
            index, sharding = items(row, 2)
            values.append(FunctionResult(integer(index), tables.sharding(sharding)))
    with at("tensors"):
        tensors = [tuple(entry(values, value) for value in items(row)) for row in items(parts["tensors"])]
    with at("before"):
        before = [tuple(map(tables.sharding, items(row))) for row in items(parts["before"])]
    return _read_steps(parts["steps"], tables, values, ops, tensors, before)


def _read_erased(row: Any, tables: Reader, values: list[Any], ops: list[Op]) -> None:
    if items(row) and row[0] == "block":
        _, types, shardings = items(row, 3)
        values += make_block(tables, types, shardings).arguments
        return
    op = make_op(tables, row, values)
    ops.append(op)
    values += op.results


def _read_steps(
    rows: Any,
    tables: Reader,
    values: list[Any],
    ops: list[Op],
    tensors: list[tuple[Any, ...]],
    before: list[tuple[Any, ...]],
) -> list[Step]:
    steps: list[Step] = []
    op_tensors: dict[Op, tuple[Any, ...]] = {}
    for number, row in enumerate(items(rows)):
        try:
            target, old, new, by, tensors_row, before_row, reason, user_priority, op_priority = items(row, 9)
            value = entry(values, target)
            op = None if by is None else entry(ops, by)
            if tensors_row is not None:
                step_tensors = entry(tensors, tensors_row)
            elif op is None:
                raise StoreError("a step without an op does not say between which values it is")
            else:
                step_tensors = op_tensors.get(op)
                if step_tensors is None:
                    step_tensors = op_tensors[op] = (*op.operands, *op.results)
            shardings = entry(before, before_row)
            if reason == "propagate" and len(shardings) != len(step_tensors):
                raise StoreError(f"{len(shardings)} shardings of {len(step_tensors)} values")
            rank = value.type.rank if isinstance(value, Value) else None
            old_sharding, new_sharding = (tables.sharding(s) if rank is None else tables.sharding_of(s, rank) for s in (old, new))
            first, second = integer(user_priority), integer(op_priority, -1)
            steps.append(Step(value, old_sharding, new_sharding, op, step_tensors, shardings, text(reason), first, second))
        except StoreError as error:
            error.at(f"steps, row {number}")
            raise
    return steps
