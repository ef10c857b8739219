"""Whether a program hangs together: what its values are used by, types around regions, shardings and rules.

This is for programs of files, whose views should not be what fails. MLIR's verifier is jaxlib's: `opt` asks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shardy_py.dialect import Mesh, OpShardingRule, PropagationDirection, TensorSharding
from shardy_py.dialect.axis import num_shards
from shardy_py.dialect.verify import verify_rule, verify_sharding
from shardy_py.errors import ShardyError, VerificationError
from shardy_py.ir.core import Block, Function, Op, Program, Value
from shardy_py.ir.type_text import element_text, shape_of, type_text
from shardy_py.ir.types import TensorType, Type

TERMINATORS = frozenset(("func.return", "sdy.return", "stablehlo.return"))

COMPUTATIONS = frozenset(("sdy.manual_computation", "sdy.named_computation"))
"""Ops whose regions use no value from around them."""

_BARRIER = "stablehlo.optimization_barrier"
_WITH_SHARDING = frozenset(("sdy.reshard", "sdy.sharding_constraint"))
_UNARY = frozenset(("sdy.data_flow_edge", "sdy.func_data_flow_edge", "sdy.propagation_barrier", *_WITH_SHARDING))
_CONSTANTS = frozenset(("sdy.constant", "stablehlo.constant"))


def verify(program: Program) -> None:
    """Raises a ShardyError for the first op or function that does not fit the rest of its program."""
    _Verifier(program).run()


class _Inside(NamedTuple):
    """The surroundings of a block: the values that it may use, and the axes that computations around it have made manual."""

    function: Function
    defined: set[Value]
    manual_axes: tuple[str, ...] = ()


class _Verifier:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.functions = {function.name: function for function in program.functions}
        self.valid: set[tuple[object, ...]] = set()
        """What was found valid: shardings of a type below manual axes, and rules with types."""

    def run(self) -> None:
        if len(self.functions) != len(self.program.functions):
            raise VerificationError("two functions have one name")
        for function in self.program.functions:
            if len(function.result_shardings) != len(function.result_types):
                raise VerificationError("number of result shardings and results must match", where=f"function @{function.name}")
            for type_, sharding in zip(function.result_types, function.result_shardings):
                self.sharding(sharding, type_, ())
            if function.body.ops or function.visibility != "private":
                self.block(function.body, _Inside(function, set()))

    def block(self, block: Block, inside: _Inside) -> None:
        visible = list(block.arguments)
        inside.defined.update(visible)
        for argument in block.arguments:
            self.sharding(argument.sharding, argument.type, inside.manual_axes)
        if not block.ops or block.ops[-1].name not in TERMINATORS:
            raise VerificationError("block with no terminator")
        for op in block.ops:
            try:
                if not inside.defined.issuperset(op.operands):
                    raise VerificationError("an operand does not dominate this use")
                if op.name in TERMINATORS and op is not block.ops[-1]:
                    raise VerificationError("must be the last operation in the parent block")
                self.op(op, inside)
            except ShardyError as error:
                error.at(f"{op.name} in function @{inside.function.name}")
                raise
            for region in op.regions:
                self.block(region, self.within(op, inside))
            visible += op.results
            inside.defined.update(op.results)
        inside.defined.difference_update(visible)

    def within(self, op: Op, inside: _Inside) -> _Inside:
        if op.name not in COMPUTATIONS:
            return inside
        return _Inside(inside.function, set(), (*inside.manual_axes, *op.attributes.get("manual_axes", ())))

    def sharding(self, sharding: TensorSharding | None, type_: Type, manual_axes: tuple[str, ...]) -> None:
        key = (sharding, type_, manual_axes)
        if sharding is not None and key not in self.valid:
            verify_sharding(sharding, shape_of(type_), self.program.meshes, manual_axes)
            self.valid.add(key)

    def rule(self, op: Op, rule: OpShardingRule) -> None:
        key = (rule, *[v.type for v in op.operands], None, *[v.type for v in op.results])
        if key not in self.valid:
            verify_rule(rule, [_tensor(v).shape for v in op.operands], [_tensor(v).shape for v in op.results])
            self.valid.add(key)

    def op(self, op: Op, inside: _Inside) -> None:
        """Checks what views and costs take for granted of an op."""
        name, operands, results = op.name, op.operands, op.results
        for result in results:
            self.sharding(result.sharding, result.type, inside.manual_axes)
        if op.rule is not None:
            self.rule(op, op.rule)
        if name in TERMINATORS:
            self.end(op, inside.function)
        elif name in _UNARY or name == _BARRIER:
            if name in _UNARY and len(operands) != 1:
                raise VerificationError(f"requires 1 operand, but found {len(operands)}")
            _same("operands and results", operands, results)
            if name in _WITH_SHARDING and results[0].sharding is None:
                raise VerificationError("requires attribute 'sharding'", fix="give the result a sharding")
            if name == "sdy.propagation_barrier" and not isinstance(direction := op.attributes["allowed_direction"], PropagationDirection):
                raise VerificationError(f"the allowed direction must be a PropagationDirection, got {direction!r}")
        elif name in _CONSTANTS:
            if operands or len(results) != 1 or "value" not in op.attributes:
                raise VerificationError("a constant has a value, one result and no operands")
            _tensor(results[0])
        elif name == "sdy.sharding_group":
            if len(operands) != 1 or results or not isinstance(op.attributes["group_id"], int):
                raise VerificationError("a sharding group has one operand, no result and an integer id")
        elif name == "func.call":
            self.call(op)
        elif name == "stablehlo.while":
            _while(op)
        elif name in ("stablehlo.case", "stablehlo.if"):
            _branches(op)
        elif name in COMPUTATIONS:
            self.computation(op, inside.manual_axes)
        elif op.regions:
            raise VerificationError("has regions, which no op of its name has")

    def end(self, op: Op, function: Function) -> None:
        in_function = op.block is function.body
        if in_function != (op.name == "func.return"):
            raise VerificationError(f"{op.name} ends another kind of block")
        if in_function:
            _same("returned values and results of the function", op.operands, function.result_types)

    def call(self, op: Op) -> None:
        callee = self.functions.get(op.attributes["callee"])
        if callee is None:
            raise VerificationError(f"'{op.attributes['callee']}' does not reference a valid function")
        _same("operands and arguments of the function", op.operands, callee.arguments)
        _same("results and those of the function", op.results, callee.result_types)

    def computation(self, op: Op, bound: tuple[str, ...]) -> None:
        (body,) = op.regions
        returned = _yielded(body, "sdy.return")
        meshes = self.program.meshes
        sides = (("in_shardings", op.operands, body.arguments), ("out_shardings", op.results, returned))
        for label, outside, inside in sides:
            shardings: Sequence[TensorSharding] | None = op.attributes.get(label)
            if shardings is not None:
                if len(shardings) != len(outside):
                    raise VerificationError(f"{label} must have one sharding for each of {len(outside)} values, not {len(shardings)}")
                for sharding, value in zip(shardings, outside):
                    self.sharding(sharding, value.type, bound)
            if op.name == "sdy.named_computation":
                _same(f"values outside and inside of {label}", outside, inside)
                continue
            if shardings is None:
                raise VerificationError(f"requires attribute '{label}'")
            if len(outside) != len(inside):
                raise VerificationError(f"numbers of values outside and inside of {label} must match")
            manual_axes = op.attributes["manual_axes"]
            if not set(manual_axes).isdisjoint(bound):
                raise VerificationError("operates on an axis which is already bound by a parent sdy.manual_computation op")
            for sharding, outer, inner in zip(shardings, outside, inside):
                if not _is_part(outer.type, inner.type, sharding, manual_axes, sharding.mesh_in(meshes)):
                    why = f"{type_text(inner.type)} is not a part of {type_text(outer.type)} under {sharding.text(short=True)}"
                    raise VerificationError(f"values of {label} must be cut by the manual axes, which come before others", why=why)


def _is_part(outer: Type, inner: Type, sharding: TensorSharding, manual_axes: Sequence[str], mesh: Mesh) -> bool:
    """Whether a value outside of a manual computation can be one inside of it."""
    if element_text(outer) != element_text(inner):
        return False
    shape, part = shape_of(outer), shape_of(inner)
    if shape is None or part is None or mesh.is_maximal:
        return True
    if len(shape) != len(part) or not (mesh.is_empty or all(map(mesh.has_axis, manual_axes))):
        return False
    for dim, size, local in zip(sharding.dims, shape, part, strict=True):
        cutting = tuple(axis for axis in dim.axes if axis.name in manual_axes)
        if cutting != dim.axes[: len(cutting)] or size != (local * num_shards(cutting, mesh) if size > 0 else local):
            return False
    return True


def _while(op: Op) -> None:
    condition, body = op.regions
    for what, values in (
        ("arguments of the condition", condition.arguments),
        ("arguments of the body", body.arguments),
        ("values of the body", _yielded(body, "stablehlo.return")),
        ("results", op.results),
    ):
        _same(f"operands and {what}", op.operands, values)
    _same("the value of the condition and a truth value", _yielded(condition, "stablehlo.return"), [TensorType((), "bool")])


def _branches(op: Op) -> None:
    if not op.regions or any(region.arguments for region in op.regions):
        raise VerificationError("needs branches without arguments")
    _same("the operand and an index", op.operands, [TensorType((), "int32" if op.name == "stablehlo.case" else "bool")])
    for region in op.regions:
        _same("results and values of a branch", op.results, _yielded(region, "stablehlo.return"))


def _yielded(region: Block, terminator: str) -> list[Value]:
    if not region.ops or region.ops[-1].name != terminator:
        raise VerificationError(f"expects regions to end with '{terminator}'")
    return region.ops[-1].operands


def _tensor(value: Value) -> TensorType:
    if not isinstance(value.type, TensorType):
        raise VerificationError("expected a ranked tensor with a static shape", why=f"its type is {type_text(value.type)}")
    return value.type


def _same(what: str, values: Sequence[Value], others: Sequence[Value] | Sequence[Type]) -> None:
    """Raises VerificationError unless the types are equal; those without a static shape are compared by their text."""
    one, other = [str(value.type) for value in values], [str(v.type if isinstance(v, Value) else v) for v in others]
    if one != other:
        raise VerificationError(f"{what} must have the same types", why=f"they are ({', '.join(one)}) and ({', '.join(other)})")
