"""Rule of fft."""

from __future__ import annotations

from shardy_py.dialect import FactorType, OpShardingRule
from shardy_py.rules.builder import Builder, FactorBuilder, Signature


def fft(signature: Signature) -> OpShardingRule:
    """Batch dimensions pass through; transformed ones need replication.

    The last dimension does not propagate where its size changes (RFFT, IRFFT).
    """
    (operand,), (result,) = signature.operands, signature.results
    first = len(operand) - len(signature.attributes["fft_length"])
    builder = FactorBuilder((operand,), (result,))
    for dim, size in enumerate(operand):
        if dim < first:
            builder.add((dim,), (dim,), size)
        else:
            builder.add((dim,), (dim,), size, FactorType.NEED_REPLICATION, blocked=size != result[dim])
    return builder.build()


RULES: dict[str, Builder] = {"stablehlo.fft": fft}
