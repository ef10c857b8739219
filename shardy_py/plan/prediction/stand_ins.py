"""How ops are cut that run in another way than XLA's partitioner would have it, as it gets them wrong (`backends/xla_workarounds`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardy_py.dialect import AxisRef, Mesh, TensorSharding
from shardy_py.ir import Op
from shardy_py.plan.prediction.choices import Choice
from shardy_py.plan.prediction.layouts import Layout, layout_of, local_shape, parts
from shardy_py.plan.prediction.mispartitioned import MISPARTITIONED, is_mispartitioned
from shardy_py.plan.prediction.moves import Move, moves
from shardy_py.plan.prediction.variables import variable_sharding

Names = tuple[str, ...]


def stand_in(op: Op, mesh: Mesh) -> Choice | None:
    """How an op runs that XLA's partitioner is not left with; None of others.

    Args:
        op: With final shardings; a convolution or a reduction.
        mesh: Its mesh.
    """
    if op.name in _DIMENSIONS_OF:
        return _whole_along(op, _DIMENSIONS_OF[op.name](op), mesh)
    if op.name != "stablehlo.convolution" or op.primitive not in MISPARTITIONED:
        return None
    values = (*op.operands, op.result)
    shapes = [v.type.shape for v in values]
    region = convolution_region(op.attributes, shapes[:2], [variable_sharding(v) for v in values], mesh)
    if region is None:
        return None
    lhs, rhs, out = (_layout(cut, v.type.rank, mesh) for cut, v in zip((region.lhs, region.rhs, region.out), values))
    *given, wanted = (layout_of(v.sharding, v.type.rank, mesh) for v in values)
    brought = tuple(moves(shape, layout, read, mesh) for shape, layout, read in zip(shapes, given, (lhs, rhs)))
    summed = tuple(part for name in region.summed for part in parts(AxisRef(name), mesh))
    adding = (Move("all_reduce", summed, local_shape(shapes[2], out, mesh)),) if summed else ()
    return Choice((lhs, rhs), (out,), brought, ((*adding, *moves(shapes[2], out, wanted, mesh)),))


def _whole_along(op: Op, dims: frozenset[int], mesh: Mesh) -> Choice | None:
    """An op that has some dimensions of its operands whole, and of its result where that has them."""
    values = (*op.operands, *op.results)
    given = [layout_of(v.sharding, v.type.rank, mesh) for v in values]
    without = [tuple(() if d in dims else axes for d, axes in enumerate(layout)) for layout in given]
    count = len(op.operands)
    if op.name == "stablehlo.reduce":
        without[count:] = [tuple(axes for d, axes in enumerate(without[0]) if d not in dims)]
        unchanged = without[:count] == given[:count]
    else:
        unchanged = without == given
    if unchanged or not dims:
        return None
    steps = [moves(v.type.shape, a, b, mesh) for v, a, b in zip(op.operands, given, without)]
    after = [moves(v.type.shape, a, b, mesh) for v, a, b in zip(op.results, without[count:], given[count:])]
    return Choice(tuple(without[:count]), tuple(without[count:]), tuple(steps), tuple(after))


def _reduced(op: Op) -> frozenset[int]:
    """The dimensions of a reduction that some back ends cannot do across devices; those of several results are argmin and argmax."""
    if len(op.results) > 1 or op.primitive not in MISPARTITIONED or not is_mispartitioned(op.primitive, op.operands[0].type.dtype, ()):
        return frozenset()
    return frozenset(op.attributes["dimensions"])


def _spread(op: Op) -> frozenset[int]:
    """The dimensions that are padded between elements."""
    return frozenset(d for d, n in enumerate(op.attributes["interior_padding"]) if n and op.primitive == "pad")


def _overlapping(op: Op) -> frozenset[int]:
    """The dimensions along which windows overlap."""
    windows = zip(op.attributes["window_dimensions"], op.attributes["window_strides"])
    return frozenset(d for d, (size, stride) in enumerate(windows) if size > stride)


def _cumulated(op: Op) -> frozenset[int]:
    """The dimension that a running sum, product or extreme is along."""
    shape, attributes = op.operands[0].type.shape, op.attributes
    windows = zip(shape, attributes["window_dimensions"], attributes["padding"])
    return frozenset(d for d, (n, window, padding) in enumerate(windows) if window == n > 1 and sorted(padding) == [0, n - 1])


def _chosen(op: Op) -> frozenset[int]:
    """All dimensions of `top_k`, which XLA does not cut on CPUs."""
    return frozenset(range(op.operands[0].type.rank)) if op.primitive == "top_k" else frozenset()


_DIMENSIONS_OF: Mapping[str, Callable[[Op], frozenset[int]]] = {
    "stablehlo.pad": _spread,
    "stablehlo.reduce": _reduced,
    "stablehlo.reduce_window": _cumulated,
    "stablehlo.select_and_scatter": _overlapping,
    "stablehlo.sort": _chosen,
}


def _layout(cut: Mapping[int, Names], rank: int, mesh: Mesh) -> Layout:
    return tuple(tuple(part for name in cut.get(d, ()) for part in parts(AxisRef(name), mesh)) for d in range(rank))


@dataclass(frozen=True, slots=True)
class Region:
    """A convolution on pieces.

    Attributes:
        lhs: Axes of the dimensions of the image that stay cut.
        rhs: The same of the kernel.
        out: The same of the result.
        summed: The axes over which results are added up.
    """

    lhs: Mapping[int, Names]
    rhs: Mapping[int, Names]
    out: Mapping[int, Names]
    summed: Names


def convolution_region(
    attributes: Mapping[str, Any], shapes: Sequence[Sequence[int]], shardings: Sequence[TensorSharding | None], mesh: Mesh
) -> Region | None:
    """How a convolution is cut that stands in a region of its own; None of one that is left to XLA.

    Those are left to it that are cut along no spatial dimension and have no groups, and those whose image stays cut as it is.

    Args:
        attributes: Of the op.
        shapes: Global shapes of image and kernel.
        shardings: Of image, kernel and result.
        mesh: The mesh.
    """
    a = attributes
    lhs, rhs, out = shardings
    spatial = [a[f"{side}_spatial_dimensions"] for side in ("input", "kernel", "output")]
    batch_groups, feature_groups = a.get("batch_group_count", 1), a.get("feature_group_count", 1)
    spatially = any(map(is_cut, shardings, spatial))
    anyhow = any(s is not None and is_cut(s, range(s.rank)) for s in shardings)
    if not (spatially or (anyhow and batch_groups * feature_groups > 1)) or (spatially and _stays_cut(a, lhs, rhs, out)):
        return None
    image, kernel, result = ((a[f"{side}_{first}_dimension"], a[f"{side}_{second}_dimension"]) for side, first, second in _DIMENSIONS)
    left, right = shapes
    taken: set[str] = set()

    def fresh(axes: Names, size: int) -> Names:
        if taken & set(axes) or size % math.prod(mesh.shape[name] for name in axes):
            return ()
        taken.update(axes)
        return axes

    if batch_groups > 1:
        batch = features = fresh(whole_axes(lhs, image[0]) or whole_axes(rhs, kernel[1]), batch_groups)
        summed = within = fresh(whole_axes(lhs, image[1]) or whole_axes(rhs, kernel[0]), left[image[1]])
        out_batch: Names = ()
    else:
        batch = out_batch = fresh(whole_axes(lhs, image[0]), left[image[0]])
        if feature_groups > 1:
            within = features = fresh(whole_axes(lhs, image[1]) or whole_axes(rhs, kernel[1]), feature_groups)
            summed = ()
        else:
            features = fresh(whole_axes(rhs, kernel[1]), right[kernel[1]])
            summed = within = fresh(whole_axes(lhs, image[1]) or whole_axes(rhs, kernel[0]), left[image[1]])
    return Region(
        {image[0]: batch, image[1]: within}, {kernel[0]: summed, kernel[1]: features}, {result[0]: out_batch, result[1]: features}, summed
    )


_DIMENSIONS = (("input", "batch", "feature"), ("kernel", "input_feature", "output_feature"), ("output", "batch", "feature"))


def whole_axes(sharding: TensorSharding | None, dim: int) -> Names:
    """The axes of a dimension; none where parts of axes are used, which a region over the plain mesh cannot express."""
    if sharding is None or dim >= sharding.rank:
        return ()
    axes = sharding.dims[dim].axes
    return () if any(axis.size is not None for axis in axes) else tuple(axis.name for axis in axes)


def is_cut(sharding: TensorSharding | None, dims: Iterable[int]) -> bool:
    """Whether some of these dimensions are cut."""
    return sharding is not None and any(sharding.dims[d].axes for d in dims if d < sharding.rank)


def _stays_cut(a: Mapping[str, Any], lhs: TensorSharding | None, rhs: TensorSharding | None, out: TensorSharding | None) -> bool:
    """Whether image and result are cut alike and the kernel is whole."""
    if (
        a.get("batch_group_count", 1) > 1
        or (rhs is not None and is_cut(rhs, range(rhs.rank)))
        or is_cut(lhs, (a["input_feature_dimension"],))
        or is_cut(out, (a["output_feature_dimension"],))
    ):
        return False
    before = (a["input_batch_dimension"], *a["input_spatial_dimensions"])
    after = (a["output_batch_dimension"], *a["output_spatial_dimensions"])
    return all(whole_axes(lhs, i) == whole_axes(out, o) for i, o in zip(before, after))
