"""Removes `sdy.sharding_group` ops."""

from __future__ import annotations

from shardy_py.ir import Block, Program
from shardy_py.passes.walk import ops_of

NAME = "sdy-remove-sharding-groups"
GROUP = "sdy.sharding_group"


def run(program: Program, **_: object) -> None:
    """Erases all sharding groups; propagation has done what they asked for. Source: Shardy's remove_sharding_groups.cc."""
    blocks: dict[Block, None] = {}
    for op in ops_of(program, (GROUP,)):
        op.drop_uses()
        assert op.block is not None
        blocks[op.block] = None
        op.block = None
    for block in blocks:
        block.ops = [op for op in block.ops if op.name != GROUP]
