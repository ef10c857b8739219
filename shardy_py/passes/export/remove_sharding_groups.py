"""Removes `sdy.sharding_group` ops."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.ir import Block, Program
from shardy_py.passes.base import Pass
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import ops_of

GROUP = "sdy.sharding_group"


@dataclass(frozen=True, kw_only=True)
class RemoveShardingGroups(Pass):
    """Removes sharding groups."""

    name = "sdy-remove-sharding-groups"

    def run(self, program: Program, log: Log | None = None) -> None:
        """Erases all sharding groups; propagation has done what they asked for. Source: Shardy's remove_sharding_groups.cc."""
        blocks: dict[Block, None] = {}
        for op in ops_of(program, (GROUP,)):
            op.drop_uses()
            assert op.block is not None
            blocks[op.block] = None
            op.block = None
        for block in blocks:
            block.ops = [op for op in block.ops if op.name != GROUP]
