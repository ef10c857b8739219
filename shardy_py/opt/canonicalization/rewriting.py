"""Replacement of ops in a block, for all patterns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shardy_py.ir import Op, Program, Value
from shardy_py.passes.walk import blocks_in

Pattern = Callable[[Op, Program], bool]
"""Rewrites the ops around the given one and returns True, or leaves all as it is and returns False.

A rewritten op that is gone has no block any more; it may still be in the list of its block, which the driver cleans up.
"""


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
    _insert(op, ops, 0)


def insert_after(op: Op, ops: Sequence[Op]) -> None:
    """Puts new ops behind an op."""
    _insert(op, ops, 1)


def _insert(op: Op, ops: Sequence[Op], offset: int) -> None:
    block = op.block
    assert block is not None
    i = block.ops.index(op) + offset
    block.ops[i:i] = ops
    for new in ops:
        new.block = block
