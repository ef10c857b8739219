"""SDY's collectives as StableHLO's."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from shardy_py.dialect import AxisRef, Mesh, TensorSharding
from shardy_py.dialect.axis import bounds, num_shards
from shardy_py.dialect.devices import device_groups, device_ids
from shardy_py.ir import Block, Op, TensorType, Value
from shardy_py.ir.attribute_text import AttributeText
from shardy_py.opt.meshes import MESH_AXES
from shardy_py.opt.partitioner.convert_global_to_local.emitter import Conversion, Emitter, emit_part, part_of, scalar_body


def all_gather(op: Op, out: Emitter) -> Sequence[Value]:
    """One gather where one dimension is gathered, else one per dimension or one over a new leading dimension."""
    sharding = result_sharding(op)
    mesh = out.world.mesh(sharding)
    axes, gathered = _dims(op, out, "gathering_axes", "gathers")
    (value,) = op.operands
    if len(gathered) == 1 or out.world.options.per_dim_all_gather:
        for dim in reversed(gathered):
            value = _gather(out, value, dim, axes[dim], sharding)
        return (value,)
    counts = [num_shards(axes[dim], mesh) for dim in gathered]
    shape = value.type.shape
    value = _gather(out, out.reshape(value, (1, *shape)), 0, flat(axes), sharding)
    value = out.reshape(value, (*counts, *shape))
    place = {dim: i for i, dim in enumerate(gathered)}
    order: list[int] = []
    for dim in range(len(shape)):
        order += (place[dim], len(gathered) + dim) if dim in place else (len(gathered) + dim,)
    value = out.transpose(value, order)
    return (out.reshape(value, out.facts.results[0].local.shape),)


def _gather(out: Emitter, value: Value, dim: int, axes: Sequence[AxisRef], sharding: TensorSharding) -> Value:
    mesh = out.world.mesh(sharding)
    count = num_shards(axes, mesh)
    shape = tuple(n * count if i == dim else n for i, n in enumerate(value.type.shape))
    attributes = {"all_gather_dim": dim, **collective_attributes(out, axes, sharding)}
    return out.value("all_gather", (value,), TensorType(shape, value.type.dtype), attributes)


def all_slice(op: Op, out: Emitter) -> Sequence[Value]:
    """A slice that starts at an offset of the device's own."""
    axes = [dim.axes for dim in op.attributes["slicing_axes"].lists]
    return (emit_part(out, op.operands[0], axes, out.world.mesh(result_sharding(op)), out.facts.results[0].local.shape),)


def all_reduce(op: Op, out: Emitter) -> Sequence[Value]:
    """An all-reduce over groups of devices."""
    return (_reduce(out, op.operands[0], op.attributes["reduction_axes"].axes),)


def _reduce(out: Emitter, value: Value, axes: Sequence[AxisRef]) -> Value:
    attributes = collective_attributes(out, axes, result_sharding(out.op))
    return out.value("all_reduce", (value,), value.type, attributes, (_body(out, value),))


_BODIES = ("add", "maximum", "minimum")
"""`reduction_op` -> the op that reduces."""


def _body(out: Emitter, value: Value) -> Block:
    reduction: int = out.op.attributes.get("reduction_op", 0)
    return scalar_body(_BODIES[reduction], value.type.dtype)


def reduce_scatter(op: Op, out: Emitter) -> Sequence[Value]:
    """One reduce-scatter where one dimension is cut, else an all-reduce and a slice, or one over a new leading dimension."""
    sharding = result_sharding(op)
    mesh = out.world.mesh(sharding)
    axes, cut = _dims(op, out, "reduce_scatter_axes", "scatters")
    (value,) = op.operands
    local = out.facts.results[0].local
    if len(cut) == 1:
        return (_scatter(out, value, cut[0], axes[cut[0]], local.shape),)
    if not out.world.options.combine_multi_dimension_reduce_scatter:
        return (emit_part(out, _reduce(out, value, flat(axes)), axes, mesh, local.shape),)
    split: list[int] = []
    major: list[int] = []
    minor: list[int] = []
    for dim, size in enumerate(local.shape):
        if axes[dim]:
            major.append(len(split))
            split.append(num_shards(axes[dim], mesh))
        minor.append(len(split))
        split.append(size)
    value = out.transpose(out.reshape(value, split), (*major, *minor))
    value = out.reshape(value, (math.prod(split[i] for i in major), *local.shape))
    value = _scatter(out, value, 0, flat(axes), (1, *local.shape))
    return (out.reshape(value, local.shape),)


def _scatter(out: Emitter, value: Value, dim: int, axes: Sequence[AxisRef], shape: Sequence[int]) -> Value:
    attributes = {"scatter_dimension": dim, **collective_attributes(out, axes, result_sharding(out.op))}
    return out.value("reduce_scatter", (value,), TensorType(tuple(shape), value.type.dtype), attributes, (_body(out, value),))


def _dims(op: Op, out: Emitter, attribute: str, does: str) -> tuple[list[tuple[AxisRef, ...]], list[int]]:
    """The axes of each dimension, and the dimensions that have any."""
    axes = [dim.axes for dim in op.attributes[attribute].lists]
    dims = [dim for dim, listed in enumerate(axes) if listed]
    if not dims:
        raise out.error(f"{does} along no axis", fix="run canonicalize, which removes it, before sdy-convert-global-to-local")
    return axes, dims


def result_sharding(op: Op) -> TensorSharding:
    """The sharding of a collective's result."""
    sharding = op.results[0].sharding
    assert sharding is not None
    return sharding


def collective_attributes(out: Emitter, axes: Sequence[AxisRef], sharding: TensorSharding, *, global_ids: bool = True) -> dict[str, object]:
    """Replica groups, a channel of its own and, unless it has none, `use_global_device_ids` of a collective."""
    mesh = out.world.mesh(sharding)
    attributes: dict[str, object] = {"channel_handle": channel(out)}
    # StableHLO takes SDY's axes of a mesh that has a name alone.
    if out.world.options.enable_rgv3 and isinstance(sharding.mesh, str):
        listed = ", ".join(f"#sdy<axis_ref{axis}>" for axis in axes)
        attributes["replica_groups"] = AttributeText(f"{MESH_AXES}mesh = {sharding.mesh_text()}, axes = [{listed}]>")
    else:
        attributes["replica_groups"] = matrix(device_groups(tuple(axes), mesh))
    if global_ids:
        attributes["use_global_device_ids"] = AttributeText("unit")
    return attributes


def channel(out: Emitter) -> AttributeText:
    """A fresh channel."""
    return AttributeText(f"#stablehlo.channel_handle<handle = {out.world.next_channel()}, type = 1>")


def matrix(rows: Sequence[Sequence[int]]) -> AttributeText:
    """A matrix of integers."""
    text = ", ".join(f"[{', '.join(map(str, row))}]" for row in rows)
    return AttributeText(f"dense<[{text}]> : tensor<{len(rows)}x{len(rows[0])}xi64>")


def flat(axes: Sequence[Sequence[AxisRef]]) -> list[AxisRef]:
    """All axes of several dimensions, in order."""
    return list(itertools.chain.from_iterable(axes))


def all_to_all(op: Op, out: Emitter) -> Sequence[Value]:
    """One all-to-all between two dimensions, or one over a new leading dimension for several pairs of dimensions."""
    params = sorted(op.attributes["params"].params, key=lambda param: param.target)
    (value,) = op.operands
    local = out.facts.results[0].local
    if len(params) == 1:
        return (_exchange(out, value, params[0].axes, params[0].target, params[0].source, local.shape),)
    mesh = out.world.mesh(result_sharding(op))
    counts = {param.target: num_shards(param.axes, mesh) for param in params}
    split: list[int] = []
    major: list[int] = []
    minor: list[int] = []
    for dim, size in enumerate(value.type.shape):
        if dim in counts:
            major.append(len(split))
            split.append(counts[dim])
            size //= counts[dim]
        minor.append(len(split))
        split.append(size)
    value = out.transpose(out.reshape(value, split), (*major, *minor))
    leading, rest = value.type.shape[: len(params)], value.type.shape[len(params) :]
    merged = (math.prod(leading), *rest)
    value = _exchange(out, out.reshape(value, merged), flat([param.axes for param in params]), 0, 0, merged)
    value = out.reshape(value, (*leading, *rest))
    order: list[int] = []
    sources = {param.source: i for i, param in enumerate(params)}
    for dim in range(len(rest)):
        order += (sources[dim], len(params) + dim) if dim in sources else (len(params) + dim,)
    return (out.reshape(out.transpose(value, order), local.shape),)


def _exchange(out: Emitter, value: Value, axes: Sequence[AxisRef], split: int, concat: int, shape: Sequence[int]) -> Value:
    sharding = result_sharding(out.op)
    mesh = out.world.mesh(sharding)
    attributes = {
        "split_dimension": split,
        "concat_dimension": concat,
        "split_count": num_shards(axes, mesh),
        **collective_attributes(out, axes, sharding, global_ids=False),
    }
    return out.value("all_to_all", (value,), TensorType(tuple(shape), value.type.dtype), attributes)


def collective_permute(op: Op, out: Emitter) -> Sequence[Value]:
    """Every device receives its part of the new sharding from the device that has it, equal to it along all other axes."""
    source, target = out.facts.operands[0].sharding, result_sharding(op)
    assert source is not None
    if source is target:
        raise out.error("does not move anything", fix="run canonicalize, which removes it, before sdy-convert-global-to-local")
    pieces = _pieces((*source.dim_axes(), *target.dim_axes()), out.world.mesh(target))
    targets = _devices_by_part(out, target, pieces)
    sources = _devices_by_part(out, source, pieces)
    if not len(sources) == len(targets) == out.world.mesh(target).size:
        raise out.error(
            "cuts an axis at places that no splitting of the axis has together",
            why=f"it goes from {source} to {target}",
            fix="reshard to full axes in between",
        )
    pairs = sorted((device, targets[part]) for part, device in sources.items())
    attributes = {"source_target_pairs": matrix(pairs), "channel_handle": channel(out)}
    return (out.value("collective_permute", op.operands, op.operands[0].type, attributes),)


def _pieces(axes: Iterable[AxisRef], mesh: Mesh) -> list[AxisRef]:
    """All axes of a mesh, cut wherever one of `axes` begins or ends, in order."""
    pieces: list[AxisRef] = []
    cuts = {name: {1, size} for name, size in mesh.shape.items()}
    for axis in axes:
        cuts[axis.name].update(bounds(axis, mesh))
    for name, places in cuts.items():
        pieces += (AxisRef(name, begin, end // begin) for begin, end in itertools.pairwise(sorted(places)))
    return pieces


def _devices_by_part(out: Emitter, sharding: TensorSharding, pieces: Sequence[AxisRef]) -> dict[int, int]:
    """Number of a part, counted over all dimensions and then over the axes that cut none -> device."""
    mesh = out.world.mesh(sharding)
    ordered: list[AxisRef] = []
    for axis in sharding.dim_axes():
        begin, end = bounds(axis, mesh)
        ordered += (piece for piece in pieces if piece.name == axis.name and begin <= bounds(piece, mesh)[0] < end)
    ordered += (piece for piece in pieces if piece not in ordered)
    return {part_of(out, position, ordered, mesh): device for position, device in enumerate(device_ids(mesh))}


CONVERSIONS: dict[str, Conversion] = {
    "sdy.all_gather": all_gather,
    "sdy.all_reduce": all_reduce,
    "sdy.all_slice": all_slice,
    "sdy.reduce_scatter": reduce_scatter,
    "sdy.all_to_all": all_to_all,
    "sdy.collective_permute": collective_permute,
}
