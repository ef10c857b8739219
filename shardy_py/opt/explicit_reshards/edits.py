"""Insertions into blocks that are collected during a walk and carried out at its end."""

from __future__ import annotations

from shardy_py.ir import Block, Op, Value


class Edits:
    """Ops to be inserted before and after others, collected so that each block is rebuilt once.

    The places are those of MLIR's builder: what is inserted right after an op comes before all that was inserted there
    earlier, and what is inserted right before an op comes after it.
    """

    def __init__(self) -> None:
        self._before: dict[Op, list[Op]] = {}
        self._after: dict[Op, list[Op]] = {}
        self._first: dict[Block, list[Op]] = {}
        self._erased: dict[Op, None] = {}
        self._blocks: dict[Block, None] = {}

    def before(self, op: Op, *inserted: Op) -> None:
        """Inserts ops right before an op."""
        self._before.setdefault(op, []).extend(inserted)
        self._touch(op.block, inserted)

    def after(self, op: Op, *inserted: Op) -> None:
        """Inserts ops right after an op."""
        self._after.setdefault(op, [])[:0] = inserted
        self._touch(op.block, inserted)

    def after_value(self, value: Value, *inserted: Op) -> None:
        """Inserts ops right after the op that defines a value, at the start of the block for an argument."""
        owner = value.owner
        if isinstance(owner, Op):
            self.after(owner, *inserted)
            return
        self._first.setdefault(owner, [])[:0] = inserted
        self._touch(owner, inserted)

    def erase(self, op: Op) -> None:
        """Takes an op away; nothing uses its results any more."""
        op.drop_uses()
        self._erased[op] = None
        self._touch(op.block, ())

    def apply(self) -> None:
        """Rebuilds the blocks concerned."""
        for block in self._blocks:
            ops: list[Op] = []
            for op in (*self._first.get(block, ()), *block.ops):
                self._place(op, ops)
            block.ops = ops
        for op in self._erased:
            op.block = None

    def _touch(self, block: Block | None, inserted: tuple[Op, ...]) -> None:
        assert block is not None
        self._blocks[block] = None
        for op in inserted:
            op.block = block

    def _place(self, op: Op, ops: list[Op]) -> None:
        for other in self._before.get(op, ()):
            self._place(other, ops)
        if op not in self._erased:
            ops.append(op)
        for other in self._after.get(op, ()):
            self._place(other, ops)
