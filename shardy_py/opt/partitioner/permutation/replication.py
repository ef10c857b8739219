"""The reshards of operands and results after which no permutation factor of an op is sharded."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from shardy_py.dialect import Mesh, OpShardingRule, TensorSharding
from shardy_py.dialect.projection import FactorSharding, TensorFactors, project, unproject
from shardy_py.ir import Op
from shardy_py.passes.dataflow import get_sharding
from shardy_py.passes.export.explicit_reshards.decision import Decision, matching_meshes

_SLICE = "stablehlo.slice"


def replicated(
    rule: OpShardingRule, factors: Collection[int], shardings: Sequence[TensorSharding | None], meshes: Mapping[str, Mesh]
) -> Decision | None:
    """Takes the axes of some factors away from all tensors of an op.

    Tensors over meshes that differ in the order of their devices are brought to one order too, where anything changes.
    """
    named_mesh = _mesh_in_device_order(shardings, meshes)
    if named_mesh is None:
        return None
    name, mesh = named_mesh
    tensors = [project(m, s, rule.factor_sizes, mesh, True) for m, s in zip(rule.mappings, shardings, strict=True)]
    sharded = [any(f in factors and state.axes for f, state in tensor.factors.items()) for tensor in tensors]
    if not any(sharded):
        return None
    changes: list[tuple[int, TensorSharding]] = []
    for i, (tensor, old) in enumerate(zip(tensors, shardings, strict=True)):
        other_order = old is not None and not old.is_fully_replicated and old.mesh_in(meshes) is not mesh
        if sharded[i] or other_order:
            changes.append((i, unproject(rule.mappings[i], _without(tensor, factors), old, rule.factor_sizes, mesh, name)))
    count = len(rule.operand_mappings)
    operands = tuple((i, sharding) for i, sharding in changes if i < count)
    results = tuple((i - count, sharding) for i, sharding in changes if i >= count)
    return Decision(name, operands, results)


def _mesh_in_device_order(shardings: Sequence[TensorSharding | None], meshes: Mapping[str, Mesh]) -> tuple[str | Mesh, Mesh] | None:
    """The mesh on which an op runs, with its name; None where the shardings are over different axes or one device.

    The last of those whose devices are in order, else the first.
    """
    best: tuple[str | Mesh, Mesh] | None = None
    for sharding, mesh in matching_meshes(shardings, meshes):
        if best is None or not mesh.device_ids:
            best = sharding.mesh, mesh
    return best


def moved_factors(op: Op, rule: OpShardingRule, meshes: Mapping[str, Mesh]) -> frozenset[int]:
    """The permutation factors of an op along which devices need elements of each other."""
    if op.name != _SLICE:
        return frozenset(rule.permutation)
    free = {f for dim, mapping in enumerate(rule.operand_mappings[0]) for f in mapping if is_local_slice(op, dim, meshes)}
    return frozenset(rule.permutation) - free


def is_local_slice(op: Op, dim: int, meshes: Mapping[str, Mesh]) -> bool:
    """Whether a slice is local along one dimension: each device makes its part from its part of the operand.

    This holds where only the end is cut off, and no more of it than lies beyond the needs of the last device.
    """
    source, target = get_sharding(op.operands[0]), get_sharding(op.result)
    if source is None or target is None or source.mesh != target.mesh or source.dims[dim].axes != target.dims[dim].axes:
        return False
    if op.attributes["start_indices"][dim] or op.attributes["strides"][dim] != 1:
        return False
    shards = source.dims[dim].shards(source.mesh_in(meshes))
    return -(-op.operands[0].type.shape[dim] // shards) == -(-op.result.type.shape[dim] // shards)


def _without(tensor: TensorFactors, factors: Collection[int]) -> TensorFactors:
    return TensorFactors(
        {
            f: FactorSharding((), state.closed, state.minor_most, state.overflow) if f in factors else state
            for f, state in tensor.factors.items()
        },
        tensor.blocked_axes,
    )
