"""What has to be inserted around one op, as a pure function of its rule and shardings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardy_py.dialect import AxisRef, Mesh, OpShardingRule, TensorSharding
from shardy_py.dialect.axis import set_difference, sort_and_merge
from shardy_py.errors import ShardyError
from shardy_py.passes.export.explicit_reshards.common_sharding import find_common_axes
from shardy_py.passes.export.explicit_reshards.dot_case import DOTS, result_axes_of_dot
from shardy_py.passes.export.explicit_reshards.factor_axes import Axes, AxesPerFactor, factor_axes
from shardy_py.passes.export.explicit_reshards.reshape_redistribution import redistribute
from shardy_py.passes.propagation.factors import TensorFactors, project, unproject


@dataclass(frozen=True)
class Decision:
    """What has to be inserted around one op.

    Attributes:
        operands: `(operand number, sharding)` of operands that are resharded before the op.
        results: `(result number, sharding)` of results that the op makes with another sharding than it had; a reshard
            back follows.
        reduced: Axes along which the results are all-reduced.
        unless_equal: Whether an operand is left alone that has an equivalent sharding already. That may be so behind a
            propagation barrier, where the choice looks at another sharding than the operand's own.
    """

    operands: tuple[tuple[int, TensorSharding], ...] = ()
    results: tuple[tuple[int, TensorSharding], ...] = ()
    reduced: Axes = ()
    unless_equal: bool = False

    @property
    def is_nothing(self) -> bool:
        """Whether the op can run as it is."""
        return not (self.operands or self.results or self.reduced)


NOTHING = Decision()


def decide(
    op_name: str,
    rule: OpShardingRule,
    shardings: Sequence[TensorSharding | None],
    tensor_sizes: Sequence[int],
    meshes: Mapping[str, Mesh],
    full: bool,
) -> Decision:
    """Chooses the axes under which an op runs, and what that asks of its operands and results.

    Args:
        op_name: Its name; reshapes and dots have rules of their own.
        rule: Its sharding rule.
        shardings: Of operands, then results; None is replicated.
        tensor_sizes: Their numbers of elements.
        meshes: Name -> mesh.
        full: Whether all conflicts are settled, or only that of `dot_case` and reductions.
    """
    found = common_mesh(shardings, meshes)
    if found is None:
        return NOTHING
    mesh_name, mesh = found
    tensors = [project(m, s, rule.factor_sizes, mesh, True) for m, s in zip(rule.mappings, shardings, strict=True)]
    count = len(rule.operand_mappings)
    dealt_anew = False
    if full:
        dealt_anew = op_name == "stablehlo.reshape" and any(map(_overflows, tensors))
        if dealt_anew:
            common = redistribute(rule, tensors, mesh_name, mesh)
        else:
            common = find_common_axes(rule, factor_axes(tensors), tensor_sizes, mesh)
        changed = _changes(rule, tensors, shardings, common, meshes, mesh_name, mesh)
        if dealt_anew:
            changed = [(i, sharding) for i, sharding in changed if i < count or not sharding.is_equivalent(shardings[i])]
        reduced = tuple(axis for factor in rule.reduction for axis in common[factor])
    else:
        changed = _dot_change(op_name, rule, tensors, shardings, tensor_sizes, mesh_name, mesh)
        reduced = _reduced_by_choice(rule, tensors, shardings)
    unreduced = _unreduced(shardings[count])
    return Decision(
        tuple((i, sharding) for i, sharding in changed if i < count),
        tuple((i - count, sharding) for i, sharding in changed if i >= count),
        sort_and_merge(set_difference(reduced, unreduced, mesh), mesh) if reduced else (),
        dealt_anew,
    )


def common_mesh(shardings: Sequence[TensorSharding | None], meshes: Mapping[str, Mesh]) -> tuple[str | Mesh, Mesh] | None:
    """The mesh on which an op runs, with its name; None where the shardings are over different axes or one device.

    Meshes that differ in the order of their devices only do go together; the one that most sharded tensors are on is
    taken, and of several the one that was first on so many.
    """
    found: tuple[str | Mesh, Mesh] | None = None
    counts: dict[Mesh, int] = {}
    most = 0
    for sharding in shardings:
        if sharding is None:
            continue
        mesh = sharding.mesh_in(meshes)
        if mesh.is_empty:
            continue
        if mesh.is_maximal or (found is not None and not mesh.same_axes(found[1])):
            return None
        count = counts[mesh] = counts.get(mesh, 0) + (not sharding.is_fully_replicated)
        if found is None or count > most:
            found, most = (sharding.mesh, mesh), count
    return found


def _changes(
    rule: OpShardingRule,
    tensors: Sequence[TensorFactors],
    shardings: Sequence[TensorSharding | None],
    common: AxesPerFactor,
    meshes: Mapping[str, Mesh],
    mesh_name: str | Mesh,
    mesh: Mesh,
) -> list[tuple[int, TensorSharding]]:
    """The tensors that are not sharded by the common axes, or over devices in another order, with their new shardings."""
    found: list[tuple[int, TensorSharding]] = []
    for i, (tensor, old) in enumerate(zip(tensors, shardings, strict=True)):
        moved = old is not None and not old.is_fully_replicated and old.mesh_in(meshes) is not mesh
        changed = _overflows(tensor)
        for factor, sharding in tensor.factors.items():
            changed = changed or sharding.axes != common[factor]
            sharding.axes, sharding.overflow = common[factor], ()
        if changed or moved:
            found.append((i, unproject(rule.mappings[i], tensor, old, rule.factor_sizes, mesh, mesh_name)))
    return found


def _dot_change(
    op_name: str,
    rule: OpShardingRule,
    tensors: Sequence[TensorFactors],
    shardings: Sequence[TensorSharding | None],
    tensor_sizes: Sequence[int],
    mesh_name: str | Mesh,
    mesh: Mesh,
) -> list[tuple[int, TensorSharding]]:
    if op_name not in DOTS:
        return []
    found = result_axes_of_dot(rule, factor_axes(tensors), tensor_sizes)
    if found is None:
        return []
    factor, axes = found
    tensors[2].factors[factor].axes = axes
    return [(2, unproject(rule.mappings[2], tensors[2], shardings[2], rule.factor_sizes, mesh, mesh_name))]


def _reduced_by_choice(rule: OpShardingRule, tensors: Sequence[TensorFactors], shardings: Sequence[TensorSharding | None]) -> Axes:
    """The axes of reduction factors of an op whose result has unreduced axes; of another one, the partitioner sees to them."""
    if not rule.reduction or not _unreduced(shardings[len(rule.operand_mappings)]):
        return ()
    reduced: list[AxisRef] = []
    for factor in rule.reduction:
        stated = [tensor.factors[factor].axes for tensor in tensors if factor in tensor.factors]
        if any(axes != stated[0] for axes in stated):
            raise ShardyError(
                f"operands are sharded differently along reduction factor {factor}",
                where=f"{rule}",
                why="the result has unreduced axes, so they must say along which axes it is reduced",
                fix="shard the operands alike, or leave the result without unreduced axes",
            )
        reduced.extend(stated[0] if stated else ())
    return tuple(reduced)


def _unreduced(sharding: TensorSharding | None) -> Axes:
    return () if sharding is None else sharding.unreduced


def _overflows(tensor: TensorFactors) -> bool:
    return any(sharding.overflow for sharding in tensor.factors.values())
