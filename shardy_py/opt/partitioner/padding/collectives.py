"""Collectives on padded values: sharding ones pad before, gathering ones slice afterwards."""

from __future__ import annotations

from collections.abc import Iterable

from shardy_py.ir import Op
from shardy_py.opt.partitioner import local_ops
from shardy_py.opt.partitioner.local_ops import Ints
from shardy_py.opt.partitioner.padding.ops import slice_bounds
from shardy_py.opt.partitioner.padding.padder import Conversion, Padder
from shardy_py.passes.dataflow import get_sharding


def shard(padder: Padder, op: Op) -> None:
    """Pads the operand of an all-slice or reduce-scatter with zeros up to the size of the result."""
    _fill_operand(padder, op, padder.shape(padder.before(op.result), op.result.sharding))
    padder.ops.append(op)


def gather(padder: Padder, op: Op) -> None:
    """Gathers padded parts, and drops the padding of the gathered dimensions that the result does not have."""
    name = "gathering_axes" if op.name == "sdy.all_gather" else "axes"
    _gathered(padder, op, [dim for dim, axes in enumerate(op.attributes[name].lists) if axes.axes])


def exchange(padder: Padder, op: Op) -> None:
    """Pads the operand of an all-to-all where it becomes sharded, and slices the result where it no longer is."""
    params = op.attributes["params"].params
    shape = padder.shape(padder.before(op.result), op.result.sharding)
    _fill_operand(padder, op, tuple(map(max, op.operands[0].type.shape, shape)))
    _gathered(padder, op, [param.source for param in params])


def keep(padder: Padder, op: Op) -> None:
    """Keeps a collective that changes no dimension size."""
    operand, result = op.operands[0], op.result
    padder.resize(result, operand.type.shape)
    if operand in padder.zero:
        padder.zero.add(result)
    padder.exact[result] = padder.exact.get(operand, frozenset())
    padder.ops.append(op)


def _fill_operand(padder: Padder, op: Op, shape: Ints) -> None:
    """Pads the operand; the result is as large then, and its padding is zero where something was added."""
    operand = op.operands[0]
    filled = padder.fill(operand, shape, op)
    padder.resize(op.result, shape)
    padder.exact[op.result] = padder.exact.get(filled, frozenset())
    if filled is not operand:
        op.set_operand(0, filled)
        padder.zero.add(op.result)
        padder.zero.add(filled)


def _gathered(padder: Padder, op: Op, dims: Iterable[int]) -> None:
    operand, result = op.operands[0], op.result
    before = padder.before(result)
    after = operand.type.shape
    padder.resize(result, after)
    padder.ops.append(op)
    exact = padder.exact.get(operand, frozenset())
    padder.exact[result] = exact
    if operand in padder.zero:
        padder.zero.add(result)
    if all(before[dim] == after[dim] for dim in dims):
        return
    sharding = get_sharding(result)
    start, limit = (0,) * len(before), tuple(before)
    wanted = padder.shape(before, sharding)
    limit = slice_bounds(padder, op, sharding, after, (before, wanted), (start, limit, (1,) * len(before)))
    sliced = local_ops.slice_(result, start, limit, op, sharding)
    result.replace_uses(sliced.result, lambda user, _: user is sliced)
    padder.ops.append(sliced)
    padder.note(sliced.result, before)
    padder.exact[sliced.result] = exact & padder.padded_dims(sliced.result)
    if operand in padder.zero:
        padder.zero.add(sliced.result)


CONVERSIONS: dict[str, Conversion] = {
    "sdy.all_gather": gather,
    "sdy.all_reduce": keep,
    "sdy.all_slice": shard,
    "sdy.all_to_all": exchange,
    "sdy.collective_permute": keep,
    "sdy.reduce_scatter": shard,
    "sdy.replicated_to_unreduced": keep,
    "sdy.sharded_to_unreduced": gather,
}
