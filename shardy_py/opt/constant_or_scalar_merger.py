"""Merges equal constants, and equal broadcasts of one scalar, after propagation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardy_py.ir import Block, Op, Program
from shardy_py.passes.base import FUNCTION, Pass
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import blocks_of
from shardy_py.rules.traits import CONSTANTS

_BROADCAST = "stablehlo.broadcast_in_dim"


@dataclass(frozen=True, kw_only=True)
class ConstantOrScalarMerger(Pass):
    """Merges equal constants."""

    name = "sdy-constant-or-scalar-merger"
    anchor = FUNCTION

    def run(self, program: Program, log: Log | None = None) -> None:
        """Undoes the copies of the splitter that propagation gave the same sharding.

        Constants of one block with the same value, type, sharding and other attributes become the first of them, and so do
        broadcasts of the same scalar.

        Source: Shardy's constant_or_scalar_merger.cc.
        """
        for block in blocks_of(program):
            _merge(block)


def _merge(block: Block) -> None:
    first: dict[Any, Op] = {}
    dead: set[Op] = set()
    for op in block.ops:
        if op.name not in CONSTANTS and (op.name != _BROADCAST or op.operands[0].type.rank):
            continue
        result = op.results[0]
        representative = first.setdefault((op.name, *op.operands, result.type, result.sharding, *op.attributes.items()), op)
        if representative is not op:
            result.replace_uses(representative.results[0])
            op.drop_uses()
            op.block = None
            dead.add(op)
    if dead:
        block.ops = [op for op in block.ops if op not in dead]
