"""Adds a `sdy.data_flow_edge` op on every owner of a data-flow edge, which holds the sharding of all values of the edge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardy_py.ir import Block, Op, Program, TensorType, Value
from shardy_py.passes.base import Pass
from shardy_py.passes.dataflow import COMPUTATIONS, DATA_FLOW_OPS, EDGE, NAMED_COMPUTATION, get_sharding
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


_NAMED = frozenset((NAMED_COMPUTATION,))


@dataclass(frozen=True, kw_only=True)
class ImportInlinedCalls(Pass):
    """Brings a program whose calls the front end inlined to the state in which the passes for calls leave one with calls."""

    name = "import-inlined-calls"

    def run(self, program: Program, log: Log | None = None) -> None:
        """Gives the program the edges and orders of uses that add-data-flow-edges, flatten-call-graph and import-func-calls would.

        Shardy adds the edges of loops and branches while calls are still calls, copies functions that are called twice, and
        then turns each call into a computation. This leaves the same ops as adding all edges at once, but other orders of
        use lists, and these decide which of two conflicting shardings arrives first. Computations of one name are taken
        for calls of one function.

        The program must hold each call as a `sdy.named_computation` without edges, and the uses of every value in the order of the ops.
        """
        blocks = blocks_of(program)
        add_edges(blocks, DATA_FLOW_OPS - _NAMED)
        if not any(op.name == NAMED_COMPUTATION for block in blocks for op in block.ops):
            return
        for function in program.functions:
            _Flattened(function.body).order_uses(function.body, None, False)
            _import(function.body)
        add_edges(blocks, _NAMED)


def _calls(body: Block) -> list[Op]:
    return [op for op in body.walk(_NAMED) if op.name == NAMED_COMPUTATION]


class _Flattened:
    """Tells computations that hold the original of a function from those that hold copies for further calls."""

    def __init__(self, main: Block) -> None:
        self.first: dict[str, tuple[str | None, int]] = {}
        self._visit(None, main, set())

    def _visit(self, caller: str | None, body: Block, visited: set[str | None]) -> None:
        """Takes in the calls of a function, those in the functions it calls first, as flatten-call-graph does."""
        visited.add(caller)
        calls = _calls(body)
        for op in calls:
            if op.attributes["name"] not in visited:
                self._visit(op.attributes["name"], op.regions[0], visited)
        for i, op in enumerate(calls):
            self.first.setdefault(op.attributes["name"], (caller, i))

    def order_uses(self, body: Block, caller: str | None, copied: bool) -> None:
        """In a copy of a function, uses are in the order of the ops, those of edges too."""
        if copied:
            for op in body.walk(_NAMED):
                if op.name == EDGE:
                    op.results[0].uses = dict.fromkeys(reversed(op.results[0].uses))
        for i, op in enumerate(_calls(body)):
            name = op.attributes["name"]
            self.order_uses(op.regions[0], name, copied or self.first[name] != (caller, i))


def _import(body: Block) -> None:
    """Makes the uses that are made anew when the calls in a function are replaced, callees first."""
    calls = _calls(body)
    for op in calls:
        _import(op.regions[0])
    for op in calls:
        _renew(op)
        _renew(op.regions[0].ops[-1])
        for result in op.results:
            result.uses = dict.fromkeys(reversed(result.uses))


def _renew(op: Op) -> None:
    for i, operand in enumerate(op.operands):
        if len(operand.uses) > 1:
            del operand.uses[op, i]
            operand.uses[op, i] = None
