"""Adds data-flow edges to a program whose calls were inlined by the front end."""

from __future__ import annotations

from shardy_py.ir import Block, Op, Program
from shardy_py.passes.dataflow import DATA_FLOW_OPS, EDGE, NAMED_COMPUTATION
from shardy_py.passes.import_.add_data_flow_edges import add_edges
from shardy_py.passes.walk import blocks_of, ops_in

NAME = "import-inlined-calls"

_NAMED = frozenset((NAMED_COMPUTATION,))


def run(program: Program, **_: object) -> None:
    """What add-data-flow-edges, flatten-call-graph and import-func-calls leave of a program with calls.

    Shardy adds the edges of loops and branches while calls are still calls, copies functions that are called twice, and
    then turns each call into a computation. That leaves the same ops as adding all edges at once, but other orders of
    use lists, and these decide which of two conflicting shardings arrives first. Computations of one name are taken
    for calls of one function.

    Args:
        program: Holds each call as a `sdy.named_computation` without edges, the uses of every value in the order of the ops.
    """
    blocks = blocks_of(program)
    add_edges(blocks, DATA_FLOW_OPS - _NAMED)
    if not any(op.name == NAMED_COMPUTATION for block in blocks for op in block.ops):
        return
    seen: set[str] = set()
    for function in program.functions:
        _flatten(function.body, False, seen)
        _import(function.body)
    add_edges(blocks, _NAMED)


def _calls(body: Block) -> list[Op]:
    return [op for op in ops_in(body, _NAMED) if op.name == NAMED_COMPUTATION]


def _flatten(body: Block, copied: bool, seen: set[str]) -> None:
    """In a copy of a function, uses are in the order of the ops, those of edges too."""
    for op in ops_in(body, _NAMED):
        if op.name == EDGE and copied:
            op.results[0].uses.reverse()
        elif op.name == NAMED_COMPUTATION:
            name = op.attributes.get("name", "")
            _flatten(op.regions[0], copied or name in seen, seen)
            seen.add(name)


def _import(body: Block) -> None:
    """Makes the uses that are made anew when the calls in a function are replaced, callees first."""
    calls = _calls(body)
    for op in calls:
        _import(op.regions[0])
    for op in calls:
        _renew(op)
        _renew(op.regions[0].ops[-1])
        for result in op.results:
            result.uses.reverse()


def _renew(op: Op) -> None:
    for i, operand in enumerate(op.operands):
        if len(operand.uses) > 1:
            operand.uses.remove((op, i))
            operand.uses.append((op, i))
