"""Adds a `sdy.data_flow_edge` op on every owner of a data-flow edge, which holds the sharding of all values of the edge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardy_py.ir import Block, Op, Program, TensorType, Value
from shardy_py.passes.base import Pass
from shardy_py.passes.dataflow import COMPUTATIONS, DATA_FLOW_OPS, EDGE, get_sharding
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import blocks_of


@dataclass(frozen=True, kw_only=True)
class AddDataFlowEdges(Pass):
    """Adds an edge to every value that a loop, branch or computation passes on."""

    name = "sdy-add-data-flow-edges"

    def run(self, program: Program, log: Log | None = None) -> None:
        """Adds edges to all while, case, optimization barrier, named and manual computation ops.

        The edge stands right after the owner, starts with its sharding, and takes over all its other uses. Values without
        a static shape, such as tokens, get none.

        Source: Shardy's add_data_flow_edges.cc.
        """
        add_edges(blocks_of(program), DATA_FLOW_OPS)


def add_edges(blocks: Sequence[Block], names: frozenset[str]) -> None:
    """Adds edges to the ops with one of these names, whose blocks must all be in `blocks`."""
    for block in blocks:
        places = [i for i, op in enumerate(block.ops) if op.name in names]
        parent = block.parent
        starts = block.arguments if isinstance(parent, Op) and parent.name in COMPUTATIONS and parent.name in names else ()
        if not places and not starts:
            continue
        ops = edges_on(starts, block)
        begin = 0
        for i in places:
            ops += block.ops[begin : i + 1]
            ops += edges_on(block.ops[i].results, block)
            begin = i + 1
        block.ops = ops + block.ops[begin:]


def edges_on(owners: Sequence[Value], block: Block, name: str = EDGE) -> list[Op]:
    """Edges that have taken over the uses of their owners, to be put into the block right after them."""
    edges: list[Op] = []
    for owner in owners:
        if not isinstance(owner.type, TensorType):
            continue
        sharding = get_sharding(owner)
        uses, owner.uses = owner.uses, {}
        edge = Op(name, (owner,), (owner.type,))
        edge.block = block
        result = edge.results[0]
        result.sharding = sharding
        result.uses = dict.fromkeys(reversed(uses))
        for op, i in uses:
            op.operands[i] = result
        edges.append(edge)
    return edges
