"""Gives every user of a constant its own copy, so that no sharding leaks between unrelated users."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from shardy_py.errors import ShardyError
from shardy_py.ir import Block, Op, Program, Value
from shardy_py.passes.base import Pass
from shardy_py.passes.call_graph import MAX_COPIED_OPS, functions_in_order, ops_per_call
from shardy_py.passes.clone import FunctionCloner, clone_op
from shardy_py.passes.dataflow import NAMED_COMPUTATION
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import CALL, functions_by_name, order_uses, place
from shardy_py.rules.traits import ELEMENTWISE

_GROUP = "sdy.sharding_group"
_INNER = frozenset((NAMED_COMPUTATION,))

_SCALAR, _EXPRESSION, _CONVERTED = range(3)
"""Kinds of split ops: a broadcast of a scalar, a constant expression, a constant that was another op."""

_CONSTANT, _POINTWISE, _BROADCAST, _BITCAST, _COMPUTATION = range(1, 6)

_KINDS = {
    **dict.fromkeys(ELEMENTWISE - {"sdy.sharding_constraint"}, _POINTWISE),
    "chlo.asin_acos_kernel": _POINTWISE,
    "chlo.tan": _POINTWISE,
    "stablehlo.reshape": _POINTWISE,
    "stablehlo.slice": _POINTWISE,
    "stablehlo.bitcast_convert": _BITCAST,
    "stablehlo.broadcast_in_dim": _BROADCAST,
    "stablehlo.constant": _CONSTANT,
    "stablehlo.iota": _CONSTANT,
    "sdy.constant": _CONSTANT,
    NAMED_COMPUTATION: _COMPUTATION,
    CALL: _COMPUTATION,
}


@dataclass(frozen=True, kw_only=True)
class ConstantOrScalarSplitter(Pass):
    """Gives each user of a constant its own copy."""

    name = "sdy-constant-or-scalar-splitter"

    in_order: bool = False

    def run(self, program: Program, log: Log | None = None) -> None:
        """Splits constants, and broadcasts of scalars, per use.

        An expression is constant where it is a constant, an iota, or a pure broadcast, reshape, slice or pointwise op (or a
        call of a function of such ops) of constant expressions. Each operand of another op that is a constant expression,
        or a broadcast of any scalar, gets a copy of the whole expression, right before the original. The last user keeps
        the original, which is where the copy would stand. Scalars are not copied. As MLIR's dialect conversion sets every
        operand anew, uses are in the order of the ops afterwards. Raises ShardyError if the copies have too many ops.

        Source: Shardy's constant_or_scalar_splitter.cc.
        """
        splitter = _Splitter(program, self.in_order)
        for function in functions_in_order(program, post=True):
            splitter.preserving[function.name] = splitter.is_preserving_body(function.body)
            splitter.split(function.body)


def copied_values(program: Program) -> set[Value]:
    """The values of which each user has, or would get, a copy of its own: constant expressions, and broadcasts of scalars."""
    splitter = _Splitter(program, in_order=True)
    expressions, broadcasts = set[Value](), set[Value]()

    def read(block: Block) -> None:
        for op in block.ops:
            kind = _KINDS.get(op.name)
            if op.name == NAMED_COMPUTATION:
                (body,) = op.regions
                expressions.update(argument for argument, operand in zip(body.arguments, op.operands) if operand in expressions)
            for region in op.regions:
                read(region)
            if kind is not None and all(operand in expressions for operand in op.operands):
                if kind <= _BROADCAST or splitter.is_preserving(op):
                    expressions.update(op.results)
            elif kind == _BROADCAST and not op.operands[0].type.rank:
                broadcasts.update(op.results)

    read(program.main.body)
    return expressions | broadcasts


class _Splitter:
    def __init__(self, program: Program, in_order: bool) -> None:
        self.program = program
        self.in_order = in_order
        self.cloner = FunctionCloner(program, functions_by_name(program))
        self.preserving: dict[str, bool] = {}
        self.copied = 0

    @functools.cached_property
    def sizes(self) -> dict[str, int]:
        """The ops of each function and of the functions that it calls, call by call."""
        return ops_per_call(self.program)

    def split(self, body: Block) -> None:
        """Splits in one function or named computation, in the named computations inside it first."""
        splittable: dict[Op, int] = {}  # in order of the ops
        uses: list[tuple[Op, int, Value]] = []
        unshared: list[Op] = []
        grouped = False
        kinds = _KINDS.get
        ops = list(body.walk(_INNER))
        if not self.in_order or len(ops) > len(body.ops):
            order_uses(ops)
        for op in ops:
            kind = kinds(op.name)
            if kind is not None:
                if kind == _CONSTANT:
                    if op.name == "stablehlo.constant":
                        op.name = "sdy.constant"
                        splittable[op] = _CONVERTED
                    else:
                        splittable[op] = _EXPRESSION
                    continue
                if kind == _COMPUTATION and op.regions:
                    self.split(op.regions[0])
                for operand in op.operands:
                    if not splittable.get(operand.owner):  # type: ignore[call-overload]
                        break
                else:
                    if kind <= _BROADCAST or self.is_preserving(op):
                        splittable[op] = _EXPRESSION
                        continue
                if kind == _BROADCAST and not op.operands[0].type.rank:
                    splittable[op] = _SCALAR
                    continue
            elif op.name == _GROUP:
                grouped = True
                continue
            for operand in op.operands:
                if operand.owner in splittable:
                    break
            else:
                continue
            for i, operand in enumerate(op.operands):
                if operand.owner in splittable and operand.type.rank:
                    expression = _unshared(operand)
                    if expression is None:
                        uses.append((op, i, operand))
                    else:
                        unshared += expression
        for op in unshared:
            del splittable[op]
        if splittable:
            _Copies(self, splittable, grouped).distribute(uses)

    def is_preserving(self, op: Op) -> bool:
        """Whether a bitcast changes no shape; whether a computation holds nothing but ops that keep constants constant."""
        if op.name == "stablehlo.bitcast_convert":
            return op.operands[0].type.shape == op.results[0].type.shape
        if op.name == NAMED_COMPUTATION:
            return self.is_preserving_body(op.regions[0])
        return self.preserving.get(op.attributes["callee"], False)  # callees come first, but for those that call themselves

    def is_preserving_body(self, body: Block) -> bool:
        """Whether all ops but the terminator keep constants constant."""
        for op in body.ops[:-1]:
            kind = _KINDS.get(op.name)
            if kind is None or (kind >= _BITCAST and not self.is_preserving(op)):
                return False
        return True

    def size(self, expression: list[Op]) -> int:
        """The ops of an expression and of the functions that it calls."""
        return sum(self.sizes.get(op.attributes["callee"], 1) if op.name == CALL else 1 for op in expression)

    def count(self, size: int, user: Op) -> None:
        """Counts the copy of an expression for one user."""
        self.copied += size
        if self.copied > MAX_COPIED_OPS:
            raise ShardyError(
                f"copies of constant expressions would have more than {MAX_COPIED_OPS:,} ops",
                where=place(self.program, user),
                why="each user of a constant expression gets a copy of all of it",
                fix="compute the value once, as an argument, or use it fewer times",
            )

    def clone(self, op: Op, mapping: dict[Value, Value]) -> Op:
        """A copy of an op; a call gets a callee of its own."""
        copy = clone_op(op, mapping)
        if op.name == CALL:
            copy.attributes = {**op.attributes, "callee": self.cloner.clone(op.attributes["callee"])}
        return copy


class _Copies:
    """Hands out copies of constant expressions to their users, the originals last."""

    def __init__(self, splitter: _Splitter, splittable: dict[Op, int], grouped: bool) -> None:
        self.splitter = splitter
        self.clone = splitter.clone
        self.splittable = splittable
        self.grouped = grouped
        self.expressions: dict[Op, list[Op]] = {}
        self.before: dict[Op, list[Op]] = {}

    def distribute(self, uses: list[tuple[Op, int, Value]]) -> None:
        splittable, expressions = self.splittable, self.expressions
        remaining = dict.fromkeys(splittable, 0)
        sizes: dict[Op, int] = {}
        for user, _, value in uses:
            root = value.owner
            expression = expressions.get(root)  # type: ignore[arg-type]
            if expression is None:
                expression = expressions[root] = list(self.ops_of(root, {}))  # type: ignore[index, arg-type]
                sizes[root] = self.splitter.size(expression)  # type: ignore[index]
            self.splitter.count(sizes[root], user)  # type: ignore[index]
            for op in expression:
                remaining[op] += 1
        staying = self.staying()
        for op in staying:
            remaining[op] += 1
        groups = self.take_groups()
        for op in splittable:
            for result in op.results:
                if result.type.rank:
                    result.uses = {use: None for use in result.uses if use[0] in staying} if staying else {}
        for user, i, value in uses:
            expression = expressions[value.owner]  # type: ignore[index]
            mapping: dict[Value, Value] = {}
            for op in expression:
                remaining[op] -= 1
                if remaining[op] or op in groups or op.name == CALL:
                    copy = self.clone(op, mapping)
                    self.before.setdefault(op, []).append(copy)
                    for group in groups.get(op, ()):
                        self.before[op].append(clone_op(group, mapping))
                else:
                    _connect(op, mapping)
            value = mapping.get(value, value)
            user.operands[i] = value
            value.uses[user, i] = None
        self.rebuild(groups)

    def ops_of(self, op: Op, seen: dict[Op, None]) -> Iterator[Op]:
        """The ops of an expression in the order in which they are copied, operands first."""
        seen[op] = None
        path = [(op, iter(op.operands))]
        while path:
            current, operands = path[-1]
            for operand in operands:
                if operand.type.rank and operand.owner not in seen:
                    assert isinstance(operand.owner, Op)
                    seen[operand.owner] = None
                    path.append((operand.owner, iter(operand.owner.operands)))
                    break
            else:
                path.pop()
                yield current

    def staying(self) -> dict[Op, None]:
        """The ops of expressions that end in a scalar: scalars are not copied, so that these originals keep their uses."""
        originals: dict[Op, None] = {}
        for op in self.splittable:
            if (op.operands or op.regions) and any(result.uses and not result.type.rank for result in op.results):
                originals.update(dict.fromkeys(self.ops_of(op, {})))
        return originals

    def take_groups(self) -> dict[Op, list[Op]]:
        """The sharding groups on each expression; these are copied with it, and the originals go.

        They are copied from the end of the list of uses, which the conversion of a constant has turned over.
        """
        if not self.grouped:
            return {}
        groups_on: dict[Op, list[Op]] = {}
        for op in self.splittable:
            groups = [user for result in op.results if result.type.rank for user, _ in result.uses if user.name == _GROUP]
            if groups:
                groups_on[op] = groups if self.splittable[op] == _CONVERTED else groups[::-1]
        return groups_on

    def rebuild(self, groups: dict[Op, list[Op]]) -> None:
        """Puts the copies in place and erases what nobody uses."""
        dead: dict[Op, None] = {}
        for op in reversed(self.splittable):
            for result in op.results:
                if any(user.name != _GROUP for user, _ in result.uses):
                    break
            else:
                dead[op] = None
                dead.update(dict.fromkeys(groups.get(op, ())))
                dead.update((user, None) for result in op.results for user, _ in result.uses)
                for i, operand in enumerate(op.operands):
                    operand.uses.pop((op, i), None)
        changed = dict.fromkeys(op.block for op in (*self.before, *dead))
        for block in changed:
            if block is None:
                continue
            ops: list[Op] = []
            for op in block.ops:
                copies = self.before.get(op)
                if copies is not None:
                    for copy in copies:
                        copy.block = block
                    ops.extend(copies)
                if op not in dead:
                    ops.append(op)
            block.ops = ops
        for op in dead:
            op.block = None


def _unshared(value: Value) -> list[Op] | None:
    """The ops of an expression that needs no copy, because it and all its parts have one user; else None."""
    ops: list[Op] = []
    waiting = [value]
    while waiting:
        value = waiting.pop()
        op = value.owner
        if len(value.uses) != 1 or not isinstance(op, Op) or len(op.results) != 1 or op.name == CALL:
            return None
        ops.append(op)
        waiting += [operand for operand in reversed(op.operands) if operand.type.rank]
    return ops


def _connect(op: Op, mapping: dict[Value, Value]) -> None:
    """Makes an original the last copy of itself."""
    for i, operand in enumerate(op.operands):
        if operand.type.rank:
            operand = op.operands[i] = mapping.get(operand, operand)
        else:
            del operand.uses[op, i]
        operand.uses[op, i] = None
