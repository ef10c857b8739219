"""Rules of StableHLO's collectives, which stand in programs that are partly partitioned already."""

from __future__ import annotations

from shardy_py.dialect import FactorType, OpShardingRule
from shardy_py.rules.builder import Builder, FactorBuilder, Signature
from shardy_py.rules.elementwise import pointwise


def _resized(signature: Signature, *resized: int) -> OpShardingRule:
    """Pass-through, except that the resized dimensions need replication on either side, each with its own factor."""
    operand, result = signature.operands[0], signature.results[0]
    builder = FactorBuilder(signature.operands, signature.results)
    builder.add_pointwise(operand, skip=resized)
    for dim in resized:
        builder.add_to_operands(dim, operand[dim], FactorType.NEED_REPLICATION)
        builder.add_to_results(dim, result[dim], FactorType.NEED_REPLICATION)
    return builder.build()


def all_gather(signature: Signature) -> OpShardingRule:
    """Pass-through except for the gathered dimension."""
    return _resized(signature, signature.attributes["all_gather_dim"])


def reduce_scatter(signature: Signature) -> OpShardingRule:
    """Pass-through except for the scattered dimension."""
    return _resized(signature, signature.attributes["scatter_dimension"])


def all_to_all(signature: Signature) -> OpShardingRule:
    """Pass-through except for the split and the concatenated dimension."""
    split, concat = signature.attributes["split_dimension"], signature.attributes["concat_dimension"]
    return _resized(signature, split) if split == concat else _resized(signature, split, concat)


RULES: dict[str, Builder] = {
    "stablehlo.all_gather": all_gather,
    "stablehlo.all_reduce": pointwise,
    "stablehlo.all_to_all": all_to_all,
    "stablehlo.collective_broadcast": pointwise,
    "stablehlo.collective_permute": pointwise,
    "stablehlo.cross-replica-sum": pointwise,
    "stablehlo.reduce_scatter": reduce_scatter,
}
