"""The part of a tensor that each device has: tables over devices, and the entry of the device that runs."""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.dialect import AxisRef, Mesh
from shardy_py.dialect.axis import num_shards
from shardy_py.dialect.devices import device_ids, shard_index
from shardy_py.ir import TensorType, Value
from shardy_py.opt.partitioner.convert_global_to_local.emitter import Emitter


def shard_table(out: Emitter, axes: Sequence[AxisRef], mesh: Mesh, entries: Sequence[int]) -> list[int]:
    """`entries[i]` for each device, by its id, where `i` is the part of the dimension that it has."""
    table = [0] * mesh.size
    for position, device in enumerate(device_ids(mesh)):
        table[device] = entries[part_of(out, position, axes, mesh)]
    return table


def part_of(out: Emitter, position: int, axes: Sequence[AxisRef], mesh: Mesh) -> int:
    """`shard_index` as the options of the pass say."""
    return shard_index(position, axes, mesh, from_minor=not out.world.options.sub_axes_in_order)


def emit_device(out: Emitter) -> Value:
    """Adds what gives the id of the running device."""
    return out.convert(out.value("partition_id", (), TensorType((), "uint32")), "int64")


def emit_lookup(out: Emitter, table: Sequence[int], device: Value, dtype: str = "int64") -> Value:
    """Adds what gives a device's entry of a table, as a vector of one element."""
    texts = [str(bool(entry)).lower() if dtype == "bool" else str(entry) for entry in table]
    entries = out.constant(f"[{', '.join(texts)}]", TensorType((len(table),), dtype))
    return out.dynamic_slice(entries, (device,), (1,))


def emit_entry(out: Emitter, axes: Sequence[AxisRef], mesh: Mesh, entries: Sequence[int]) -> Value:
    """Adds what gives `entries[i]`, where `i` is the part of a dimension that the running device has."""
    return out.reshape(emit_lookup(out, shard_table(out, axes, mesh, entries), emit_device(out)), ())


def emit_offset(out: Emitter, axes: Sequence[AxisRef], mesh: Mesh, size: int) -> Value:
    """Adds what gives the first index of the running device's part of a dimension; `size` is that of a part."""
    parts = num_shards(axes, mesh)
    return emit_entry(out, axes, mesh, range(0, parts * size, size) if size else [0] * parts)


def emit_part(out: Emitter, value: Value, axes: Sequence[Sequence[AxisRef]], mesh: Mesh, sizes: Sequence[int]) -> Value:
    """Adds a slice of the running device's part of a value."""
    starts = [emit_offset(out, dim, mesh, size) if dim else out.integer(0) for dim, size in zip(axes, sizes, strict=True)]
    return out.dynamic_slice(value, starts, sizes)
