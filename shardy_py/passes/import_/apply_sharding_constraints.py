"""Copies closed sharding constraints to the values they constrain, before propagation."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.dialect import TensorSharding
from shardy_py.ir import Block, Op, Program, Value
from shardy_py.passes.base import PROPAGATION_EDGES, SHARDING_ORIGINS, Pass, option
from shardy_py.passes.dataflow import EDGE, FUNC_EDGE, MANUAL_COMPUTATION, edge_of, get_sharding, set_sharding, shardable_value
from shardy_py.passes.propagation.log import CONSTRAINTS, Log, LogStep
from shardy_py.passes.walk import ops_of
from shardy_py.rules import rule_for

CONSTRAINT = "sdy.sharding_constraint"

_CONSTRAINING = frozenset((CONSTRAINT, MANUAL_COMPUTATION))


@dataclass(frozen=True, kw_only=True)
class ApplyShardingConstraints(Pass):
    """Copies closed sharding constraints to the values they constrain."""

    name = "sdy-apply-sharding-constraints"

    debug_sharding_origins: bool = option(False, SHARDING_ORIGINS)
    debug_propagation_edge_sharding: bool = option(False, PROPAGATION_EDGES)

    def run(self, program: Program, log: Log | None = None) -> None:
        """Lets a value follow the constraint on it where nothing else has a say.

        A value without a sharding, whose constraints agree and are closed, gets the sharding of the constraint. If it is
        part of a data-flow edge, its other users follow the constraint instead, which moves up to the value. The in
        shardings of a manual computation constrain its operands likewise. Before that, users of the input of a chain of
        constraints that stand after the chain take the end of it as their operand.

        The program must have data-flow edges.

        Source: Shardy's apply_sharding_constraints.cc.
        """
        ops = ops_of(program, _CONSTRAINING)
        if not ops:
            return
        moves, yields = _Moves(), program.semantics.has("constraints: fully open shardings yield")
        for op in ops:
            if op.name == CONSTRAINT:
                x = op.operands[0]
                _follow_chain(op, x, moves, yields)
                sharding = op.results[0].sharding
                if sharding is not None and _applies(x, sharding, yields):
                    _apply(x, sharding, op, moves, log)
                continue
            for i, sharding in enumerate(op.attributes.get("in_shardings") or ()):
                x = op.operands[i]
                if _applies(x, sharding, yields):
                    _apply(x, sharding, op, moves, log)
        moves.finish()


def _applies(x: Value, sharding: TensorSharding, yields: bool) -> bool:
    if not sharding.is_fully_closed or shardable_value(x) is None or _has_sharding(x, yields):
        return False
    return all(_constraint(user, i) is sharding for user, i in x.uses if user.name in _CONSTRAINING)


def _has_sharding(x: Value, yields: bool) -> bool:
    sharding = get_sharding(x)
    return sharding is not None and not (yields and sharding.is_fully_open and not sharding.has_axes)


def _constraint(user: Op, i: int) -> TensorSharding | None:
    return user.results[0].sharding if user.name == CONSTRAINT else user.attributes["in_shardings"][i]


def _apply(x: Value, sharding: TensorSharding, op: Op, moves: _Moves, log: Log | None) -> None:
    why = CONSTRAINTS[op.name]
    is_edge = isinstance(x.owner, Op) and x.owner.name in (EDGE, FUNC_EDGE)
    if not is_edge and edge_of(x) is None:
        set_sharding(x, sharding)
        if op.name == CONSTRAINT and not op.rule_decided:
            op.rule, op.rule_decided = rule_for(op), True
        if log is not None:
            log.append(LogStep(x, None, sharding, why, op))
        return
    if op.name != CONSTRAINT:
        op = Op(CONSTRAINT, (x,), (x.type,), location=op.location, sharding=sharding)
    moves.move_after(op, x)
    x.replace_uses(op.results[0], lambda user, _: user is op)
    if sharding.unreduced:
        unreduced = TensorSharding(sharding.mesh, sharding.fully_open_like().dims, (), sharding.unreduced)
        set_sharding(x, unreduced)
        if log is not None:
            log.append(LogStep(x, None, unreduced, why, op))


def _follow_chain(head: Op, x: Value, moves: _Moves, yields: bool) -> None:
    if len(x.uses) < 2:
        return
    tail = head
    while len(tail.results[0].uses) == 1 and (user := next(iter(tail.results[0].uses))[0]).name == CONSTRAINT:
        tail = user
    if tail is head or any(user.name in _CONSTRAINING for user, _ in tail.results[0].uses):
        return
    if isinstance(x.owner, Op) and x.owner.name == CONSTRAINT:
        return
    if any(user.name in _CONSTRAINING for user, _ in x.uses if user is not head) or _has_sharding(x, yields):
        return
    block = tail.block
    after = moves.position(tail)

    def keep(user: Op, _: int) -> bool:
        return user is head or user.block is not block or user.name == "func.return" or moves.position(user) <= after

    x.replace_uses(tail.results[0], keep)


class _Moves:
    """Ops to be moved right after a value; positions are right at once, the blocks are rebuilt at the end."""

    def __init__(self) -> None:
        self.positions: dict[Block, dict[Op, float]] = {}
        self.moved: dict[Op, None] = {}
        self.after: dict[Op, list[Op]] = {}
        self.at_start: dict[Block, list[Op]] = {}

    def position(self, op: Op) -> float:
        """The position of an op in its block."""
        assert op.block is not None
        return self.positions_in(op.block)[op]

    def positions_in(self, block: Block) -> dict[Op, float]:
        """The positions of the ops of a block, numbered once."""
        positions = self.positions.get(block)
        if positions is None:
            positions = self.positions[block] = {op: float(i) for i, op in enumerate(block.ops)}
        return positions

    def move_after(self, op: Op, value: Value) -> None:
        """Moves an op, or puts a new one, right after the definition of a value."""
        if op.block is not None:
            self.position(op)
            self.moved[op] = None
            del self.positions[op.block][op]
        if isinstance(value.owner, Op):
            place = self.position(value.owner) + 0.5
            op.block = value.owner.block
            self.after.setdefault(value.owner, []).insert(0, op)
        else:
            place = -0.5
            op.block = value.owner
            self.at_start.setdefault(value.owner, []).insert(0, op)
        assert op.block is not None
        self.positions_in(op.block)[op] = place

    def finish(self) -> None:
        """Rebuilds the blocks that changed."""
        if not self.after and not self.at_start:
            return
        for block in self.positions:
            ops = list(self.at_start.get(block, ()))
            for op in block.ops:
                if op in self.moved:
                    continue
                ops.append(op)
                ops += self.after.get(op, ())
            block.ops = ops
