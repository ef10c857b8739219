"""Moving the elements of a sharded tensor by less than the part of a device."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence

from shardy_py.dialect import AxisRef, Mesh, TensorSharding
from shardy_py.dialect.devices import device_groups
from shardy_py.ir import Block, Op, TensorType, Value
from shardy_py.opt.partitioner import local_ops
from shardy_py.passes.dataflow import MANUAL_COMPUTATION, without_manual_axes


def local_shape(shape: Sequence[int], sharding: TensorSharding, manual: Collection[str], mesh: Mesh) -> tuple[int, ...] | None:
    """The shape of a part inside a manual computation; None where there can be none.

    This is so where the manual axes do not divide a dimension, or come after other axes of it.
    """
    local: list[int] = []
    for size, dim in zip(shape, sharding.dims, strict=True):
        is_manual = [axis.name in manual for axis in dim.axes]
        shards = math.prod(axis.size_in(mesh) for axis, inside in zip(dim.axes, is_manual, strict=True) if inside)
        if size % shards or is_manual != sorted(is_manual, reverse=True):
            return None
        local.append(size // shards)
    return tuple(local)


def shift(value: Value, sharding: TensorSharding, mesh: Mesh, by: dict[int, int], like: Op, *, whole_mesh_ids: bool) -> Op:
    """A manual computation that moves elements `by` at most a device's part to higher indices; zeros come in at the low end."""
    names = {axis.name for dim in by for axis in sharding.dims[dim].axes}
    manual = tuple(name for name in mesh.axis_names if name in names)
    type_ = local_ops.tensor_type(value)
    shape = local_shape(type_.shape, sharding, manual, mesh)
    assert shape is not None
    body = Block([TensorType(shape, type_.dtype)])
    inside = without_manual_axes(sharding, manual)
    moved = body.arguments[0]
    for dim, amount in by.items():
        axes = sharding.dims[dim].axes
        pairs = neighbours(axes, mesh.axis_names if whole_mesh_ids else manual, mesh)
        if whole_mesh_ids and mesh.device_ids:
            pairs = sorted((mesh.device_ids[a], mesh.device_ids[b]) for a, b in pairs)
        moved = _shift(body, moved, dim, amount, inside, pairs, like)
    body.append(Op("sdy.return", (moved,), (), location=like.location))
    attributes = {"in_shardings": (sharding,), "out_shardings": (sharding,), "manual_axes": manual}
    return Op(MANUAL_COMPUTATION, (value,), (type_,), attributes, (body,), location=like.location)


def neighbours(axes: Sequence[AxisRef], names: Sequence[str], mesh: Mesh) -> list[tuple[int, int]]:
    """`(device, device with the next part)` along a dimension, by number among the devices of some axes.

    Example:
        >>> neighbours([AxisRef("y"), AxisRef("x")], ("x", "y"), Mesh([("x", 2), ("y", 2)]))
        [(0, 2), (1, 3), (2, 1)]
    """
    groups = device_groups(tuple(axes), Mesh([(name, mesh.shape[name]) for name in names]))
    return sorted(pair for group in groups for pair in itertools.pairwise(group))


def _shift(body: Block, value: Value, dim: int, amount: int, sharding: TensorSharding, pairs: Sequence[tuple[int, int]], like: Op) -> Value:
    shape = local_ops.tensor_type(value).shape
    size = shape[dim]

    def part(start: int, limit: int) -> Value:
        starts = tuple(start if d == dim else 0 for d in range(len(shape)))
        limits = tuple(limit if d == dim else n for d, n in enumerate(shape))
        return body.append(local_ops.slice_(value, starts, limits, like, sharding)).result

    sent = value if amount == size else part(size - amount, size)
    received = body.append(local_ops.collective_permute(sent, pairs, like, sharding)).result
    if amount == size:
        return received
    return body.append(local_ops.concatenate((received, part(0, size - amount)), dim, like, sharding)).result
