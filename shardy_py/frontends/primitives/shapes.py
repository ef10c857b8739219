"""Primitives that move or repeat elements: broadcast, reshape, transpose, concatenate, pad, slices, iota."""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.frontends.primitives.template import Builder, OpsTemplate, TemplateBuilder, ints, permuted
from shardy_py.ir import TensorType

_CONCATENATE_AT_MOST = 16


def _broadcast_in_dim(b: Builder) -> OpsTemplate:
    aval = b.out_avals[0]
    extra = range(len(aval.shape), b.out_type.rank)
    return b.build((b.broadcast(0, b.out_type.shape, (*b.params["broadcast_dimensions"], *extra)),))


def _reshape(b: Builder) -> OpsTemplate:
    x = 0
    dimensions = b.params.get("dimensions")
    if b.name == "reshape" and dimensions is not None:
        x = b.op("stablehlo.transpose", (x,), permuted(b.type(x), dimensions), permutation=ints(dimensions))
    return b.build((b.op("stablehlo.reshape", (x,), b.out_type),))


def _transpose(b: Builder) -> OpsTemplate:
    extra = range(len(b.out_avals[0].shape), b.out_type.rank)
    return b.build((b.op("stablehlo.transpose", (0,), b.out_type, permutation=ints((*b.params["permutation"], *extra))),))


def _reverse(b: Builder) -> OpsTemplate:
    return b.build((b.op("stablehlo.reverse", (0,), b.out_type, dimensions=ints(b.params["dimensions"])),))


def _concatenate_tree(b: Builder, slots: Sequence[int], axis: int) -> int:
    """At most sixteen operands per op, as `_concatenate_tree`."""
    slots = list(slots)
    while len(slots) > 1:
        slots = [_concatenated(b, slots[i : i + _CONCATENATE_AT_MOST], axis) for i in range(0, len(slots), _CONCATENATE_AT_MOST)]
    return slots[0]


def _concatenated(b: Builder, slots: Sequence[int], axis: int) -> int:
    first = b.type(slots[0])
    size = sum(b.type(s).shape[axis] for s in slots)
    shape = (*first.shape[:axis], size, *first.shape[axis + 1 :])
    return b.op("stablehlo.concatenate", slots, TensorType(shape, first.dtype), dimension=axis)


def _concatenate(b: Builder) -> OpsTemplate:
    return b.build((_concatenate_tree(b, b.operands, int(b.params["dimension"])),))


def _slice_of(b: Builder, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int]) -> int:
    """A slice of the first operand."""
    shape = tuple(-(-(limit - start) // stride) for start, limit, stride in zip(starts, limits, strides))
    return b.op(
        "stablehlo.slice",
        (0,),
        TensorType(shape, b.type(0).dtype),
        start_indices=ints(starts),
        limit_indices=ints(limits),
        strides=ints(strides),
    )


def _slice(b: Builder) -> OpsTemplate:
    starts, limits = ints(b.params["start_indices"]), ints(b.params["limit_indices"])
    strides = ints(b.params["strides"] or (1,) * len(starts))
    extra = b.element_shape(b.out_avals[0])
    ones = (1,) * len(extra)
    return b.build((_slice_of(b, (*starts, *(0 for _ in extra)), (*limits, *extra), (*strides, *ones)),))


def _split(b: Builder) -> OpsTemplate:
    axis, start, outs = int(b.params["axis"]), 0, []
    shape = b.type(0).shape
    for size in ints(b.params["sizes"]):
        starts = tuple(start if d == axis else 0 for d in range(len(shape)))
        limits = tuple(start + size if d == axis else n for d, n in enumerate(shape))
        outs.append(_slice_of(b, starts, limits, (1,) * len(shape)))
        start += size
    return b.build(outs)


def _pad(b: Builder) -> OpsTemplate:
    low, high, interior = zip(*b.params["padding_config"], strict=True) if b.params["padding_config"] else ((), (), ())
    attributes = {"edge_padding_low": ints(low), "edge_padding_high": ints(high), "interior_padding": ints(interior)}
    return b.build((b.op("stablehlo.pad", (0, 1), b.out_type, **attributes),))


def _iota(b: Builder) -> OpsTemplate:
    return b.build((b.op("stablehlo.iota", (), b.out_type, iota_dimension=int(b.params["dimension"])),))


def _bitcast(b: Builder) -> OpsTemplate:
    return b.build((b.op("stablehlo.bitcast_convert", (0,), b.out_type),))


def _empty(b: Builder) -> OpsTemplate:
    return b.build((b.constant(b.out_type.shape, b.out_type.dtype, 0),))


def _zeros_for(b: Builder, like: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Start indices of the dimensions that a PRNG key adds: one constant used `count` times by JAX, each made anew here."""
    dtype = b.type(like[0]).dtype if like else "int32"
    zero = b.constant((), dtype, 0) if count else 0
    return (zero,) * count


def _dynamic_slice(b: Builder) -> OpsTemplate:
    x, *starts = b.operands
    starts = (*starts, *_zeros_for(b, tuple(starts), len(b.element_shape(b.out_avals[0]))))
    return b.build((b.op("stablehlo.dynamic_slice", (x, *starts), b.out_type, slice_sizes=b.out_type.shape),))


def _dynamic_update_slice(b: Builder) -> OpsTemplate:
    x, update, *starts = b.operands
    starts = (*starts, *_zeros_for(b, tuple(starts), len(b.element_shape(b.out_avals[0]))))
    return b.build((b.op("stablehlo.dynamic_update_slice", (x, update, *starts), b.out_type),))


TEMPLATES: dict[str, TemplateBuilder] = {
    "bitcast_convert_type": _bitcast,
    "broadcast_in_dim": _broadcast_in_dim,
    "concatenate": _concatenate,
    "empty": _empty,
    "empty2": _empty,
    "iota": _iota,
    "pad": _pad,
    "reshape": _reshape,
    "rev": _reverse,
    "slice": _slice,
    "split": _split,
    "squeeze": _reshape,
    "transpose": _transpose,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
}
