"""Slices and pads of padded values."""

from __future__ import annotations

from shardy_py.dialect import TensorSharding
from shardy_py.ir import Op
from shardy_py.opt.partitioner.attributes import set_arrays
from shardy_py.opt.partitioner.local_ops import Ints
from shardy_py.opt.partitioner.padding.padder import Conversion, Padder
from shardy_py.passes.dataflow import get_sharding


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


CONVERSIONS: dict[str, Conversion] = {"stablehlo.pad": pad, "stablehlo.slice": slice_}
