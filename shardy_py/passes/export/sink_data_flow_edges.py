"""Writes the shardings of data-flow edges back to the ops they belong to, and removes the edges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardy_py.dialect import TensorSharding
from shardy_py.ir import Block, Op, Program, Value
from shardy_py.passes.base import FUNCTION, Pass, option
from shardy_py.passes.dataflow import (
    COMPUTATIONS,
    EDGE,
    FUNC_EDGE,
    WHILE,
    edge_of_owner,
    fill,
    owner_of,
    set_in_shardings,
    without_manual_axes,
)
from shardy_py.passes.dataflow import manual_axes as manual_axes_of
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import ops_of

EDGES = frozenset((EDGE, FUNC_EDGE))


@dataclass(frozen=True, kw_only=True)
class SinkDataFlowEdges(Pass):
    """Writes the shardings of edges back to the ops they belong to.

    Attributes:
        block_arguments: Also sets `Value.sharding` of the results of computations and of the arguments of while bodies and computations,
            which MLIR has no place for.
    """

    name = "sdy-sink-data-flow-edges"
    anchor = FUNCTION

    sink_debug_sharding_origins: bool = option(False, "also write back where axes come from")
    sink_debug_propagation_edge_sharding: bool = option(False, "also write back the steps of the propagation")
    block_arguments: bool = False

    def run(self, program: Program, log: Log | None = None) -> None:
        """Replaces every `sdy.data_flow_edge` by its operand.

        Where at least one edge of an op has a sharding, the op gets the shardings of its edges, fully open where an edge
        has none.

        Source: Shardy's sink_data_flow_edges.cc.
        """
        edges = ops_of(program, (EDGE,))
        if not edges:
            return
        results: dict[Op, None] = {}
        arguments: dict[Op, None] = {}
        for edge in edges:
            owner = owner_of(edge.operands[0])
            if owner is None or owner is not edge.operands[0]:
                continue
            if isinstance(owner.owner, Op):
                results[owner.owner] = None
            else:
                assert isinstance(owner.owner.parent, Op)
                arguments[owner.owner.parent] = None
        for op in arguments:
            shardings = _shardings(op.regions[0].arguments)
            if shardings is not None:
                set_in_shardings(op, shardings)
                if self.block_arguments:
                    _sink_to_arguments(op)
        for op in results:
            shardings = _shardings(op.results)
            if shardings is not None:
                _sink_to_results(op, shardings, self.block_arguments)
        if self.sink_debug_sharding_origins:
            _sink_debug(
                {**arguments, **results}, "sharding_origins", {} if program.semantics.has("debug: every edge has an entry") else None
            )
        if self.sink_debug_propagation_edge_sharding:
            _sink_debug({**arguments, **results}, "propagation_edges")
        erase_edges(edges)


def _sink_debug(ops: Iterable[Op], kind: str, missing: object = None) -> None:
    """Moves a debug attribute of edges to their ops: a list for block arguments, one for results."""
    for op in ops:
        inside = op.regions[0].arguments if op.name in COMPUTATIONS else ()
        for prefix, owners in (("block_arg", inside), ("result", op.results)):
            edges = [edge for edge in map(edge_of_owner, owners) if edge is not None]
            notes = tuple(edge.attributes.get(f"sdy.{kind}", missing) for edge in edges)
            op.attributes = {**op.attributes, f"sdy.{prefix}_{kind}": tuple(note for note in notes if note is not None)}


def _shardings(owners: Sequence[Value]) -> list[TensorSharding] | None:
    edges = [edge_of_owner(owner) for owner in owners]
    shardings = [None if edge is None else edge.results[0].sharding for edge in edges]
    for sharding in shardings:
        if sharding is not None:
            return fill(owners, shardings, sharding.mesh)
    return None


def _sink_to_arguments(op: Op) -> None:
    manual = manual_axes_of(op)
    for argument, sharding in zip(op.regions[0].arguments, op.attributes["in_shardings"], strict=True):
        argument.sharding = without_manual_axes(sharding, manual)


def _sink_to_results(op: Op, shardings: list[TensorSharding], block_arguments: bool) -> None:
    if op.name in COMPUTATIONS:
        op.attributes = {**op.attributes, "out_shardings": tuple(shardings)}
        if not block_arguments:
            return
    for result, sharding in zip(op.results, shardings, strict=True):
        result.sharding = sharding
    if block_arguments and op.name == WHILE:
        for region in op.regions:
            for argument, sharding in zip(region.arguments, shardings, strict=True):
                argument.sharding = sharding


def erase_edges(edges: list[Op]) -> None:
    """Lets the users of edges use the owners again."""
    blocks = bypass_edges(edges)
    for block in blocks:
        block.ops = [op for op in block.ops if op.name not in EDGES or op.block is block]


def bypass_edges(edges: list[Op]) -> dict[Block, None]:
    """As `erase_edges`, but for taking the edges, which stand nowhere any more, out of the lists of the blocks that are returned."""
    blocks: dict[Block, None] = {}
    for edge in edges:
        source, result = edge.operands[0], edge.results[0]
        if len(source.uses) == 1:
            uses, result.uses = result.uses, {}
            source.uses = dict.fromkeys(reversed(uses))
            for op, i in uses:
                op.operands[i] = source
        else:
            result.replace_uses(source)
            del source.uses[edge, 0]
        assert edge.block is not None
        blocks[edge.block] = None
        edge.block = None
    return blocks
