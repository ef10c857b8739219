"""Ops that XLA's partitioner computes wrongly, or fails on, under some shardings, and that are partitioned here in its place.

Seen with jaxlib 0.10.2 and 0.12.0 on CPU, with Shardy and with GSPMD, in the output of the partitioner; so other platforms have the faults
too, except where noted. Each family has a predicate below, which documents the cause. Predicates depend on the number of parts of each
dimension, and hold for more parts if they hold for few: `cut_in_any_way` decides whether any sharding puts an op at risk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from shardy_py.dialect import Mesh
from shardy_py.dialect.axis import Axes
from shardy_py.ir import Op, Value
from shardy_py.ir.operation import Operation, OperationTensor
from shardy_py.partition.windows import is_cumulative

Parts = Callable[[Any], tuple[int, ...]]
"""The number of parts of each dimension of an operand or a result."""


def is_mispartitioned(op: Operation, parts: Parts) -> bool:
    """Whether XLA may get an op wrong."""
    at_risk = AT_RISK.get(op.name)
    if at_risk is None or not all(v.type.size for v in op.results):
        return False
    return at_risk(op, parts) if all(v.type.size for v in op.operands) else _of_nothing(op, parts)


def is_mispartitioned_product(op: Op) -> bool:
    """Whether XLA may get a product with batches wrong: both sides cut along a summed dimension by an axis that cuts the result too.

    Partial sums are scattered along that axis then. Where the batches of the operands and of the result are cut by different axes as well,
    devices are lined up by the wrong ones, and numbers come from other batches. This depends on axes, which `Parts` do not have.

    `is_misaligned_product` does not cover it: that compares the orders of three axes or more, and two suffice here, if their sizes differ.
    On a mesh with x=2 and y=4, batches cut by y and sums by x give a wrong result with batches cut by x and rows by y (jaxlib 0.10.2).
    """
    a, (lhs, rhs), result = op.attributes, op.operands, op.result
    of_lhs, of_rhs = a["lhs_batching_dimensions"], a["rhs_batching_dimensions"]
    batches = zip(of_lhs, of_rhs, range(len(of_lhs)), strict=True)
    if all(_axes(lhs, i) == _axes(rhs, j) == _axes(result, k) for i, j, k in batches):
        return False
    sums = zip(a["lhs_contracting_dimensions"], a["rhs_contracting_dimensions"], strict=True)
    summed = {axis.name for i, j in sums for axis in _axes(lhs, i) if axis.name in {other.name for other in _axes(rhs, j)}}
    return any(axis.name in summed for d in range(result.type.rank) for axis in _axes(result, d))


def _axes(value: Value, dim: int) -> Axes:
    return () if value.sharding is None or not value.sharding.rank else value.sharding.dims[dim].axes


def as_sharded(meshes: Mapping[str, Mesh]) -> Parts:
    """The parts of final shardings."""

    def parts(value: Value) -> tuple[int, ...]:
        rank, sharding = value.type.rank, value.sharding
        if sharding is None or not sharding.rank:
            return (1,) * rank
        mesh = sharding.mesh_in(meshes)
        cut = tuple(dim.shards(mesh) for dim in sharding.dims[:rank])
        return (*cut, *(1,) * (rank - len(cut)))

    return parts


def cut_in_any_way(meshes: Mapping[str, Mesh]) -> Parts:
    """Every dimension of several elements cut over all devices, so that every size that their number does not divide is uneven."""
    devices = max((mesh.size for mesh in meshes.values()), default=1)
    return lambda value: tuple(devices if n > 1 else 1 for n in value.type.shape)


def _is_cut(value: OperationTensor, parts: Parts, dims: Iterable[int]) -> bool:
    cut = parts(value)
    return any(cut[d] > 1 for d in dims)


def _is_uneven(value: OperationTensor, parts: Parts, dims: Iterable[int]) -> bool:
    cut = parts(value)
    return any(value.type.shape[d] % cut[d] for d in dims)


def _of_nothing(op: Operation, parts: Parts) -> bool:
    """Anything cut around an operand without elements: of its parts, XLA pads those that are uneven, and ends the process."""
    return any(_is_cut(v, parts, range(v.type.rank)) for v in (*op.operands, *op.results))


def _convolution(op: Operation, parts: Parts) -> bool:
    """Cut along what it sums over, or with a result that is cut in other places than its image: sums over too many devices.

    Partial sums are added over devices that hold the same part, which makes a multiple of the right result: weight gradients of grouped
    convolutions under data parallelism on a mesh with a further axis. Where windows are strided or the image is dilated, halos come from
    the wrong places. So spatial dimensions are never left to XLA, nor anything of groups, whose gradients are of the first kind.
    """
    a = op.attributes
    sides = zip((*op.operands, op.result), ("input", "kernel", "output"), strict=True)
    if any(_is_cut(v, parts, a[f"{side}_spatial_dimensions"]) for v, side in sides):
        return True
    grouped = a.get("batch_group_count", 1) * a.get("feature_group_count", 1) > 1
    return grouped and any(_is_cut(v, parts, range(v.type.rank)) for v in (*op.operands, op.result))


def _pad(op: Operation, parts: Parts) -> bool:
    """Elements taken away, or put in between; or an uneven operand, behind the end of which the padding should be.

    The elements that a whole operand loses at its beginning are not counted where the parts of the result begin. Room behind the end of an
    uneven operand is taken for padding, whatever its contents.
    """
    a = op.attributes
    amounts = list(zip(a["edge_padding_low"], a["edge_padding_high"], a["interior_padding"], strict=True))
    operand, result = op.operands[0], op.result
    changed = [d for d, (low, high, between) in enumerate(amounts) if low < 0 or high < 0 or between]
    grown = [d for d, amount in enumerate(amounts) if any(amount)]
    return _is_cut(operand, parts, changed) or _is_cut(result, parts, changed) or _is_uneven(operand, parts, grown)


def _reduce(op: Operation, parts: Parts) -> bool:
    """Some platforms combine over devices only by sums, products and extrema, of truth values too, and complex numbers only by sums."""
    dtype = op.operands[0].type.dtype
    single = len(op.results) == 1  # argmin and argmax have two, and are combined otherwise
    special = (
        op.primitive in ("reduce", "reduce_xor")
        or (op.primitive in ("reduce_and", "reduce_or") and dtype != "bool")
        or (op.primitive in ("reduce_max", "reduce_min") and dtype.startswith("complex"))
    )
    return single and special and _is_cut(op.operands[0], parts, op.attributes["dimensions"])


def _windows(op: Operation, parts: Parts) -> bool:
    """Windows along a dimension that is cut, and extrema of windows however they are cut, of whose tangents the same holds.

    Two cumulative ops of one array share one padding, so that the second reads the padding of the first. Gradients lose elements that go to
    a neighbour, or get it twice, or pad between elements. Reductions of several values, as tangents of extrema are, end the process where
    these have to be moved.
    """
    a, rank = op.attributes, op.operands[0].type.rank
    ones = (1,) * rank
    steps = zip(a["window_dimensions"], a["window_strides"], a.get("base_dilations") or ones, strict=True)
    slid = [d for d, step in enumerate(steps) if step != (1, 1, 1)]
    extreme = op.primitive in ("reduce_window_max", "reduce_window_min") and slid and not is_cumulative(op)
    dims = range(rank) if len(op.results) > 1 or extreme else slid
    return any(_is_cut(v, parts, dims) for v in (*op.operands, *op.results) if v.type.rank == rank)


def _fft(op: Operation, parts: Parts) -> bool:
    """A transformed dimension whose parts cannot be divided again by as many, which ends the process."""
    (operand,) = op.operands
    cut = parts(operand)
    first = operand.type.rank - len(op.attributes["fft_length"])
    return any(cut[d] > 1 and operand.type.shape[d] % cut[d] ** 2 for d in range(first, operand.type.rank))


def _scatter(op: Operation, parts: Parts) -> bool:
    """Updates in uneven parts, single updates of a dimension that is cut, narrow indices, and batches of which several dimensions are cut.

    Padding behind the end of uneven indices and updates is scattered too. Where the operand is cut along a dimension that is longer than
    its indices can count, offsets of parts overflow. A single update is lowered to a slice, which is updated and put
    back; where the operand is itself a slice of something whole, the two are made one, with another bound for where they may begin.
    Where a dimension is a batch and the indices or the updates are cut along another one too, over the same axes or others, groups of
    devices are lined up that are not as many, which ends the process.
    """
    a, inputs = op.attributes, len(op.results)
    dims = _Dims(a["update_window_dims"], a["inserted_window_dims"], a["input_batching_dims"], a["index_vector_dim"])
    if dims.batching and _cut_among(op.operands[inputs], op.operands[inputs + 1], dims, parts) > 1:
        return True
    return _indexed(op.operands[0], op.operands[inputs], op.operands[inputs + 1], dims, parts)


def _gather(op: Operation, parts: Parts) -> bool:
    """Index vectors that are cut, which XLA refuses around a cut operand; or a gather whose derivative would be a scatter at risk.

    `jax.grad` may run outside of the planned function, so the derivative counts wherever there is one.
    """
    a, (operand, indices) = op.attributes, op.operands
    dims = _Dims(a["offset_dims"], a["collapsed_slice_dims"], a["operand_batching_dims"], a["index_vector_dim"])
    if _is_cut_along_vectors(indices, dims, parts):
        return True
    return _is_differentiable(op.result) and _indexed(operand, indices, op.result, dims, parts)


def _slice(op: Operation, parts: Parts) -> bool:
    """A strided slice of a single element along a dimension that is cut: XLA looks for it in another part."""
    (operand,), strides = op.operands, op.attributes["strides"]
    lone = [d for d, step in enumerate(strides) if step > 1 and op.result.type.shape[d] == 1]
    return _is_cut(operand, parts, lone)


def _sort(op: Operation, parts: Parts) -> bool:
    """Results in uneven parts: the derivative of a sort gathers, and the derivative of that scatters."""
    return any(_is_differentiable(v) and _is_uneven(v, parts, range(v.type.rank)) for v in op.results)


def _is_differentiable(value: OperationTensor) -> bool:
    return value.type.dtype.startswith(("float", "bfloat", "complex"))


class _Dims(NamedTuple):
    """Dimensions of a gather or a scatter."""

    windows: Sequence[int]
    collapsed: Sequence[int]
    batching: Sequence[int]
    vector: int


def _cut_among(indices: OperationTensor, slices: OperationTensor, dims: _Dims, parts: Parts) -> int:
    """The number of dimensions shared by indices and slices that either is cut along."""
    batch = [d for d in range(indices.type.rank) if d != dims.vector]
    among = [d for d in range(slices.type.rank) if d not in dims.windows]
    return sum(_is_cut(indices, parts, [d]) or _is_cut(slices, parts, [e]) for d, e in zip(batch, among, strict=True))


def _is_cut_along_vectors(indices: OperationTensor, dims: _Dims, parts: Parts) -> bool:
    return dims.vector < indices.type.rank and _is_cut(indices, parts, [dims.vector])


def _indexed(operand: OperationTensor, indices: OperationTensor, slices: OperationTensor, dims: _Dims, parts: Parts) -> bool:
    batch = [d for d in range(indices.type.rank) if d != dims.vector]
    among = [d for d in range(slices.type.rank) if d not in dims.windows]
    if _is_uneven(slices, parts, among) or _is_uneven(indices, parts, batch) or _is_cut_along_vectors(indices, dims, parts):
        return True
    sliced = [d for d in range(operand.type.rank) if d not in dims.collapsed and d not in dims.batching]
    partial = {d: slices.type.shape[w] for d, w in zip(sliced, dims.windows, strict=True) if slices.type.shape[w] != operand.type.shape[d]}
    counted = np.iinfo(indices.type.dtype).max
    if _is_cut(operand, parts, [d for d in (*partial, *dims.collapsed) if operand.type.shape[d] > counted]):
        return True
    single = math.prod(indices.type.shape[d] for d in batch) == 1
    return _is_cut(operand, parts, [*partial, *dims.collapsed] if single else [d for d, length in partial.items() if length > 1])


AT_RISK: Mapping[str, Callable[[Operation, Parts], bool]] = {
    "stablehlo.convolution": _convolution,
    "stablehlo.fft": _fft,
    "stablehlo.gather": _gather,
    "stablehlo.pad": _pad,
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _windows,
    "stablehlo.scatter": _scatter,
    "stablehlo.select_and_scatter": _windows,
    "stablehlo.slice": _slice,
    "stablehlo.sort": _sort,
}
"""Op -> whether XLA may get it wrong."""

OPS: Mapping[str, str] = {
    **dict.fromkeys(("cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "select_and_gather_add"), "stablehlo.reduce_window"),
    **dict.fromkeys(("reduce_window", "reduce_window_max", "reduce_window_min", "reduce_window_sum"), "stablehlo.reduce_window"),
    **dict.fromkeys(("reduce", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_xor"), "stablehlo.reduce"),
    **dict.fromkeys(("scatter", "scatter-add", "scatter-max", "scatter-min", "scatter-mul", "scatter-sub"), "stablehlo.scatter"),
    "conv_general_dilated": "stablehlo.convolution",
    "fft": "stablehlo.fft",
    "gather": "stablehlo.gather",
    "pad": "stablehlo.pad",
    "select_and_scatter_add": "stablehlo.select_and_scatter",
    "slice": "stablehlo.slice",
    **dict.fromkeys(("sort", "top_k"), "stablehlo.sort"),
}
"""Primitive -> the op of its lowering that may be at risk."""
