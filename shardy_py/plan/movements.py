"""The collectives of a plan, and the bytes that each brings to a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.dialect.axis import Axes, num_shards, sort_and_merge
from shardy_py.dialect.collectives import AXES_OF, moved_axes
from shardy_py.dialect.format import format_axis
from shardy_py.ir import Op
from shardy_py.ir.pieces import local_bytes
from shardy_py.passes.export.collective_bytes import received as received


@dataclass(frozen=True, slots=True)
class Movement:
    """One collective.

    Attributes:
        kind: `all_slice`, `all_gather`, `all_to_all`, `collective_permute`, `all_reduce`, `reduce_scatter`, `reshard` where a value goes to
            a mesh with other axes, `sharded_to_unreduced` or `replicated_to_unreduced`.
        axes: The mesh axes it is over, in mesh order; none for a `collective_permute`, which exchanges pieces between any devices.
        group: Number of devices that exchange data with each other.
        bytes_per_device: Bytes that each device receives; see `Reshard`.
    """

    kind: str
    axes: Axes
    group: int
    bytes_per_device: int

    def __str__(self) -> str:
        return f"{self.kind}({','.join(map(format_axis, self.axes))})" if self.axes else self.kind


MOVING_OPS = frozenset((*AXES_OF, "sdy.collective_permute", "sdy.reshard"))
"""Ops that `movement_of` describes."""


def movement_of(op: Op, source: TensorSharding | None, meshes: Mapping[str, Mesh]) -> Movement:
    """Describes a collective of the SDY dialect."""
    target = op.result.sharding
    mesh = None if target is None else target.mesh_in(meshes)
    axes = moved_axes(op.attributes[AXES_OF[op.name]]) if op.name in AXES_OF else ()
    axes = axes if mesh is None else sort_and_merge(axes, mesh)
    group = 1
    if mesh is not None:
        group = num_shards(axes, mesh) if axes else mesh.size
    kind = op.name.removeprefix("sdy.")
    before, after = local_bytes(op.operands[0].type, source, meshes), local_bytes(op.result.type, target, meshes)
    return Movement(kind, axes, group, received(kind, group, before, after))


def format_bytes(count: int) -> str:
    """A number of bytes in binary units.

    Example:
        >>> format_bytes(0), format_bytes(1536), format_bytes(5 << 30)
        ('0 B', '1.5 KiB', '5 GiB')
    """
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1024:
            return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"
    return f"{value / 1024:.4g} TiB"
