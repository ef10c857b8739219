"""Rule of sort."""

from __future__ import annotations

from shardy_py.dialect import FactorType, OpShardingRule
from shardy_py.rules.builder import Builder, FactorBuilder, Signature


def sort(signature: Signature) -> OpShardingRule:
    """The sorted dimension needs replication, and does not propagate where it is the only one of size above 1."""
    shape = signature.operands[0]
    rank = len(shape)
    sorted_dim = signature.attributes.get("dimension", -1)
    if sorted_dim < 0:
        sorted_dim += rank
    alone = all(size == 1 for dim, size in enumerate(shape) if dim != sorted_dim)
    builder = FactorBuilder(signature.operands, signature.results)
    for dim, size in enumerate(shape):
        if dim == sorted_dim:
            builder.add_to_all(dim, size, FactorType.NEED_REPLICATION, blocked=alone)
        else:
            builder.add_to_all(dim, size)
    return builder.build()


RULES: dict[str, Builder] = {"stablehlo.sort": sort}
