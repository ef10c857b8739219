"""`stablehlo.scatter`: a device applies the updates that fall into its part, or its part of the updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import ml_dtypes

from shardy_py.dialect import AxisRef
from shardy_py.dialect.axis import num_shards
from shardy_py.ir import Op, TensorType, Value, element_bits
from shardy_py.ir.attribute_text import MLIR_TEXT_KEY
from shardy_py.opt.partitioner.attributes import with_kept
from shardy_py.opt.partitioner.convert_global_to_local.collectives import flat
from shardy_py.opt.partitioner.convert_global_to_local.devices import emit_device, emit_lookup, shard_table
from shardy_py.opt.partitioner.convert_global_to_local.emitter import Conversion, Emitter
from shardy_py.opt.partitioner.convert_global_to_local.gather import part_offset, spread, zero_text


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
        indices = _local_indices(out, indices, looked_up)
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


def _local_indices(out: Emitter, indices: Value, dims: Sequence[int]) -> Value:
    """Indices relative to the local part; those of other parts are out of range."""
    dtype = indices.type.dtype
    components = [
        out.convert(part_offset(out, out.facts.operands[0], dim), dtype) if dim in dims else out.integer(0, dtype=dtype)
        for dim in out.op.attributes["scatter_dims_to_operand_dims"]
    ]
    offset = spread(out, components, indices, out.op.attributes["index_vector_dim"])
    return out.value("subtract", (indices, offset), indices.type)


CONVERSIONS: dict[str, Conversion] = {"stablehlo.scatter": scatter}
