"""`sdy.all_to_all` and `sdy.collective_permute`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from shardy_py.dialect import AxisRef, Mesh, TensorSharding
from shardy_py.dialect.axis import bounds, num_shards
from shardy_py.dialect.devices import device_ids
from shardy_py.ir import Op, TensorType, Value
from shardy_py.opt.partitioner.convert_global_to_local.collectives import channel, collective_attributes, flat, matrix, result_sharding
from shardy_py.opt.partitioner.convert_global_to_local.devices import part_of
from shardy_py.opt.partitioner.convert_global_to_local.emitter import Conversion, Emitter


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


CONVERSIONS: dict[str, Conversion] = {"sdy.all_to_all": all_to_all, "sdy.collective_permute": collective_permute}
