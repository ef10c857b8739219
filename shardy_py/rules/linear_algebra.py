"""Rules of cholesky, triangular_solve and fft."""

from __future__ import annotations

from shardy_py.dialect import FactorType, OpShardingRule
from shardy_py.rules.builder import NO_DIM, Builder, FactorBuilder, Signature


def cholesky(signature: Signature) -> OpShardingRule:
    """Batch dimensions pass through; the matrix needs replication."""
    (shape,) = signature.results
    builder = FactorBuilder(signature.operands, signature.results)
    for dim, size in enumerate(shape):
        is_batch = dim < len(shape) - 2
        builder.add((dim,), (dim,), size, FactorType.PASS_THROUGH if is_batch else FactorType.NEED_REPLICATION)
    return builder.build()


def triangular_solve(signature: Signature) -> OpShardingRule:
    """Batch dimensions pass through; all others need replication."""
    a, b = signature.operands
    row, column = len(b) - 2, len(b) - 1
    builder = FactorBuilder(signature.operands, signature.results)
    for dim, size in enumerate(a[:-2]):
        builder.add((dim, dim), (dim,), size)
    a_row, a_column = row, column
    if signature.attributes["transpose_a"] not in ("NO_TRANSPOSE", ""):
        a_row, a_column = column, row
    if signature.attributes["left_side"]:
        factors = ((a_row, row, NO_DIM), (NO_DIM, column, column), (a_column, NO_DIM, row))
    else:
        factors = ((NO_DIM, row, row), (a_column, column, NO_DIM), (a_row, NO_DIM, column))
    for a_dim, b_dim, out_dim in factors:
        size = a[a_dim] if a_dim != NO_DIM else b[b_dim]
        builder.add((a_dim, b_dim), (out_dim,), size, FactorType.NEED_REPLICATION)
    return builder.build()


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


RULES: dict[str, Builder] = {
    "stablehlo.cholesky": cholesky,
    "stablehlo.triangular_solve": triangular_solve,
    "stablehlo.fft": fft,
}
