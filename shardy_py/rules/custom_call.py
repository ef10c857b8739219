"""Rules of custom calls, by call target, and of the generator of random bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from shardy_py.dialect import FactorType, OpShardingRule
from shardy_py.rules.builder import NO_DIM, Builder, FactorBuilder, Signature
from shardy_py.rules.elementwise import pointwise

if TYPE_CHECKING:
    from shardy_py.ir.core import Op


def eigh(signature: Signature) -> OpShardingRule:
    """Batch dimensions, rows and columns pass through; the eigenvalues follow the columns of the vectors."""
    (matrix,) = signature.operands
    rank = len(matrix)
    builder = FactorBuilder(signature.operands, signature.results)
    for dim, size in enumerate(matrix[:-2]):
        builder.add((dim,), (dim, dim), size)
    builder.add((rank - 2,), (rank - 2, NO_DIM), matrix[-2])
    builder.add((rank - 1,), (rank - 1, rank - 2), matrix[-1])
    return builder.build()


def qr(signature: Signature) -> OpShardingRule:
    """Batch dimensions pass through; the matrix and the scales of the reflectors need replication."""
    (matrix,) = signature.operands
    rank = len(matrix)
    builder = FactorBuilder(signature.operands, signature.results)
    for dim, size in enumerate(matrix[:-2]):
        builder.add((dim,), (dim, dim), size)
    builder.add((rank - 2,), (rank - 2,), matrix[-2], FactorType.NEED_REPLICATION)
    builder.add((rank - 1,), (rank - 1,), matrix[-1], FactorType.NEED_REPLICATION)
    builder.add((), (NO_DIM, rank - 2), signature.results[1][-1], FactorType.NEED_REPLICATION)
    return builder.build()


def householder_product(signature: Signature) -> OpShardingRule:
    """As `qr`, with the scales being an operand."""
    matrix, scales = signature.operands
    rank = len(matrix)
    builder = FactorBuilder(signature.operands, signature.results)
    for dim, size in enumerate(matrix[:-2]):
        builder.add((dim, dim), (dim,), size)
    builder.add((rank - 2,), (rank - 2,), matrix[-2], FactorType.NEED_REPLICATION)
    builder.add((rank - 1,), (rank - 1,), matrix[-1], FactorType.NEED_REPLICATION)
    builder.add((NO_DIM, rank - 2), (), scales[-1], FactorType.NEED_REPLICATION)
    return builder.build()


def topk(signature: Signature) -> OpShardingRule:
    """Dimensions of equal size pass through; the one that is cut down needs replication and does not propagate."""
    (operand,) = signature.operands
    result = signature.results[0]
    builder = FactorBuilder(signature.operands, signature.results)
    for dim, size in enumerate(operand):
        if size == result[dim]:
            builder.add_to_all(dim, size)
        else:
            builder.add_to_all(dim, size, FactorType.NEED_REPLICATION, blocked=True)
    return builder.build()


def approximate_topk(signature: Signature) -> OpShardingRule:
    """As `topk`, except that the operands' side of the dimension that is cut down passes through by itself."""
    operand = signature.operands[0]
    result = signature.results[0]
    builder = FactorBuilder(signature.operands, signature.results)
    for dim, size in enumerate(operand):
        if size == result[dim]:
            builder.add_to_all(dim, size)
        else:
            builder.add((dim, dim), (), size)
            builder.add((), (dim, dim), result[dim], FactorType.NEED_REPLICATION, blocked=True)
    return builder.build()


def x64_combine(signature: Signature) -> OpShardingRule:
    """Pointwise; the first dimension needs replication and does not propagate where it is the state of a generator.

    The context of the signature is `feeds_generator`.
    """
    if not signature.context:
        return pointwise(signature)
    builder = FactorBuilder(signature.operands, signature.results)
    builder.add_to_all(0, signature.results[0][0], FactorType.NEED_REPLICATION, blocked=True)
    return builder.build()


def feeds_generator(op: Op) -> bool:
    """Whether a custom call is `X64Combine` and a rng_bit_generator uses its result."""
    if op.attributes["call_target_name"] != "X64Combine":
        return False
    return any(user.name == "stablehlo.rng_bit_generator" for result in op.results for user, _ in result.uses)


TARGETS: dict[str, Builder] = {
    "ApproxTopK": approximate_topk,
    "Cholesky": pointwise,
    "CompactWyHelper": pointwise,
    "Eigh": eigh,
    "InspectSharding": pointwise,
    "InvertDiagBlocksLowerTriangular": pointwise,
    "InvertDiagBlocksUpperTriangular": pointwise,
    "LayoutConstraint": pointwise,
    "MoveToDevice": pointwise,
    "MoveToHost": pointwise,
    "PartialReduce": approximate_topk,
    "ProductOfElementaryHouseholderReflectors": householder_product,
    "Qr": qr,
    "QrDecompositionBlock": qr,
    "X64Combine": x64_combine,
    "X64SplitHigh": pointwise,
    "X64SplitLow": pointwise,
    "_SPMDInternalOp_MultiPad": pointwise,
    "_SPMDInternalOp_MultiRotate": pointwise,
    "_SPMDInternalOp_MultiSlice": pointwise,
    "_SPMDInternalOp_RotateRight": pointwise,
    "_SPMDInternalOp_Wrap": pointwise,
    "annotate_device_placement": pointwise,
    "mhlo.erf": pointwise,
    "mhlo.topk": topk,
    "xla.megascale.provide_metadata": pointwise,
}

NO_RULE_TARGETS: dict[str, str] = {
    "sdy_testonly": "stands for a call without a rule in tests of passes",
    "tpu_custom_call": "a hand-written kernel may index its operands in any way",
    "xla.debug.Log": "prints its operand on the host",
    "xla_ffi_python_cpu_callback": "runs Python on the host",
    "xla_ffi_python_gpu_callback": "runs Python on the host",
    "xla_python_cpu_callback": "runs Python on the host",
    "xla_python_gpu_callback": "runs Python on the host",
}


def custom_call(signature: Signature) -> OpShardingRule | None:
    """The rule of the call target; None where the target has none."""
    build = TARGETS.get(signature.attributes["call_target_name"])
    return build(signature) if build is not None else None


CONTEXT: dict[str, Callable[[Op], bool]] = {"stablehlo.custom_call": feeds_generator}


def rng_bit_generator(signature: Signature) -> OpShardingRule:
    """The state needs replication and does not propagate; the random bits pass through on their own."""
    (state,) = signature.operands
    builder = FactorBuilder(signature.operands, signature.results)
    for dim, size in enumerate(state):
        builder.add((dim,), (dim,), size, FactorType.NEED_REPLICATION, blocked=True)
    for dim, size in enumerate(signature.results[1]):
        builder.add((), (NO_DIM, dim), size)
    return builder.build()


RULES: dict[str, Builder] = {
    "stablehlo.custom_call": custom_call,
    "stablehlo.rng_bit_generator": rng_bit_generator,
}
