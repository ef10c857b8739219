"""Pads, slices, concatenations and windows: what an op does at the edges of the whole is not what it does at the edges of a part."""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.errors import ShardyError
from shardy_py.ir import Op, TensorType, Value
from shardy_py.opt.partitioner.convert_global_to_local.emitter import (
    Conversion,
    Emitter,
    LocalTensor,
    emit_device,
    emit_lookup,
    shard_table,
)
from shardy_py.opt.partitioner.convert_global_to_local.products import FULL_RESHARDS
from shardy_py.opt.partitioner.local_ops import with_arrays

_FIX = "run sdy-resolve-permutation-factors before sdy-convert-global-to-local"


def pad(op: Op, out: Emitter) -> Sequence[Value]:
    """A pad of the part; where devices need different amounts, the largest, of which each slices its own."""
    source, result = out.facts.operands[0], out.facts.results[0]
    _check_same_axes(out, source, result)
    interior = op.attributes["interior_padding"]
    spans = [max(0, (size - 1) * (step + 1) + 1) for size, step in zip(source.local.shape, interior, strict=True)]
    lows = [_lows(op, dim, source, result) for dim in range(source.rank)]
    low = [each[0] for each in lows]
    high = [wanted - span - start for wanted, span, start in zip(result.local.shape, spans, low, strict=True)]
    differ = any(len(set(each)) > 1 for each in lows)
    if differ:
        low = [max(0, *each) for each in lows]
        high = [max(0, wanted - span - min(each)) for wanted, span, each in zip(result.local.shape, spans, lows, strict=True)]
    shape = tuple(start + span + end for start, span, end in zip(low, spans, high, strict=True))
    attributes = {"edge_padding_low": tuple(low), "edge_padding_high": tuple(high), "interior_padding": tuple(interior)}
    value = out.value("pad", op.operands, TensorType(shape, result.type.dtype), attributes)
    if not differ:
        return (value,)
    assert source.sharding is not None
    mesh = out.world.mesh(source.sharding)
    device = emit_device(out)
    offsets: list[Value] = []
    for dim, each in enumerate(lows):
        starts = [low[dim] - start for start in each]
        if len(set(starts)) == 1:
            offsets.append(out.integer(starts[0]))
        else:
            offsets.append(out.reshape(emit_lookup(out, shard_table(out, source.axes(dim), mesh, starts), device), ()))
    return (out.dynamic_slice(value, offsets, result.local.shape),)


def _lows(op: Op, dim: int, source: LocalTensor, result: LocalTensor) -> list[int]:
    """The padding before each part of a dimension."""
    low = op.attributes["edge_padding_low"][dim]
    if not source.axes(dim):
        return [low]
    size = source.local.shape[dim]
    ahead = size * (op.attributes["interior_padding"][dim] + 1) - result.local.shape[dim]
    return [low + i * ahead for i in range(source.type.shape[dim] // size if size else 1)]


def slice_(op: Op, out: Emitter) -> Sequence[Value]:
    """A slice of the part; dimensions that are cut are kept whole, or taken in steps that divide the part."""
    source, result = out.facts.operands[0], out.facts.results[0]
    _check_same_axes(out, source, result)
    starts, strides = op.attributes["start_indices"], op.attributes["strides"]
    limits = list(op.attributes["limit_indices"])
    for dim in range(source.rank):
        if not source.axes(dim):
            continue
        size, part = source.type.shape[dim], source.local.shape[dim]
        if (starts[dim], limits[dim]) != (0, size) or part % strides[dim]:
            what = f"dimension {dim} is sharded but the slice is not a full slice and requires device communication."
            why = f"it takes {starts[dim]}:{limits[dim]}:{strides[dim]} of {size}, of which a device has {part}"
            raise out.error(what, why=why, fix=_FIX)
        limits[dim] = part
    attributes = {"start_indices": tuple(starts), "limit_indices": tuple(limits), "strides": tuple(strides)}
    return (out.value("slice", op.operands, result.local, attributes),)


def concatenate(op: Op, out: Emitter) -> None:
    """Keeps a concatenation, unless its dimension is sharded."""
    dim = op.attributes["dimension"]
    if out.facts.results[0].axes(dim):
        raise out.error(f"dimension {dim} is sharded but the concatenation is on this dimension.", fix=_FIX)
    for i, operand in enumerate(out.facts.operands):
        if operand.axes(dim):
            raise out.error(f"operand {i} is sharded on concatenation dimension {dim}. This is not supported.", fix=_FIX)


def window(op: Op, out: Emitter) -> None:
    """Stays as it is, unless a dimension is cut along which windows are more than single elements."""
    attributes = op.attributes
    rank = out.facts.operands[0].rank
    ones = (1,) * rank
    for dim in range(rank):
        if not any(tensor.axes(dim) for tensor in (*out.facts.operands, *out.facts.results)):
            continue
        single = attributes["window_dimensions"][dim] == attributes["window_strides"][dim] == 1
        if not single or attributes["padding"][dim] != (0, 0) or attributes.get("base_dilations", ones)[dim] != 1:
            raise out.error(f"In op {op.name} dimension {dim} is sharded but is not a pass-through dimension.", fix=_FIX)


def dynamic_slice(op: Op, out: Emitter) -> Sequence[Value]:
    """A slice of the part; dimensions that are cut are kept whole."""
    source, result = out.facts.operands[0], out.facts.results[0]
    _check_same_axes(out, source, result)
    for dim in range(source.rank):
        if source.axes(dim) and source.type.shape[dim] != result.type.shape[dim]:
            raise _not_whole(out, dim)
    return out.rebuild(with_arrays(op.attributes, {"slice_sizes": result.local.shape})).results


def dynamic_update_slice(op: Op, out: Emitter) -> None:
    """Keeps an update, unless it covers a part of a sharded dimension."""
    source, update = out.facts.operands[:2]
    for dim in range(source.rank):
        if source.axes(dim) and source.type.shape[dim] != update.type.shape[dim]:
            raise _not_whole(out, dim)


def _not_whole(out: Emitter, dim: int) -> ShardyError:
    return out.error(f"dimension {dim} is sharded but the slice is not a full slice and requires device communication.", fix=_FIX)


def _check_same_axes(out: Emitter, source: LocalTensor, result: LocalTensor) -> None:
    """Sees to it that an operand and the result are cut along the same axes."""
    for dim in range(source.rank):
        before, after = source.axes(dim), result.axes(dim)
        if before != after:
            texts = (f"[{', '.join(f'axis_ref{axis}' for axis in axes)}]" for axes in (before, after))
            raise out.error(
                f"dimension {dim} has mismatched sharding axes ({' vs '.join(texts)}).",
                why="This requires a reshard which should have been handled by previous passes.",
                fix=FULL_RESHARDS,
            )


CONVERSIONS: dict[str, Conversion] = {
    "stablehlo.concatenate": concatenate,
    "stablehlo.dynamic_slice": dynamic_slice,
    "stablehlo.dynamic_update_slice": dynamic_update_slice,
    "stablehlo.pad": pad,
    "stablehlo.reduce_window": window,
    "stablehlo.select_and_scatter": window,
    "stablehlo.slice": slice_,
}
