"""Attributes of StableHLO collectives: which devices take part, and over which channel."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from shardy_py.dialect import AxisRef, TensorSharding
from shardy_py.dialect.devices import device_groups
from shardy_py.ir.attribute_text import AttributeText
from shardy_py.opt.partitioner.convert_global_to_local.emitter import Emitter
from shardy_py.opt.replica_groups import MESH_AXES


def collective_attributes(out: Emitter, axes: Sequence[AxisRef], sharding: TensorSharding, *, global_ids: bool = True) -> dict[str, object]:
    """Replica groups, a channel of its own and, unless it has none, `use_global_device_ids` of a collective."""
    mesh = out.world.mesh(sharding)
    attributes: dict[str, object] = {"channel_handle": channel(out)}
    # StableHLO takes SDY's axes of a mesh that has a name alone.
    if out.world.options.enable_rgv3 and isinstance(sharding.mesh, str):
        listed = ", ".join(f"#sdy<axis_ref{axis}>" for axis in axes)
        attributes["replica_groups"] = AttributeText(f"{MESH_AXES}mesh = {sharding.mesh_text()}, axes = [{listed}]>")
    else:
        attributes["replica_groups"] = matrix(device_groups(tuple(axes), mesh))
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
