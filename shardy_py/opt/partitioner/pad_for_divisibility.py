"""Pads tensors until their shardings cut them into equal parts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from shardy_py.dialect import OpShardingRule, TensorSharding
from shardy_py.dialect.rule import factor_symbol
from shardy_py.errors import ShardyError
from shardy_py.ir import Block, Function, Op, Program, TensorType, Value
from shardy_py.ir.attribute_text import AttributeText
from shardy_py.ir.type_text import type_text
from shardy_py.opt.partitioner import local_ops
from shardy_py.opt.partitioner.local_ops import Ints, is_dynamic, set_arrays
from shardy_py.passes.base import FUNCTION, Pass
from shardy_py.passes.dataflow import get_sharding
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import place
from shardy_py.rules import rule_of


@dataclass(frozen=True, kw_only=True)
class PadForDivisibility(Pass):
    """Pads tensors until their shardings divide them."""

    name = "sdy-pad-for-divisibility"
    anchor = FUNCTION

    def run(self, program: Program, log: Log | None = None) -> None:
        """Enlarges every dimension, at its high end, to the next multiple of the number of its shards.

        All-slices and other collectives that shard a dimension pad with zeros, those that gather it slice the padding off again, and
        other ops take and make larger tensors. The contents of the padding are then unknown, so a dot sets the padding of its
        contracting dimensions to zero first. As in Shardy, no other op does: a reduction over padding gives what was computed there.

        The program must hold collectives, not reshards. Raises ShardyError if an argument or result of a function is not a multiple of its
        shards, or an op cannot work on padded tensors without communication.

        Source: Shardy's pad_for_divisibility.cc, as of jaxlib 0.10.2; all-to-alls, reduce-scatters and pads as in later versions.
        """
        padder = Padder(program)
        for function in program.functions:
            _check(padder, function)
            for op in function.body.walk():
                for value in (*op.results, *(argument for region in op.regions for argument in region.arguments)):
                    padder.resize_by_sharding(value)
            _convert(padder, function.body)


def _convert(padder: Padder, block: Block) -> None:
    outer, padder.ops = padder.ops, []
    for op in list(block.ops):
        for region in op.regions:
            _convert(padder, region)
        conversion = _as_it_is if any(map(is_dynamic, (*op.operands, *op.results))) else CONVERSIONS.get(op.name, generic)
        conversion(padder, op)
    block.set_ops(padder.ops)
    padder.ops = outer


def _as_it_is(padder: Padder, op: Op) -> None:
    """An op with a dimension that is not known, of which a padded operand would make another one."""
    if any(isinstance(operand.type, TensorType) and padder.padded_dims(operand) for operand in op.operands):
        raise padder.error(
            f"'{op.name}' cannot be padded",
            op,
            "an operand or result has no static shape",
            "give every dimension a size, or take the shardings of its operands away",
        )
    padder.ops.append(op)


def _check(padder: Padder, function: Function) -> None:
    """Raises where an argument or result of a function would have to be padded."""
    boundary: list[tuple[str, int, TensorSharding | None, object]] = []
    boundary += [("argument", i, argument.sharding, argument.type) for i, argument in enumerate(function.arguments)]
    results = zip(function.result_shardings, function.result_types, strict=True)
    boundary += [("result", i, sharding, type_) for i, (sharding, type_) in enumerate(results)]
    for kind, i, sharding, type_ in boundary:
        if isinstance(type_, TensorType) and padder.shape(type_.shape, sharding) != type_.shape:
            raise ShardyError(
                f"{kind} #{i} has a non-divisible sharding",
                where=f"function '{function.name}', {type_} under {sharding}",
                why="failed to legalize operation 'func.func': the types of a function stay, so its arguments and results cannot be padded",
                fix="run sdy-update-non-divisible-input-output-shardings first, or use sizes that the mesh divides",
            )


_SPLAT = re.compile(r"dense<[^\[\"]*>")


def generic(padder: Padder, op: Op) -> None:
    """An op that treats padding like other elements; the padding of its results is unknown."""
    tensors = [value for value in (*op.operands, *op.results) if isinstance(value.type, TensorType)]
    if any(map(padder.padded_dims, tensors)):
        rule = rule_of(op, padder.program.semantics)
        if rule is not None and not rule.is_custom:
            for result in op.results:
                if result.sharding is None:
                    padder.resize(result, _inferred(padder, op, rule, result))
            _check_alike(padder, op, rule)
    padder.ops.append(op)


def concatenate(padder: Padder, op: Op) -> None:
    """A concatenate; raises ShardyError if an operand is padded along the dimension that is concatenated."""
    dim = op.attributes["dimension"]
    if any(dim in padder.padded_dims(value) for value in (*op.operands, *op.results)):
        raise padder.error(
            f"dimension {dim} is padded, so it cannot be concatenated",
            op,
            "the padding of one operand would come before the next operand",
            "reshard the operands before this pass so that the dimension is whole",
        )
    generic(padder, op)


def dot_general(padder: Padder, op: Op) -> None:
    """Sets the padding of contracting dimensions to zero, where it is not known to be."""
    for i, side in enumerate(("lhs", "rhs")):
        operand = op.operands[i]
        padded = padder.padded_dims(operand)
        dims = [dim for dim in op.attributes[f"{side}_contracting_dimensions"] if dim in padded]
        if dims and not padder.is_zero(operand, dims):
            op.set_operand(i, padder.mask(operand, dims, op))
    generic(padder, op)


def constant(padder: Padder, op: Op) -> None:
    """Enlarges a splat constant; any other constant is padded with zeros."""
    result = op.result
    if result.type.shape == padder.before(result):
        padder.ops.append(op)
        return
    value = op.attributes.get("value")
    type_ = local_ops.tensor_type(result)
    if isinstance(value, str) and _SPLAT.match(value):
        text = value.rpartition(" : ")[0] or value
        op.attributes = {**op.attributes, "value": AttributeText(f"{text} : {type_text(type_)}")}
        padder.ops.append(op)
        return
    shape = type_.shape
    result.type = local_ops.resized(type_, padder.before(result))
    padder.ops.append(op)
    sharding, result.sharding = result.sharding, None
    filled = padder.fill(result, shape, op)
    filled.sharding = sharding
    fill = filled.defining_op
    result.replace_uses(filled, lambda user, _: user is fill)


def reshape(padder: Padder, op: Op) -> None:
    """A reshape; raises ShardyError if the numbers of elements differ."""
    source, target = op.operands[0].type.shape, op.result.type.shape
    if math.prod(source) != math.prod(target):
        raise padder.error(
            f"padding a reshape gives shapes of different sizes: {source} and {target}",
            op,
            f"the shardings of {padder.before(op.operands[0])} and {padder.before(op.result)} ask for these",
            "run sdy-resolve-permutation-factors before this pass",
        )
    padder.ops.append(op)


def sized(padder: Padder, op: Op) -> None:
    """Updates the sizes that an op states of its operand: a dimension taken whole includes the padding."""
    sizes = tuple(op.attributes["slice_sizes"])
    before, after = padder.before(op.operands[0]), op.operands[0].type.shape
    taken = tuple(new if size == old else size for size, old, new in zip(sizes, before, after, strict=True))
    if taken != sizes:
        set_arrays(op, {"slice_sizes": taken})
    generic(padder, op)


def unsupported(padder: Padder, op: Op) -> None:
    """An op between shardings, which no padded value may reach."""
    if not any(padder.padded_dims(value) for value in (*op.operands, *op.results) if isinstance(value.type, TensorType)):
        padder.ops.append(op)
        return
    raise padder.error(
        f"'{op.name}' cannot be padded",
        op,
        "a dimension is not a multiple of its shards",
        "run sdy-reshard-to-collectives before this pass, or use sizes that the mesh divides",
    )


def returned(padder: Padder, op: Op) -> None:
    """A return from a function; raises ShardyError if a value is padded."""
    for i, value in enumerate(op.operands):
        if isinstance(value.type, TensorType) and value.type.shape != padder.before(value):
            raise padder.error(
                f"the function returns value #{i} padded from {padder.before(value)} to {value.type.shape}",
                op,
                "the type of the function stays",
                "state the sharding of the result, and run sdy-insert-explicit-reshards before this pass",
            )
    padder.ops.append(op)


def _inferred(padder: Padder, op: Op, rule: OpShardingRule, result: Value) -> tuple[int, ...]:
    """The shape of a result without a sharding, from the operand dimensions with the same factors."""
    shape = list(result.type.shape)
    for dim, factors in enumerate(rule.result_mappings[result.index]):
        for operand, mapping in zip(op.operands, rule.operand_mappings, strict=True):
            if len(factors) == 1 and factors in mapping:
                at = mapping.index(factors)
                if padder.before(operand)[at] == shape[dim]:
                    shape[dim] = operand.type.shape[at]
                    break
    return tuple(shape)


def _check_alike(padder: Padder, op: Op, rule: OpShardingRule) -> None:
    """Raises where dimensions that belong together are padded differently."""
    sizes: dict[tuple[int, int], int] = {}
    for value, mapping in zip((*op.operands, *op.results), rule.mappings, strict=True):
        for dim, factors in enumerate(mapping):
            if len(factors) != 1 or factors[0] in rule.permutation:
                continue
            key, size = (factors[0], padder.before(value)[dim]), value.type.shape[dim]
            if sizes.setdefault(key, size) != size:
                raise padder.error(
                    f"dimensions of size {key[1]} are padded to {sizes[key]} and to {size}",
                    op,
                    f"operands and results are sharded differently along factor {factor_symbol(factors[0])}",
                    "run sdy-insert-explicit-reshards{enable-full-version=true} before this pass",
                )


def slice_(padder: Padder, op: Op) -> None:
    """Extends the limits of a slice to the padded result."""
    operand, result = op.operands[0], op.result
    bounds = tuple(tuple(op.attributes[name]) for name in ("start_indices", "limit_indices", "strides"))
    shapes = (padder.before(result), result.type.shape)
    limits = slice_bounds(padder, op, get_sharding(operand), operand.type.shape, shapes, bounds)
    if limits != bounds[1]:
        set_arrays(op, {"limit_indices": limits})
    padder.ops.append(op)


def slice_bounds(
    padder: Padder, op: Op, sharding: TensorSharding | None, source: Ints, shapes: tuple[Ints, Ints], bounds: tuple[Ints, ...]
) -> Ints:
    """The limits of a slice with a padded result; raises ShardyError if a device needs elements of another to make its part."""
    limits: list[int] = []
    shards = (1,) * len(source) if sharding is None else sharding.shards(sharding.mesh_in(padder.program.meshes))
    for dim, (start, limit, stride) in enumerate(zip(*bounds, strict=True)):
        old, new = shapes[0][dim], shapes[1][dim]
        if old == new:
            limits.append(limit)
            continue
        parts = shards[dim]
        if start or stride != 1 or parts == 1 or -(-source[dim] // parts) != -(-old // parts) or new > source[dim]:
            raise padder.error(
                f"dimension {dim} cannot be sliced without communication",
                op,
                f"its result has {old} elements, padded to {new}, and is sharded differently from the operand's {source[dim]}",
                "run sdy-resolve-permutation-factors and sdy-reshard-to-collectives before this pass",
            )
        limits.append(start + new)
    return tuple(limits)


def pad(padder: Padder, op: Op) -> None:
    """Changes the padding at the high end so that a pad gives the padded result.

    Where that end shrinks, elements of the operand's own padding may become visible, so they are set to the padding value. As in
    Shardy, an op whose attributes stay is left as it is.
    """
    operand, filler = op.operands
    result = op.result
    low, high, interior = (tuple(op.attributes[name]) for name in ("edge_padding_low", "edge_padding_high", "interior_padding"))
    spread = [n + max(n - 1, 0) * i for n, i in zip(operand.type.shape, interior, strict=True)]
    wanted = tuple(n - a - m for n, a, m in zip(result.type.shape, low, spread, strict=True))
    if wanted != high:
        seen = [
            dim
            for dim in sorted(padder.padded_dims(operand))
            if low[dim] + padder.before(operand)[dim] * (interior[dim] + 1) < padder.before(result)[dim]
        ]
        if seen:
            op.set_operand(0, padder.mask(operand, seen, op, filler))
        set_arrays(op, {"edge_padding_high": wanted})
    padder.ops.append(op)


def shard(padder: Padder, op: Op) -> None:
    """Pads the operand of an all-slice or reduce-scatter with zeros up to the size of the result."""
    _fill_operand(padder, op, padder.shape(padder.before(op.result), op.result.sharding))
    padder.ops.append(op)


def gather(padder: Padder, op: Op) -> None:
    """Gathers padded parts, and drops the padding of the gathered dimensions that the result does not have."""
    name = "gathering_axes" if op.name == "sdy.all_gather" else "axes"
    _gathered(padder, op, [dim for dim, axes in enumerate(op.attributes[name].lists) if axes.axes])


def exchange(padder: Padder, op: Op) -> None:
    """Pads the operand of an all-to-all where it becomes sharded, and slices the result where it no longer is."""
    params = op.attributes["params"].params
    shape = padder.shape(padder.before(op.result), op.result.sharding)
    _fill_operand(padder, op, tuple(map(max, op.operands[0].type.shape, shape)))
    _gathered(padder, op, [param.source for param in params])


def keep(padder: Padder, op: Op) -> None:
    """Keeps a collective that changes no dimension size."""
    operand, result = op.operands[0], op.result
    padder.resize(result, operand.type.shape)
    if operand in padder.zero:
        padder.zero.add(result)
    padder.exact[result] = padder.exact.get(operand, frozenset())
    padder.ops.append(op)


def _fill_operand(padder: Padder, op: Op, shape: Ints) -> None:
    """Pads the operand; the result is as large then, and its padding is zero where something was added."""
    operand = op.operands[0]
    filled = padder.fill(operand, shape, op)
    padder.resize(op.result, shape)
    padder.exact[op.result] = padder.exact.get(filled, frozenset())
    if filled is not operand:
        op.set_operand(0, filled)
        padder.zero.add(op.result)
        padder.zero.add(filled)


def _gathered(padder: Padder, op: Op, dims: Iterable[int]) -> None:
    operand, result = op.operands[0], op.result
    before = padder.before(result)
    after = operand.type.shape
    padder.resize(result, after)
    padder.ops.append(op)
    exact = padder.exact.get(operand, frozenset())
    padder.exact[result] = exact
    if operand in padder.zero:
        padder.zero.add(result)
    if all(before[dim] == after[dim] for dim in dims):
        return
    sharding = get_sharding(result)
    start, limit = (0,) * len(before), tuple(before)
    wanted = padder.shape(before, sharding)
    limit = slice_bounds(padder, op, sharding, after, (before, wanted), (start, limit, (1,) * len(before)))
    sliced = local_ops.slice_(result, start, limit, op, sharding)
    result.replace_uses(sliced.result, lambda user, _: user is sliced)
    padder.ops.append(sliced)
    padder.note(sliced.result, before)
    padder.exact[sliced.result] = exact & padder.padded_dims(sliced.result)
    if operand in padder.zero:
        padder.zero.add(sliced.result)


CONVERSIONS: dict[str, Conversion] = {
    "sdy.all_gather": gather,
    "sdy.all_reduce": keep,
    "sdy.all_slice": shard,
    "sdy.all_to_all": exchange,
    "sdy.collective_permute": keep,
    "sdy.reduce_scatter": shard,
    "sdy.replicated_to_unreduced": keep,
    "sdy.sharded_to_unreduced": gather,
    "func.return": returned,
    "sdy.manual_computation": unsupported,
    "sdy.reshard": unsupported,
    "sdy.sharding_constraint": unsupported,
    "stablehlo.concatenate": concatenate,
    "stablehlo.constant": constant,
    "stablehlo.dot_general": dot_general,
    "stablehlo.dynamic_slice": sized,
    "stablehlo.gather": sized,
    "stablehlo.reshape": reshape,
    "stablehlo.pad": pad,
    "stablehlo.slice": slice_,
}


class Padder:
    """Types before and after, values whose padding Shardy takes for `zero`, and dimensions in which it is zero for certain (`exact`)."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.ops: list[Op] = []
        self.zero: set[Value] = set()
        self.exact: dict[Value, frozenset[int]] = {}
        self._before: dict[Value, TensorType] = {}

    def shape(self, shape: Ints, sharding: TensorSharding | None) -> Ints:
        """The shape with every dimension made a multiple of its shards."""
        if sharding is None or sharding.is_fully_replicated or sharding.rank != len(shape):
            return shape
        return tuple(n + -n % k for n, k in zip(shape, sharding.shards(sharding.mesh_in(self.program.meshes)), strict=True))

    def before(self, value: Value) -> Ints:
        """The shape that a value had."""
        return self._before.get(value, value.type).shape

    def note(self, value: Value, shape: Ints) -> None:
        """Records the unpadded shape of a padded value."""
        self._before[value] = local_ops.resized(local_ops.tensor_type(value), shape)

    def resize(self, value: Value, shape: Ints) -> None:
        """Gives a value its new shape."""
        type_ = local_ops.tensor_type(value)
        if type_.shape != shape:
            self._before.setdefault(value, type_)
            value.type = local_ops.resized(type_, shape)

    def resize_by_sharding(self, value: Value) -> None:
        """Gives a value the shape that its sharding asks for."""
        if isinstance(value.type, TensorType):
            self.resize(value, self.shape(value.type.shape, get_sharding(value)))

    def padded_dims(self, value: Value) -> frozenset[int]:
        """The dimensions in which a value is larger than it was."""
        return frozenset(d for d, (a, b) in enumerate(zip(self.before(value), value.type.shape, strict=True)) if a != b)

    def emit(self, *ops: Op) -> Value:
        """Adds ops to the present block; the result of the last one."""
        self.ops += ops
        return ops[-1].result

    def fill(self, value: Value, shape: Ints, op: Op) -> Value:
        """Pads a value with zeros at the high ends, before an op that uses it."""
        type_ = local_ops.tensor_type(value)
        if type_.shape == shape:
            return value
        zero = self.emit(local_ops.constant(0, type_.dtype, op))
        high = tuple(b - a for a, b in zip(type_.shape, shape, strict=True))
        padded = self.emit(local_ops.pad(value, zero, (0,) * type_.rank, high, op, get_sharding(value)))
        self.note(padded, self.before(value))
        self.exact[padded] = self.padded_dims(padded) - (self.padded_dims(value) - self.exact.get(value, frozenset()))
        return padded

    def mask(self, value: Value, dims: Sequence[int], op: Op, filler: Value | None = None) -> Value:
        """The value with a scalar, by default zero, in the padding of some dimensions."""
        type_ = local_ops.tensor_type(value)
        inside: Value | None = None
        for dim in dims:
            compared = self.emit(*local_ops.below(type_, dim, self.before(value)[dim], op))
            if inside is not None:
                compared = self.emit(local_ops.elementwise("and", (inside, compared), local_ops.tensor_type(compared), op))
            inside = compared
        assert inside is not None
        scalar = self.emit(local_ops.constant(0, type_.dtype, op)) if filler is None else filler
        other = self.emit(local_ops.broadcast(scalar, type_.shape, op))
        masked = self.emit(local_ops.elementwise("select", (inside, value, other), type_, op))
        self.note(masked, self.before(value))
        return masked

    def is_zero(self, value: Value, dims: Sequence[int]) -> bool:
        """Whether the padding of a value in some dimensions needs no mask."""
        return value in self.zero and self.exact.get(value, frozenset()).issuperset(dims)

    def error(self, what: str, op: Op, why: str, fix: str, **more: Any) -> ShardyError:
        """An error about an op."""
        return ShardyError(what, where=place(self.program, op), why=why, fix=fix, **more)


Conversion = Callable[[Padder, Op], None]
"""Changes an op whose operands are padded already, and adds it to the present block."""
