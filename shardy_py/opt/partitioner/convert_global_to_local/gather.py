"""`stablehlo.gather`: a device looks up what it has, and gives zeros for the rest, which an all-reduce adds up."""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.ir import Block, Op, TensorType, Value
from shardy_py.ir.attribute_text import MLIR_TEXT_KEY, AttributeText
from shardy_py.opt.partitioner.attributes import with_arrays, with_kept
from shardy_py.opt.partitioner.convert_global_to_local.devices import emit_offset
from shardy_py.opt.partitioner.convert_global_to_local.emitter import Conversion, Emitter, scalar_body
from shardy_py.opt.partitioner.convert_global_to_local.facts import LocalTensor
from shardy_py.opt.partitioner.convert_global_to_local.products import FULL_RESHARDS, check_summed


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


CONVERSIONS: dict[str, Conversion] = {"stablehlo.gather": gather}


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
