"""Turns every `sdy.named_computation` into a call of a function that holds its body."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.dialect import TensorSharding
from shardy_py.ir import Block, Function, Op, Program, Value
from shardy_py.passes.base import Pass
from shardy_py.passes.clone import move_terminator
from shardy_py.passes.dataflow import EDGE, NAMED_COMPUTATION, edge_of_owner, fill
from shardy_py.passes.export.sink_data_flow_edges import bypass_edges
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.symbols import ORIGINAL_NAME, SymbolNames
from shardy_py.passes.walk import CALL, ops_of_post


@dataclass(frozen=True, kw_only=True)
class ExportNamedComputations(Pass):
    """Replaces named computations by calls."""

    name = "sdy-export-named-computations"

    def run(self, program: Program, log: Log | None = None) -> None:
        """Outlines computations, inner ones first, into private functions at the end of the program.

        A function is named after its computation and remembers that name. Arguments have the shardings of the computation's
        arguments, the call those of its results, open where only others have one; results of the function get none.

        Source: Shardy's export_named_computations.cc.
        """
        names = SymbolNames(program)
        blocks: dict[Block, None] = {}
        calls: dict[Op, Op] = {}
        for op in ops_of_post(program, NAMED_COMPUTATION):
            ins = _shardings(op.regions[0].arguments, op.attributes.get("in_shardings"))
            outs = _shardings(op.results, op.attributes.get("out_shardings"))
            blocks |= bypass_edges([edge for edge in map(edge_of_owner, (*op.regions[0].arguments, *op.results)) if edge is not None])
            program.functions.append(_function(op, names, ins))
            assert op.block is not None
            blocks[op.block] = None
            calls[op] = _call(op, program.functions[-1].name, outs)
        for block in blocks:
            block.set_ops([calls.get(op, op) for op in block.ops if op.name != EDGE or op.block is not None])
        for op in calls:
            op.block = None


def _shardings(owners: list[Value], attribute: tuple[TensorSharding, ...] | None) -> list[TensorSharding | None]:
    shardings: list[TensorSharding | None] = []
    for i, owner in enumerate(owners):
        edge = edge_of_owner(owner)
        shardings.append(edge.results[0].sharding if edge is not None else attribute[i] if attribute else None)
    mesh = next((sharding.mesh for sharding in shardings if sharding is not None), None)
    return shardings if mesh is None else [*fill(owners, shardings, mesh)]


def _function(op: Op, names: SymbolNames, shardings: list[TensorSharding | None]) -> Function:
    body = op.regions[0]
    move_terminator(body, "func.return")
    name = op.attributes["name"]
    function = Function(names.take(name), body, [result.type for result in op.results], visibility="private")
    function.attributes = {ORIGINAL_NAME: name}
    if "execution_thread" in op.attributes:
        function.attributes["execution_thread"] = op.attributes["execution_thread"]
    for argument, sharding in zip(body.arguments, shardings, strict=True):
        argument.sharding = sharding
    op.regions = ()
    return function


def _call(op: Op, callee: str, shardings: list[TensorSharding | None]) -> Op:
    own = ("name", "in_shardings", "out_shardings", "execution_thread")
    attributes = {"callee": callee, **{name: value for name, value in op.attributes.items() if name not in own}}
    call = Op(CALL, op.operands, [result.type for result in op.results], attributes, location=op.location, primitive=op.primitive)
    for old, new, sharding in zip(op.results, call.results, shardings, strict=True):
        new.name = old.name
        new.sharding = sharding
        old.replace_uses(new)
    op.drop_uses()
    return call
