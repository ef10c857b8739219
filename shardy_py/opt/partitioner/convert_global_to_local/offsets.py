"""Index vectors of gathers and scatters: offsets of parts, spread to the shape of the indices."""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.ir import TensorType, Value
from shardy_py.opt.partitioner.convert_global_to_local.devices import emit_offset
from shardy_py.opt.partitioner.convert_global_to_local.emitter import Emitter
from shardy_py.opt.partitioner.convert_global_to_local.facts import LocalTensor


def part_offset(out: Emitter, tensor: LocalTensor, dim: int) -> Value:
    """Adds what gives the first index of the running device's part along a dimension that is cut."""
    assert tensor.sharding is not None
    return emit_offset(out, tensor.axes(dim), out.world.mesh(tensor.sharding), tensor.local.shape[dim])


def spread(out: Emitter, components: Sequence[Value], indices: Value, vector_dim: int) -> Value:
    """Adds a tensor of the shape of the indices whose vectors have these components."""
    shape = indices.type.shape
    if len(components) == 1:
        return out.broadcast(components[0], shape)
    parts = [out.reshape(component, (1,)) for component in components]
    vector = TensorType((len(parts),), indices.type.dtype)
    return out.broadcast(out.value("concatenate", parts, vector, {"dimension": 0}), shape, (vector_dim,))
