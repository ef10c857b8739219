"""The conversion of each op whose operands and results are padded."""

from __future__ import annotations

import math
import re

from shardy_py.dialect import OpShardingRule, TensorSharding
from shardy_py.dialect.rule import factor_symbol
from shardy_py.ir import Op, TensorType, Value
from shardy_py.ir.attribute_text import AttributeText
from shardy_py.ir.type_text import type_text
from shardy_py.opt.partitioner import local_ops
from shardy_py.opt.partitioner.attributes import set_arrays
from shardy_py.opt.partitioner.local_ops import Ints
from shardy_py.opt.partitioner.padding.padder import Conversion, Padder
from shardy_py.passes.dataflow import get_sharding
from shardy_py.rules import rule_of

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
            _check(padder, op, rule)
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


def _check(padder: Padder, op: Op, rule: OpShardingRule) -> None:
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
                f"its result has {old} elements, padded to {new}, and is cut otherwise than the {source[dim]} of the operand",
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


CONVERSIONS: dict[str, Conversion] = {
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
