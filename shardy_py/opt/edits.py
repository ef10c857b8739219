"""Insertion and removal of ops in blocks, at once."""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.ir import Block, Op, Value
from shardy_py.passes.walk import blocks_in


def erase(op: Op) -> None:
    """Forgets an op without uses, and those in its regions."""
    for region in op.regions:
        for block in blocks_in(region):
            block.ops = [inner for inner in block.ops if inner.block is not None]
    op.drop_uses()
    for inner in op.walk():
        inner.block = None


def replace(op: Op, *values: Value) -> None:
    """Lets the users of an op's results use `values`, and erases the op."""
    for result, value in zip(op.results, values, strict=True):
        result.replace_uses(value)
    erase(op)


def insert_before(op: Op, ops: Sequence[Op]) -> None:
    """Puts new ops in front of an op."""
    _insert(op.block, op, ops, 0)


def insert_after(op: Op, ops: Sequence[Op]) -> None:
    """Puts new ops right behind an op."""
    _insert(op.block, op, ops, 1)


def insert_after_value(value: Value, ops: Sequence[Op]) -> None:
    """Puts new ops right behind the op that defines a value, at the start of the block for an argument."""
    if isinstance(value.owner, Op):
        insert_after(value.owner, ops)
    else:
        _insert(value.owner, value.owner.ops[0], ops, 0)


def _insert(block: Block | None, op: Op, ops: Sequence[Op], offset: int) -> None:
    assert block is not None
    i = block.ops.index(op) + offset
    block.ops[i:i] = ops
    for new in ops:
        new.block = block
