"""StableHLO ops that the partitioner inserts, each where another op is written, and attributes of ops read from MLIR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardy_py.dialect import TensorSharding
from shardy_py.errors import ShardyError
from shardy_py.ir import Op, OpaqueType, TensorType, Value
from shardy_py.ir.attribute_text import MLIR_TEXT_KEY, AttributeText, constant_text, split_entries
from shardy_py.ir.type_text import type_text

Ints = tuple[int, ...]


def resized(type_: TensorType, shape: Sequence[int]) -> TensorType:
    """The type with another shape."""
    return TensorType(tuple(shape), type_.dtype)


def is_dynamic(value: Value) -> bool:
    """Whether a value is a tensor without a static shape."""
    return isinstance(value.type, OpaqueType) and value.type.text.startswith("tensor<")


def tensor_type(value: Value) -> TensorType:
    """The type of a tensor with a static shape; raises ShardyError for any other value."""
    if not isinstance(value.type, TensorType):
        where = value.owner.name if isinstance(value.owner, Op) else None
        raise ShardyError(f"only tensors with a static shape can be cut into parts, got '{type_text(value.type)}'", where=where)
    return value.type


def constant(number: int, dtype: str, like: Op) -> Op:
    """A scalar constant."""
    type_ = TensorType((), dtype)
    return dense(constant_text(number, type_), type_, like)


def dense(text: str, type_: TensorType, like: Op) -> Op:
    """A constant; `text` is `dense<...>`."""
    return _op("stablehlo.constant", (), type_, {"value": AttributeText(f"{text} : {type_text(type_)}")}, like, None)


def pad(value: Value, filler: Value, low: Ints, high: Ints, like: Op, sharding: TensorSharding | None) -> Op:
    """`stablehlo.pad` of the edges."""
    type_ = tensor_type(value)
    shape = [a + n + b for n, a, b in zip(type_.shape, low, high, strict=True)]
    attributes = {"edge_padding_low": low, "edge_padding_high": high, "interior_padding": (0,) * type_.rank}
    return _op("stablehlo.pad", (value, filler), resized(type_, shape), attributes, like, sharding)


def slice_(value: Value, start: Ints, limit: Ints, like: Op, sharding: TensorSharding | None) -> Op:
    """`stablehlo.slice` with stride 1."""
    type_ = tensor_type(value)
    attributes = {"start_indices": start, "limit_indices": limit, "strides": (1,) * type_.rank}
    shape = [b - a for a, b in zip(start, limit, strict=True)]
    return _op("stablehlo.slice", (value,), resized(type_, shape), attributes, like, sharding)


def concatenate(values: Sequence[Value], dim: int, like: Op, sharding: TensorSharding | None) -> Op:
    """`stablehlo.concatenate`."""
    type_ = tensor_type(values[0])
    shape = list(type_.shape)
    shape[dim] = sum(tensor_type(value).shape[dim] for value in values)
    return _op("stablehlo.concatenate", values, resized(type_, shape), {"dimension": dim}, like, sharding)


def collective_permute(value: Value, pairs: Sequence[tuple[int, int]], like: Op, sharding: TensorSharding | None) -> Op:
    """`stablehlo.collective_permute` without a channel."""
    listed = ", ".join(f"[{source}, {target}]" for source, target in pairs)
    text = f"dense<{f'[{listed}]' if pairs else ''}> : tensor<{len(pairs)}x2xi64>"
    attributes = {"source_target_pairs": AttributeText(text)}
    return _op("stablehlo.collective_permute", (value,), tensor_type(value), attributes, like, sharding)


def below(type_: TensorType, dim: int, size: int, like: Op) -> list[Op]:
    """Ops the last of which says for each element of a type whether its index in a dimension is less than `size`."""
    indices = _op("stablehlo.iota", (), TensorType(type_.shape, "int32"), {"iota_dimension": dim}, like, None)
    limit = constant(size, "int32", like)
    limits = broadcast(limit.result, type_.shape, like)
    return [indices, limit, limits, compare("LT", indices.result, limits.result, like)]


def compare(direction: str, left: Value, right: Value, like: Op) -> Op:
    """`stablehlo.compare`; `direction` is EQ, GE, LE, ..."""
    attributes = {"comparison_direction": AttributeText(f"#stablehlo<comparison_direction {direction}>")}
    return _op("stablehlo.compare", (left, right), TensorType(tensor_type(left).shape, "bool"), attributes, like, None)


def broadcast(value: Value, shape: Sequence[int], like: Op, dims: Sequence[int] = ()) -> Op:
    """`stablehlo.broadcast_in_dim`."""
    attributes = {"broadcast_dimensions": tuple(dims)}
    return _op("stablehlo.broadcast_in_dim", (value,), resized(tensor_type(value), shape), attributes, like, None)


def elementwise(name: str, operands: Sequence[Value], type_: TensorType, like: Op) -> Op:
    """An op without attributes."""
    return _op(f"stablehlo.{name}", operands, type_, {}, like, None)


def _op(
    name: str, operands: Sequence[Value], type_: TensorType, attributes: Mapping[str, object], like: Op, sharding: TensorSharding | None
) -> Op:
    return Op(name, operands, (type_,), dict(attributes), location=like.location, sharding=sharding)


def set_arrays(op: Op, arrays: Mapping[str, Sequence[int]]) -> None:
    """Changes attributes of an op that are arrays of integers."""
    op.attributes = with_arrays(op.attributes, arrays)


def with_arrays(attributes: Mapping[str, Any], arrays: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """The attributes of an op with new arrays of integers for some of them."""
    texts = {name: f"array<i64: {', '.join(map(str, values))}>" if values else "array<i64>" for name, values in arrays.items()}
    return with_kept(attributes, texts, {name: tuple(values) for name, values in arrays.items()})


def with_kept(attributes: Mapping[str, Any], texts: Mapping[str, str], values: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The attributes of an op with new `values`; in the text of an op read from MLIR, `texts` replace or join the entries of that name."""
    changed = {**attributes, **(values or {})}
    mlir_text = attributes.get(MLIR_TEXT_KEY)
    if mlir_text is not None:
        entries = {name: text or "unit" for name, _, text in (entry.partition(" = ") for entry in split_entries(mlir_text[1:-1]))}
        changed[MLIR_TEXT_KEY] = AttributeText(f"{{{', '.join(f'{name} = {text}' for name, text in {**entries, **texts}.items())}}}")
    return changed
