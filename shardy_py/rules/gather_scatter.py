"""Rules of gather and scatter."""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.dialect import FactorType, OpShardingRule
from shardy_py.rules.builder import NO_DIM, Builder, FactorBuilder, Shape, Signature

SCATTER_REDUCTIONS = frozenset(
    ("stablehlo.add", "stablehlo.and", "stablehlo.maximum", "stablehlo.minimum", "stablehlo.multiply", "stablehlo.or")
)
"""Update computations under which scatters of parts of the updates can be combined."""


def gather(signature: Signature) -> OpShardingRule:
    """Offset dimensions follow the operand where taken whole, batch dimensions follow the indices.

    Collapsed operand dimensions are reductions: each device looks up the rows it holds and the results are added.
    """
    dims = signature.attributes
    operand, indices = signature.operands
    return _rule(
        signature,
        inputs=1,
        operand=operand,
        indices=indices,
        slices=signature.results[0],
        window_dims=dims["offset_dims"],
        collapsed_dims=dims["collapsed_slice_dims"],
        operand_batching_dims=dims["operand_batching_dims"],
        indices_batching_dims=dims["start_indices_batching_dims"],
        index_vector_dim=dims["index_vector_dim"],
        batch_type=FactorType.PASS_THROUGH,
        is_scatter=False,
    )


def scatter(signature: Signature) -> OpShardingRule:
    """As gather, turned around: batch dimensions of the updates are reductions where the update computation is one.

    Attribute `body` names the single op of the update computation, or is empty where it is anything else.
    """
    dims = signature.attributes
    inputs = len(signature.results)
    return _rule(
        signature,
        inputs=inputs,
        operand=signature.operands[0],
        indices=signature.operands[inputs],
        slices=signature.operands[inputs + 1],
        window_dims=dims["update_window_dims"],
        collapsed_dims=dims["inserted_window_dims"],
        operand_batching_dims=dims["input_batching_dims"],
        indices_batching_dims=dims["scatter_indices_batching_dims"],
        index_vector_dim=dims["index_vector_dim"],
        batch_type=FactorType.REDUCTION if dims["body"] in SCATTER_REDUCTIONS else FactorType.NEED_REPLICATION,
        is_scatter=True,
    )


def _rule(
    signature: Signature,
    *,
    inputs: int,
    operand: Shape,
    indices: Shape,
    slices: Shape,
    window_dims: Sequence[int],
    collapsed_dims: Sequence[int],
    operand_batching_dims: Sequence[int],
    indices_batching_dims: Sequence[int],
    index_vector_dim: int,
    batch_type: FactorType,
    is_scatter: bool,
) -> OpShardingRule:
    builder = FactorBuilder(signature.operands, signature.results)

    def add(
        size: int, type: FactorType, *, on_operand: int = NO_DIM, on_indices: int = NO_DIM, on_slices: int = NO_DIM, blocked: bool = False
    ) -> None:
        if is_scatter:
            operand_dims = (*(on_operand,) * inputs, on_indices, *(on_slices,) * inputs)
            builder.add(operand_dims, (on_operand,) * inputs, size, type, blocked)
        else:
            builder.add((on_operand, on_indices), (on_slices,), size, type, blocked)

    kept_dims = (dim for dim in range(len(operand)) if dim not in collapsed_dims and dim not in operand_batching_dims)
    index_dims = (dim for dim in range(len(indices)) if dim != index_vector_dim)
    batching = dict(zip(indices_batching_dims, operand_batching_dims, strict=True))
    for slices_dim, slices_size in enumerate(slices):
        if slices_dim not in window_dims:
            indices_dim = next(index_dims)
            if indices_dim in batching:
                add(slices_size, FactorType.PASS_THROUGH, on_operand=batching[indices_dim], on_indices=indices_dim, on_slices=slices_dim)
            else:
                add(slices_size, batch_type, on_indices=indices_dim, on_slices=slices_dim)
            continue
        dim = next(kept_dims)
        size = operand[dim]
        if size == slices_size:
            add(size, FactorType.PASS_THROUGH, on_operand=dim, on_slices=slices_dim)
        elif is_scatter:
            add(size, FactorType.NEED_REPLICATION, on_operand=dim)
            add(slices_size, FactorType.NEED_REPLICATION, on_slices=slices_dim)
        elif slices_size == 1:
            add(size, FactorType.REDUCTION, on_operand=dim)
            add(1, FactorType.NEED_REPLICATION, on_slices=slices_dim)
        else:
            add(size, FactorType.NEED_REPLICATION, on_operand=dim, on_slices=slices_dim, blocked=True)

    for dim in collapsed_dims:
        if is_scatter:
            add(operand[dim], FactorType.PASS_THROUGH, on_operand=dim)
        else:
            add(operand[dim], FactorType.NEED_REPLICATION if operand[dim] == 1 else FactorType.REDUCTION, on_operand=dim)
    if index_vector_dim < len(indices):
        add(indices[index_vector_dim], FactorType.NEED_REPLICATION, on_indices=index_vector_dim)
    return builder.build()


RULES: dict[str, Builder] = {
    "stablehlo.gather": gather,
    "stablehlo.scatter": scatter,
}
