"""`stablehlo.gather` and `scatter`: a device looks up or updates what it has, or applies its part of the updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import ml_dtypes

from shardy_py.dialect import AxisRef
from shardy_py.dialect.axis import num_shards
from shardy_py.ir import Block, Op, TensorType, Value, element_bits
from shardy_py.ir.attribute_text import MLIR_TEXT_KEY, AttributeText
from shardy_py.opt.partitioner.convert_global_to_local.collectives import flat
from shardy_py.opt.partitioner.convert_global_to_local.emitter import (
    Conversion,
    Emitter,
    LocalTensor,
    emit_device,
    emit_lookup,
    emit_offset,
    scalar_body,
    shard_table,
)
from shardy_py.opt.partitioner.convert_global_to_local.products import FULL_RESHARDS, check_summed
from shardy_py.opt.partitioner.local_ops import with_arrays, with_kept


def gather(op: Op, out: Emitter) -> Sequence[Value] | None:
    """A gather from the part; where single elements of a cut dimension are taken, those of other parts become zeros."""
    operand = out.facts.operands[0]
    if not any(operand.axes(dim) for dim in range(operand.rank)):
        return None
    attributes = op.attributes
    sizes = list(attributes["slice_sizes"])
    looked_up: list[int] = []
    for dim in range(operand.rank):
        if not operand.axes(dim) or dim in attributes["operand_batching_dims"]:
            continue
        if sizes[dim] == operand.type.shape[dim]:
            sizes[dim] = operand.local.shape[dim]
        elif operand.local.shape[dim] == operand.type.shape[dim]:
            continue
        elif sizes[dim] == 1:
            looked_up.append(dim)
        else:
            raise out.error(
                f"takes slices of size {sizes[dim]} from dimension {dim}, which is sharded",
                why="a device can take single elements of its part, or all of it",
                fix=FULL_RESHARDS,
            )
    if looked_up:
        axes = [axis for dim in looked_up for axis in operand.axes(dim)]
        dims = "sharded collapsed operand dimensions of the gather"
        check_summed(out, axes, operand.sharding, "a gather from sharded dimensions", dims)
    indices = op.operands[1]
    mask: Value | None = None
    if any(dim in attributes["start_index_map"] for dim in looked_up):
        indices, mask = _local_indices(out, looked_up)
    for dim in looked_up:
        if dim not in attributes["start_index_map"]:
            first = out.compare("EQ", part_offset(out, operand, dim), out.integer(0))
            mask = first if mask is None else _and(out, mask, first)
    changed = with_arrays(attributes, {"slice_sizes": sizes})
    if "indices_are_sorted = " not in attributes.get(MLIR_TEXT_KEY, ""):
        changed = with_kept(changed, {"indices_are_sorted": "false"})
    gathered = out.rebuild(changed, (op.operands[0], indices)).result
    return (gathered,) if mask is None else (_masked(out, gathered, mask),)


def _local_indices(out: Emitter, looked_up: Sequence[int]) -> tuple[Value, Value]:
    """Indices into the part, and for each component whether it lies in the part."""
    operand, attributes = out.facts.operands[0], out.op.attributes
    indices = out.op.operands[1]
    shape, dtype = indices.type.shape, indices.type.dtype
    vector_dim: int = attributes["index_vector_dim"]
    dims: Sequence[int] = attributes["start_index_map"]
    last = [operand.type.shape[dim] - 1 for dim in dims]
    lowest = out.integer(0, shape, dtype)
    if len(dims) == 1:
        highest = out.integer(last[0], shape, dtype)
    else:
        highest = out.broadcast(out.integers(last, dtype), shape, (vector_dim,))
    clamped = out.value("clamp", (lowest, indices, highest), indices.type)
    scalar = TensorType((), dtype)
    begins: list[Value] = []
    ends: list[Value] = []
    for dim, end in zip(dims, last, strict=True):
        if dim in looked_up:
            begin = out.convert(part_offset(out, operand, dim), dtype)
            begins.append(begin)
            ends.append(out.value("add", (begin, out.integer(operand.local.shape[dim] - 1, dtype=dtype)), scalar))
        else:
            begins.append(out.integer(0, dtype=dtype))
            ends.append(out.integer(end, dtype=dtype))
    begin, end = spread(out, begins, indices, vector_dim), spread(out, ends, indices, vector_dim)
    local = out.value("subtract", (clamped, begin), indices.type)
    return local, _and(out, out.compare("GE", clamped, begin), out.compare("LE", clamped, end))


def _masked(out: Emitter, value: Value, mask: Value) -> Value:
    """The value where the mask of its index holds, else zeros."""
    attributes = out.op.attributes
    vector_dim = attributes["index_vector_dim"]
    if mask.type.rank > vector_dim:
        mask = _all(out, mask, vector_dim)
    shape, dtype = value.type.shape, value.type.dtype
    batch = [dim for dim in range(len(shape)) if dim not in attributes["offset_dims"]]
    mask = out.broadcast(mask, shape, batch[: mask.type.rank])
    zeros = out.constant(zero_text(dtype), TensorType(shape, dtype))
    return out.value("select", (mask, value, zeros), value.type)


def _all(out: Emitter, mask: Value, dim: int) -> Value:
    """Whether a mask holds all along a dimension."""
    true = out.constant("true", TensorType((), "bool"))
    shape = tuple(n for i, n in enumerate(mask.type.shape) if i != dim)
    attributes = {"dimensions": (dim,), "body": "stablehlo.and", MLIR_TEXT_KEY: AttributeText(f"{{dimensions = array<i64: {dim}>}}")}
    body: Block = scalar_body("and", "bool")
    return out.value("reduce", (mask, true), TensorType(shape, "bool"), attributes, (body,))


def _and(out: Emitter, left: Value, right: Value) -> Value:
    if left.type != right.type:
        right = out.broadcast(right, left.type.shape)
    return out.value("and", (left, right), left.type)


def zero_text(dtype: str) -> str:
    """The zero of an element type, as it stands in a constant."""
    if dtype.startswith("complex"):
        return "(0.0, 0.0)"
    return "false" if dtype == "bool" else "0" if dtype.startswith(("int", "uint")) else "0.0"


def part_offset(out: Emitter, tensor: LocalTensor, dim: int) -> Value:
    """Adds what gives the first index of the running device's part along a dimension that is cut."""
    assert tensor.sharding is not None
    return emit_offset(out, tensor.axes(dim), out.world.mesh(tensor.sharding), tensor.local.shape[dim])


def spread(out: Emitter, components: Sequence[Value], indices: Value, vector_dim: int) -> Value:
    """Adds a tensor of the shape of the indices whose vectors have these components."""
    shape = indices.type.shape
    if len(components) == 1:
        return out.broadcast(components[0], shape)
    parts = [out.reshape(component, (1,)) for component in components]
    vector = TensorType((len(parts),), indices.type.dtype)
    return out.broadcast(out.value("concatenate", parts, vector, {"dimension": 0}), shape, (vector_dim,))


def scatter(op: Op, out: Emitter) -> Sequence[Value] | None:
    """A scatter into the part; updates that belong to other parts fall outside of it and are dropped.

    Where the updates are cut, each device applies its own, all but one of them to the reduction's identity.
    """
    count = len(op.results)
    inputs, indices = list(op.operands[:count]), op.operands[count]
    looked_up = _indexed_dims(out)
    axes = _batch_axes(out)
    if axes:
        inputs = _only_on_leaders(out, inputs, axes)
    if looked_up:
        indices = _shifted_indices(out, indices, looked_up)
    if not axes and not looked_up:
        return None
    text = op.attributes.get(MLIR_TEXT_KEY, "")
    texts = {name: "false" for name in ("indices_are_sorted", "unique_indices") if f"{name} = " not in text}
    return out.rebuild(with_kept(op.attributes, texts), (*inputs, indices, *op.operands[count + 1 :])).results


def _indexed_dims(out: Emitter) -> list[int]:
    """The cut dimensions of the inputs that indices lead into."""
    attributes, operand = out.op.attributes, out.facts.operands[0]
    indexed: list[int] = []
    for dim in range(operand.rank):
        if not operand.axes(dim):
            continue
        if dim in attributes["scatter_dims_to_operand_dims"]:
            indexed.append(dim)
        elif dim in attributes["inserted_window_dims"]:
            raise out.error(
                f"sharding operand dimension {dim} that is not indexed but in inserted window dimension is not supported.",
                fix="replicate the dimension before the scatter",
            )
    return indexed


def _batch_axes(out: Emitter) -> list[AxisRef]:
    """The axes that cut the updates, dimensions that inputs have too left out."""
    attributes, indices = out.op.attributes, out.facts.operands[len(out.op.results)]
    left_out = {attributes["index_vector_dim"], *attributes["scatter_indices_batching_dims"]}
    return flat([indices.axes(dim) for dim in range(indices.rank) if dim not in left_out])


def _only_on_leaders(out: Emitter, inputs: Sequence[Value], axes: Sequence[AxisRef]) -> list[Value]:
    """The inputs on the device that has the first part of the updates, and the reduction's identity on the others."""
    identities = [out.constant(_identity(out, i), TensorType((), value.type.dtype)) for i, value in enumerate(inputs)]
    sharding = out.facts.operands[len(inputs)].sharding
    assert sharding is not None
    mesh = out.world.mesh(sharding)
    parts = num_shards(axes, mesh)
    leader = emit_lookup(out, shard_table(out, axes, mesh, [1, *[0] * (parts - 1)]), emit_device(out), "bool")
    chosen: list[Value] = []
    for value, identity in zip(inputs, identities, strict=True):
        shape = value.type.shape
        # An input without dimensions takes the flag without any too.
        here = out.broadcast(leader, shape, (0,)) if shape else out.reshape(leader, ())
        chosen.append(out.value("select", (here, value, out.broadcast(identity, shape)), value.type))
    return chosen


def _identity(out: Emitter, i: int) -> str:
    """The neutral element of the reduction of an input, as it stands in a constant."""
    dtype = out.op.operands[i].type.dtype
    text = _IDENTITIES.get(_reduction(out.op, i), {}).get(_kind(dtype))
    if text is None:
        raise out.error(
            "failed to get scatter reduction identity.",
            why="updates are sharded, so that every device applies some of them, to an input that must change nothing on all but one",
            fix="replicate the indices and updates, or scatter with a sum, product, maximum or minimum",
        )
    if text in ("lowest", "highest"):
        return _extreme(dtype, text == "lowest")
    return zero_text(dtype).replace("0.0", "1.0", 1) if text == "one" else text or zero_text(dtype)


_ZERO = ""
_NUMBERS = dict.fromkeys(("float", "int", "uint"), "")
_IDENTITIES = {
    "stablehlo.add": {**_NUMBERS, "complex": _ZERO, "bool": _ZERO},
    "stablehlo.multiply": {"float": "one", "complex": "one", "int": "1", "uint": "1", "bool": "true"},
    "stablehlo.maximum": {**dict.fromkeys(_NUMBERS, "lowest"), "bool": "false"},
    "stablehlo.minimum": {**dict.fromkeys(_NUMBERS, "highest"), "bool": "true"},
    "stablehlo.and": {"bool": "true"},
    "stablehlo.or": {"bool": "false"},
}
"""Reduction -> kind of elements -> text, "" for zero, "one", "lowest" or "highest" for what depends on the size of elements."""


def _kind(dtype: str) -> str:
    if dtype.startswith(("float", "bfloat")):
        return "float"
    return next((kind for kind in ("complex", "uint", "int") if dtype.startswith(kind)), dtype)


def _extreme(dtype: str, lowest: bool) -> str:
    if _kind(dtype) == "float":
        limits = cast(Any, ml_dtypes.finfo(dtype))
        return repr(float(limits.min if lowest else limits.max))
    signed = _kind(dtype) == "int"
    bits = element_bits(dtype) - signed
    return str((-(1 << bits) if signed else 0) if lowest else (1 << bits) - 1)


def _reduction(op: Op, i: int) -> str:
    """The op that a scatter applies to an element of an input and its update."""
    if not op.regions:
        return op.attributes.get("body", "")
    (body,) = op.regions
    definition = body.terminator.operands[i].defining_op
    return definition.name if definition is not None and all(operand in body.arguments for operand in definition.operands) else ""


def _shifted_indices(out: Emitter, indices: Value, dims: Sequence[int]) -> Value:
    """Indices relative to the local part; those of other parts are out of range."""
    dtype = indices.type.dtype
    components = [
        out.convert(part_offset(out, out.facts.operands[0], dim), dtype) if dim in dims else out.integer(0, dtype=dtype)
        for dim in out.op.attributes["scatter_dims_to_operand_dims"]
    ]
    offset = spread(out, components, indices, out.op.attributes["index_vector_dim"])
    return out.value("subtract", (indices, offset), indices.type)


CONVERSIONS: dict[str, Conversion] = {"stablehlo.gather": gather, "stablehlo.scatter": scatter}
