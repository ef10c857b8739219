"""Bytes that collectives bring to a device."""

from __future__ import annotations

from collections.abc import Mapping

from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.dialect.axis import num_shards
from shardy_py.ir import Type
from shardy_py.ir.types import local_bytes
from shardy_py.passes.export.collective_steps import CollectiveStep, collectives_for


def received(kind: str, group: int, before: int, after: int) -> int:
    """Bytes that one of `group` devices receives in a collective, named without `sdy.`; any other kind moves nothing.

    Example:
        >>> received("all_gather", 4, 256, 1024), received("all_reduce", 4, 1024, 1024)
        (768, 1536)
    """
    if kind in ("all_gather", "all_to_all"):
        return after * (group - 1) // group
    if kind == "reduce_scatter":
        return before * (group - 1) // group
    if kind == "all_reduce":
        return 2 * before * (group - 1) // group
    return after if kind in ("collective_permute", "reshard") else 0


def reshard_bytes(source: TensorSharding | None, target: TensorSharding, type_: Type, meshes: Mapping[str, Mesh]) -> int:
    """Bytes that a device receives in the collectives of a reshard, see `collectives_for`; a sharding of None is replicated.

    Example:
        >>> from shardy_py.ir import TensorType
        >>> mesh = Mesh([("x", 4)])
        >>> reshard_bytes(TensorSharding("m", [["x"]]), TensorSharding("m", [[]]), TensorType((64,), "bfloat16"), {"m": mesh})
        96
    """
    total = 0
    for step in collectives_for(source, target, type_.shape, meshes):
        before, after = local_bytes(type_, source, meshes), local_bytes(type_, step.result, meshes)
        total += received(step.kind, _group(step, step.result.mesh_in(meshes)), before, after)
        source = step.result
    return total


def _group(step: CollectiveStep, mesh: Mesh) -> int:
    axes = (*(axis for dim in step.axes for axis in dim), *(axis for move in step.moves for axis in move.axes))
    return num_shards(axes, mesh)
