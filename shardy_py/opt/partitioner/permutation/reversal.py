"""Reversals of sharded dimensions, with each part sent to the device that needs it."""

from __future__ import annotations

from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.ir import Op
from shardy_py.opt.partitioner import local_ops
from shardy_py.opt.partitioner.permutation import halo
from shardy_py.opt.partitioner.permutation.meshes import MeshNames, reversed_mesh
from shardy_py.passes.dataflow import get_sharding
from shardy_py.passes.export.explicit_reshards.edits import Edits

REVERSE = "stablehlo.reverse"


def reverse_parts(op: Op, names: MeshNames, edits: Edits, *, whole_mesh_ids: bool) -> bool:
    """Makes every device reverse its own part, after a reshard that exchanges the parts.

    The operand goes to a mesh with its devices in reverse order along the axes of reversed dimensions. A dimension that the axes do not
    divide is padded; its padding is moved to the low end, so that it is at the high end again after the reversal, and is sliced off.
    The result is sharded as the operand.

    Returns:
        Whether the op is dealt with; not where the padding is larger than a part, or other dimensions forbid a manual computation.
    """
    value, result = op.operands[0], op.result
    sharding = get_sharding(value)
    dims: tuple[int, ...] = tuple(op.attributes["dimensions"])
    if sharding is None or not any(sharding.dims[dim].axes for dim in dims):
        return True
    mesh = sharding.mesh_in(names.program.meshes)
    shape = local_ops.tensor_type(value).shape
    padding = _padding(shape, dims, sharding, mesh)
    if padding is None:
        return False
    ops: list[Op] = []
    if padding:
        zero = local_ops.constant(0, local_ops.tensor_type(value).dtype, op)
        high = tuple(padding.get(dim, 0) for dim in range(len(shape)))
        padded = local_ops.pad(value, zero.result, (0,) * len(shape), high, op, sharding)
        moved = halo.shift(padded.result, sharding, mesh, padding, op, whole_mesh_ids=whole_mesh_ids)
        ops += (zero, padded, moved)
        value = moved.result
        result.type = local_ops.tensor_type(value)
    other = reversed_mesh(mesh, [axis for dim in dims for axis in sharding.dims[dim].axes])
    wish = f"{sharding.mesh}_reversed" if isinstance(sharding.mesh, str) else "mesh_reversed"
    exchanged = sharding.with_mesh(names.name(other, wish))
    reshard = Op("sdy.reshard", (value,), (value.type,), {}, location=op.location, sharding=exchanged)
    op.set_operand(0, reshard.result)
    edits.before(op, *ops, reshard)
    result.sharding = sharding
    if padding:
        sliced = local_ops.slice_(result, (0,) * len(shape), shape, op, sharding)
        result.replace_uses(sliced.result, lambda user, _: user is sliced)
        edits.after(op, sliced)
    return True


def _padding(shape: tuple[int, ...], dims: tuple[int, ...], sharding: TensorSharding, mesh: Mesh) -> dict[int, int] | None:
    """Reversed dimension -> the padding that makes it a multiple of its shards; None where parts cannot be shifted by as much."""
    padding: dict[int, int] = {}
    for dim in sorted(dims):
        shards = sharding.dims[dim].shards(mesh)
        missing = -shape[dim] % shards
        if missing * shards > shape[dim] + missing:
            return None
        if missing:
            padding[dim] = missing
    if padding:
        manual = {axis.name for dim in padding for axis in sharding.dims[dim].axes}
        padded = [size + padding.get(dim, 0) for dim, size in enumerate(shape)]
        if halo.local_shape(padded, sharding, manual, mesh) is None:
            return None
    return padding
