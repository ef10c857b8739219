"""Calls as `sdy.named_computation` ops that hold the body of the callee, and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from shardy_py.dialect import TensorSharding
from shardy_py.errors import ShardyError
from shardy_py.ir import Block, Function, Op, Program, Value
from shardy_py.opt.function_graph import check_copies, check_no_cycles
from shardy_py.passes.base import Pass, option
from shardy_py.passes.call_graph import MAX_REGIONS, functions_in_order
from shardy_py.passes.clone import clone_block, move_terminator
from shardy_py.passes.dataflow import EDGE, NAMED_COMPUTATION, edge_of_owner, fill
from shardy_py.passes.export.sink_data_flow_edges import bypass_edges
from shardy_py.passes.import_.add_data_flow_edges import edges_on
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import CALL, ORIGINAL_NAME, SymbolNames, calls_in, functions_by_name, ops_of_post, original_name, place


@dataclass(frozen=True, kw_only=True)
class ImportFuncCalls(Pass):
    """Replaces calls by named computations."""

    name = "sdy-import-func-calls"

    add_data_flow_edges_on_named_computations: bool = option(True, "add data-flow edges to them")

    def run(self, program: Program, log: Log | None = None) -> None:
        """Inlines all calls, callees first; functions that were called are gone afterwards.

        A computation has the name of the original function, the shardings of its arguments, and those of the call.

        The program should be flat, each function called once; the body of one that is called more often is copied. Raises ShardyError if a
        function that is called does not return its results, or calls itself, or is nested too deep, or copies would have too many ops.

        Source: Shardy's import_func_calls.cc.
        """
        check_no_cycles(program)
        check_copies(program)
        functions = functions_by_name(program)
        order = functions_in_order(program, post=True)
        _check_depth(program, order)
        calls = [call for function in order for call in calls_in(function)]
        remaining = Counter(call.attributes["callee"] for call in calls)
        bodies: dict[str, Block] = {}
        computations: list[Op] = []
        for call in calls:
            callee = functions[call.attributes["callee"]]
            remaining[callee.name] -= 1
            body = bodies.get(callee.name, callee.body)
            if remaining[callee.name]:
                bodies[callee.name] = clone_block(body, {})
            computation = _computation(call, callee, body, program)
            assert call.block is not None
            call.block.ops[call.block.ops.index(call)] = computation
            computation.block, call.block = call.block, None
            computations.append(computation)
        if self.add_data_flow_edges_on_named_computations:
            _add_edges(computations)
        inlined = {call.attributes["callee"] for call in calls}
        program.functions = [function for function in program.functions if function.name not in inlined]


def _check_depth(program: Program, order: Sequence[Function]) -> None:
    """Raises ShardyError if calls would become more than `MAX_REGIONS` regions inside each other; callees come first in `order`."""
    depths = dict.fromkeys(functions_by_name(program), 0)
    for function in order:
        for call in calls_in(function):
            depth = depths[call.attributes["callee"]]
            around: Op | Function | None = call
            while isinstance(around, Op) and around.block is not None:
                around, depth = around.block.parent, depth + 1
            depths[function.name] = max(depths[function.name], depth)
            if depth > MAX_REGIONS:
                raise ShardyError(
                    f"calls and regions are nested more than {MAX_REGIONS} deep",
                    where=f"{place(program, call)}, in function '{function.name}'",
                    why="each call becomes a region, and passes call themselves for every level",
                    fix="call fewer functions inside each other",
                )


def _add_edges(computations: list[Op]) -> None:
    after: dict[Op, list[Op]] = {}
    blocks: dict[Block, None] = {}
    for op in computations:
        assert op.block is not None
        body = op.regions[0]
        body.ops = edges_on(body.arguments, body) + body.ops
        after[op] = edges_on(op.results, op.block)
        blocks[op.block] = None
    for block in blocks:
        block.ops = [each for op in block.ops for each in (op, *after.get(op, ()))]


def _computation(call: Op, callee: Function, body: Block, program: Program) -> Op:
    ins = _block_shardings([argument.sharding for argument in body.arguments], body, program)
    outs = tuple(result.sharding for result in call.results)
    attributes = {name: value for name, value in call.attributes.items() if name != "callee"}
    thread = callee.attributes.get("execution_thread")
    if thread is not None:
        attributes["execution_thread"] = thread
    attributes |= {"name": original_name(callee), "in_shardings": ins, "out_shardings": outs if outs and outs[0] is not None else None}
    computation = Op(
        NAMED_COMPUTATION,
        call.operands,
        [result.type for result in call.results],
        attributes,
        (body,),
        location=call.location,
        primitive=call.primitive,
    )
    _check_results(call, callee, body, program)
    for argument in body.arguments:
        argument.sharding = None
    move_terminator(body, "sdy.return")
    for result, new in zip(call.results, computation.results, strict=True):
        new.name = result.name
        result.replace_uses(new)
    call.drop_uses()
    return computation


def _check_results(call: Op, callee: Function, body: Block, program: Program) -> None:
    """Checks that a function returns the results of its call."""
    if body.ops and [value.type for value in body.terminator.operands] == [result.type for result in call.results]:
        return
    raise ShardyError(
        "'sdy.named_computation' op failed to infer returned types",
        where=f"{place(program, call)} to '{callee.name}'",
        why=f"{place(program, body.terminator)} ends the function and does not have its results"
        if body.ops
        else "the function has no body",
        fix="end the function in func.return",
    )


def _block_shardings(shardings: Sequence[TensorSharding | None], body: Block, program: Program) -> tuple[TensorSharding, ...] | None:
    present = [sharding for sharding in shardings if sharding is not None]
    if not present:
        return None
    mesh = next((sharding.mesh for sharding in present if not sharding.mesh_in(program.meshes).is_maximal), None)
    if mesh is None and len(present) < len(shardings):
        return None
    return tuple(fill(body.arguments, shardings, mesh))


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
