"""Attributes of StableHLO collectives: which devices take part, and over which channel."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from shardy_py.dialect import AxisRef, Mesh, TensorSharding
from shardy_py.dialect.axis import bounds
from shardy_py.ir.attribute_text import AttributeText
from shardy_py.passes.partitioner.convert_global_to_local.devices import device_ids, shard_index
from shardy_py.passes.partitioner.convert_global_to_local.emitter import Emitter
from shardy_py.passes.replica_groups import MESH_AXES


def replica_groups(axes: Sequence[AxisRef], mesh: Mesh) -> list[list[int]]:
    """The devices that differ along some axes alone, group by group.

    Args:
        axes: The axes, from major to minor: the order within a group.
        mesh: Their mesh; the groups follow the order of its other axes.

    Example:
        >>> replica_groups([AxisRef("x")], Mesh([("x", 2), ("y", 2)]))
        [[0, 2], [1, 3]]
    """
    others = remaining_axes(axes, mesh)
    groups: dict[int, dict[int, int]] = {}
    for position, device in enumerate(device_ids(mesh)):
        groups.setdefault(shard_index(position, others, mesh), {})[shard_index(position, axes, mesh)] = device
    return [[group[i] for i in sorted(group)] for _, group in sorted(groups.items())]


def remaining_axes(axes: Sequence[AxisRef], mesh: Mesh) -> list[AxisRef]:
    """The axes of a mesh, or the parts of them, that are not among some axes, in the order of the mesh."""
    remaining: list[AxisRef] = []
    for name, size in mesh.shape.items():
        taken = sorted(bounds(axis, mesh) for axis in axes if axis.name == name)
        begin = 1
        for start, end in (*taken, (size, size)):
            if start > begin:
                remaining.append(AxisRef(name) if (begin, start) == (1, size) else AxisRef(name, begin, start // begin))
            begin = end
    return remaining


def collective_attributes(out: Emitter, axes: Sequence[AxisRef], sharding: TensorSharding, *, global_ids: bool = True) -> dict[str, object]:
    """Replica groups, a channel of its own and, unless it has none, `use_global_device_ids` of a collective.

    Args:
        out: Whose program's channels are counted.
        axes: The axes that the devices of a group differ along.
        sharding: Over the mesh of the axes.
        global_ids: Whether the op says that its groups are lists of device ids.
    """
    mesh = out.world.mesh(sharding)
    attributes: dict[str, object] = {"channel_handle": channel(out)}
    # StableHLO takes SDY's axes of a mesh that has a name alone.
    if out.world.options.enable_rgv3 and isinstance(sharding.mesh, str):
        listed = ", ".join(f"#sdy<axis_ref{axis}>" for axis in axes)
        attributes["replica_groups"] = AttributeText(f"{MESH_AXES}mesh = {sharding.mesh_text()}, axes = [{listed}]>")
    else:
        attributes["replica_groups"] = matrix(replica_groups(axes, mesh))
    if global_ids:
        attributes["use_global_device_ids"] = AttributeText("unit")
    return attributes


def channel(out: Emitter) -> AttributeText:
    """A fresh channel."""
    return AttributeText(f"#stablehlo.channel_handle<handle = {out.world.next_channel()}, type = 1>")


def matrix(rows: Sequence[Sequence[int]]) -> AttributeText:
    """A matrix of integers."""
    text = ", ".join(f"[{', '.join(map(str, row))}]" for row in rows)
    return AttributeText(f"dense<[{text}]> : tensor<{len(rows)}x{len(rows[0])}xi64>")


def flat(axes: Sequence[Sequence[AxisRef]]) -> list[AxisRef]:
    """All axes of several dimensions, in order."""
    return list(itertools.chain.from_iterable(axes))
