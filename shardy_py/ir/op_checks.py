"""The rules of single ops: operands, regions and terminators of control flow, and the constraints of SDY ops.

A check raises a `ShardyError` whose `what` is what MLIR, StableHLO or Shardy says; the verifier adds the place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from shardy_py.dialect import Mesh, PropagationDirection, TensorSharding
from shardy_py.dialect.collectives import AXES_OF
from shardy_py.dialect.sharding import DimensionSharding
from shardy_py.dialect.verify import Shape, verify_shardings
from shardy_py.dialect.verify_ops import COLLECTIVES, verify_collective, verify_direction, verify_manual_computation
from shardy_py.errors import VerificationError
from shardy_py.ir.core import Block, Function, Op, Value
from shardy_py.ir.type_text import element_text, shape_of, shape_text, type_text
from shardy_py.ir.types import TensorType, Type

TERMINATORS = frozenset(("func.return", "sdy.return", "stablehlo.return"))

COMPUTATIONS = frozenset(("sdy.manual_computation", "sdy.named_computation"))

ISOLATED = COMPUTATIONS
"""Ops whose regions use no value from around them."""


class Context(NamedTuple):
    """The surroundings that the check of an op may look at."""

    meshes: Mapping[str, Mesh]
    functions: Mapping[str, Function]
    function: Function
    manual_axes: tuple[str, ...]
    """Axes that manual computations around the op have made manual."""

    def within(self, axes: Sequence[str]) -> Context:
        """The context of the ops in a manual computation."""
        return self._replace(manual_axes=(*self.manual_axes, *axes))


def same_type(one: Type, other: Type) -> bool:
    """Whether two types are equal; types without a static shape are compared by their text."""
    return one is other or (not isinstance(one, TensorType) and not isinstance(other, TensorType) and str(one) == str(other))


def sharding_of(value: Value) -> TensorSharding | None:
    """The sharding of a value without a data-flow edge: its own, or the one that its computation's attributes give it."""
    if isinstance(value.owner, Op):
        if value.owner.name in COMPUTATIONS:
            shardings = value.owner.attributes.get("out_shardings")
            return shardings[value.index] if shardings else None
        return value.sharding
    parent = value.owner.parent
    if not isinstance(parent, Op):
        return value.sharding
    if parent.name == "stablehlo.while":
        return parent.results[value.index].sharding
    shardings = parent.attributes.get("in_shardings") if parent.name in COMPUTATIONS else None
    return _free_part(shardings[value.index], parent.attributes.get("manual_axes") or ()) if shardings else None


def _free_part(sharding: TensorSharding, manual: Sequence[str]) -> TensorSharding:
    dims = [DimensionSharding([axis for axis in dim.axes if axis.name not in manual], dim.is_closed) for dim in sharding.dims]
    replicated = [axis for axis in sharding.replicated if axis.name not in manual]
    return TensorSharding(sharding.mesh, dims, replicated, sharding.unreduced)


def _types_equal(one: Sequence[Value], other: Sequence[Value]) -> bool:
    return len(one) == len(other) and all(map(same_type, (v.type for v in one), (v.type for v in other)))


def _quoted(values: Sequence[Value]) -> str:
    return ", ".join(f"'{type_text(value.type)}'" for value in values)


def _count(op: Op, operands: int, results: int, regions: int = 0) -> None:
    for what, count, expected in (
        ("operand", len(op.operands), operands),
        ("result", len(op.results), results),
        ("region", len(op.regions), regions),
    ):
        if count != expected:
            raise VerificationError(f"requires {expected} {what}{'' if expected == 1 else 's'}, but found {count}")


def _yielded(region: Block, terminator: str) -> list[Value]:
    """The operands of the terminator of a region."""
    if not region.ops:
        raise VerificationError("block with no terminator")
    last = region.ops[-1]
    if last.name != terminator:
        raise VerificationError(f"expects regions to end with '{terminator}', found '{last.name}'")
    return last.operands


def _inferred(op: Op, values: Sequence[Value]) -> None:
    if not _types_equal(values, op.results):
        raise VerificationError(
            f"inferred type(s) {_quoted(values)} are incompatible with return type(s) of operation {_quoted(op.results)}",
            why="the results have the types of what the regions return",
        )


def _scalar(value: Value, dtype: str) -> bool:
    return value.type is TensorType((), dtype)


def _while(op: Op, _context: Context) -> None:
    _count(op, len(op.operands), len(op.operands), 2)
    cond, body = op.regions
    new, going = _yielded(body, "stablehlo.return"), _yielded(cond, "stablehlo.return")
    for what, values in (
        ("condition block arguments", cond.arguments),
        ("body block arguments", body.arguments),
        ("body block return types", new),
    ):
        if not _types_equal(op.operands, values):
            raise VerificationError(f"expect operands to be compatible with {what} but got {_quoted(op.operands)} vs {_quoted(values)}")
    if len(going) != 1 or not _scalar(going[0], "bool"):
        raise VerificationError(f"expect condition block return a zero-ranked tensor of i1 but got {_quoted(going)}")
    _inferred(op, op.operands)


def _branches(dtype: str, described: str) -> Callable[[Op, Context], None]:
    def check(op: Op, _context: Context) -> None:
        _count(op, 1, len(op.results), len(op.regions))
        if not _scalar(op.operands[0], dtype):
            raise VerificationError(f"operand #0 must be {described}, but got '{type_text(op.operands[0].type)}'")
        if not op.regions:
            raise VerificationError("expect at least one branch")
        returned = [_yielded(region, "stablehlo.return") for region in op.regions]
        for i, region in enumerate(op.regions):
            if region.arguments:
                raise VerificationError(f"branch {i} must have 0 arguments, but found {len(region.arguments)}")
            if not _types_equal(returned[0], returned[i]):
                raise VerificationError(
                    f"branch 0 and branch {i} have mismatched return types: {_quoted(returned[0])} vs {_quoted(returned[i])}"
                )
        _inferred(op, returned[0])

    return check


def _optimization_barrier(op: Op, _context: Context) -> None:
    _count(op, len(op.operands), len(op.operands))
    for i, (operand, result) in enumerate(zip(op.operands, op.results, strict=True)):
        if not same_type(operand.type, result.type):
            raise VerificationError(f"requires the same type for operand and result at index {i}")


def _named_computation(op: Op, context: Context) -> None:
    (body,) = op.regions
    if len(body.arguments) != len(op.operands):
        raise VerificationError(f"number of block arguments must match the number of operands: {len(body.arguments)} != {len(op.operands)}")
    for i, (argument, operand) in enumerate(zip(body.arguments, op.operands, strict=True)):
        if not same_type(argument.type, operand.type):
            raise VerificationError(
                f"expected the type of the {i}'th block argument to match the type of the corresponding operand: "
                f"'{type_text(argument.type)}' vs '{type_text(operand.type)}'"
            )
    _inferred(op, _yielded(body, "sdy.return"))
    for name, values in (("in_shardings", op.operands), ("out_shardings", op.results)):
        shardings = op.attributes.get(name)
        if shardings is not None:
            verify_shardings(shardings, _shapes(values), context.meshes, context.manual_axes, name)


def _shapes(values: Sequence[Value]) -> list[Shape | None]:
    return [shape_of(value.type) for value in values]


def _texts(values: Sequence[Value]) -> list[Callable[[Shape], str]]:
    def writer(value: Value) -> Callable[[Shape], str]:
        return lambda shape: f"'{shape_text(shape, element_text(value.type))}'"

    return [writer(value) for value in values]


def _manual_computation(op: Op, context: Context) -> None:
    (body,) = op.regions
    returned = _yielded(body, "sdy.return")
    attributes = op.attributes
    verify_manual_computation(
        attributes["in_shardings"],
        attributes["out_shardings"],
        (_shapes(op.operands), _shapes(op.results)),
        (_shapes(body.arguments), _shapes(returned)),
        attributes["manual_axes"],
        context.meshes,
        context.manual_axes,
        (_texts(op.operands), _texts(op.results)),
    )
    for what, outside, inside in (("operand", op.operands, body.arguments), ("result", op.results, returned)):
        for i, (outer, inner) in enumerate(zip(outside, inside, strict=True)):
            if element_text(outer.type) != element_text(inner.type):
                raise VerificationError(
                    f"{what} and region {what} at index {i} must have the same element type: "
                    f"'{type_text(outer.type)}' vs '{type_text(inner.type)}'"
                )


def _func_return(op: Op, context: Context) -> None:
    function = context.function
    if op.block is None or op.block.parent is not function:
        raise VerificationError("expects parent op 'func.func'")
    if len(op.operands) != len(function.result_types):
        raise VerificationError(
            f"has {len(op.operands)} operands, but enclosing function (@{function.name}) returns {len(function.result_types)}"
        )
    for i, (operand, type_) in enumerate(zip(op.operands, function.result_types, strict=True)):
        if not same_type(operand.type, type_):
            raise VerificationError(
                f"type of return operand {i} ('{type_text(operand.type)}') doesn't match function result type "
                f"('{type_text(type_)}') in function @{function.name}"
            )


def _region_return(op: Op, context: Context) -> None:
    if op.block is not None and op.block.parent is context.function:
        raise VerificationError(f"expects regions to end with 'func.return', found '{op.name}'")


def _call(op: Op, context: Context) -> None:
    name = op.attributes["callee"]
    callee = context.functions.get(name)
    if callee is None:
        raise VerificationError(f"'{name}' does not reference a valid function")
    if len(op.operands) != len(callee.arguments):
        raise VerificationError("incorrect number of operands for callee")
    for i, (operand, argument) in enumerate(zip(op.operands, callee.arguments, strict=True)):
        if not same_type(operand.type, argument.type):
            raise VerificationError(
                f"operand type mismatch: expected operand type '{type_text(argument.type)}', "
                f"but provided '{type_text(operand.type)}' for operand number {i}"
            )
    if len(op.results) != len(callee.result_types):
        raise VerificationError("incorrect number of results for callee")
    for i, (result, type_) in enumerate(zip(op.results, callee.result_types, strict=True)):
        if not same_type(result.type, type_):
            raise VerificationError(
                f"result type mismatch at index {i}: expected '{type_text(type_)}', but the op has '{type_text(result.type)}'"
            )


def _unary(op: Op) -> None:
    _count(op, 1, 1)
    if not same_type(op.operands[0].type, op.results[0].type):
        raise VerificationError("requires the same type for all operands and results")


def _sharded(attribute: str) -> Callable[[Op, Context], None]:
    def check(op: Op, _context: Context) -> None:
        _unary(op)
        if op.results[0].sharding is None:
            raise VerificationError(f"requires attribute '{attribute}'", fix="give the result a sharding")

    return check


def _collective(op: Op, context: Context) -> None:
    _unary(op)
    sharding = op.results[0].sharding
    if sharding is None:
        raise VerificationError("requires attribute 'out_sharding'", fix="give the result a sharding")
    axes = op.attributes[AXES_OF[op.name]] if op.name in AXES_OF else None
    operand, shape = sharding_of(op.operands[0]), shape_of(op.results[0].type)
    verify_collective(op.name, axes, operand, sharding, shape, context.meshes, context.manual_axes)


def _barrier(op: Op, _context: Context) -> None:
    _unary(op)
    direction = op.attributes["allowed_direction"]
    if not isinstance(direction, PropagationDirection):
        raise VerificationError(f"the allowed direction must be a PropagationDirection, got {direction!r}")
    verify_direction(direction)


def _group(op: Op, _context: Context) -> None:
    _count(op, 1, 0)
    number = op.attributes["group_id"]
    if not isinstance(number, int):
        raise VerificationError(f"the group id must be an integer, got {number!r}")


def _constant(op: Op, _context: Context) -> None:
    _count(op, 0, 1)
    if not isinstance(op.results[0].type, TensorType):
        raise VerificationError("elements literal type must have static shape")
    if "value" not in op.attributes:
        raise VerificationError("requires attribute 'value'")


def _edge(op: Op, _context: Context) -> None:
    _unary(op)
    value = op.operands[0]
    if not isinstance(op.results[0].type, TensorType):
        raise VerificationError("expected sdy.data_flow_edge to have a static-shaped result")
    if len(value.uses) != 1:
        raise VerificationError(
            "expected input of sdy.data_flow_edge to have a single user", fix="make the other uses of the input uses of the edge"
        )
    owner = value.defining_op
    if owner is not None and owner.name.startswith("sdy.") and owner.name not in COMPUTATIONS:
        raise VerificationError(
            "expected input of sdy.data_flow_edge to not be defined by an SdyDialect op (other than an sdy.named_computation).",
            notes=(f"the input is a result of {owner.name}",),
        )


def _func_edge(op: Op, _context: Context) -> None:
    _unary(op)
    value = op.operands[0]
    if not isinstance(op.results[0].type, TensorType):
        raise VerificationError("expected sdy.func_data_flow_edge to have a static-shaped result")
    if len(value.uses) != 1:
        raise VerificationError("expected operand of sdy.func_data_flow_edge to have a single user")
    if isinstance(value.owner, Op):
        if value.owner.name != "func.call":
            raise VerificationError("expected operand of sdy.func_data_flow_edge to be a result of call op.")
    elif not isinstance(value.owner.parent, Function):
        raise VerificationError("expected operand of sdy.func_data_flow_edge to be a block argument of a func op.")


CHECKS: Mapping[str, Callable[[Op, Context], None]] = {
    "func.call": _call,
    "func.return": _func_return,
    "sdy.constant": _constant,
    "sdy.data_flow_edge": _edge,
    "sdy.func_data_flow_edge": _func_edge,
    "sdy.manual_computation": _manual_computation,
    "sdy.named_computation": _named_computation,
    "sdy.propagation_barrier": _barrier,
    "sdy.reshard": _sharded("sharding"),
    "sdy.return": _region_return,
    "sdy.sharding_constraint": _sharded("sharding"),
    "sdy.sharding_group": _group,
    "stablehlo.case": _branches("int32", "ranked tensor of 32-bit signless integer values"),
    "stablehlo.constant": _constant,
    "stablehlo.if": _branches("bool", "ranked tensor of bool values"),
    "stablehlo.optimization_barrier": _optimization_barrier,
    "stablehlo.return": _region_return,
    "stablehlo.while": _while,
    **dict.fromkeys(COLLECTIVES, _collective),
}
"""Name of an op -> its check."""
