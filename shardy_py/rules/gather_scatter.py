"""Rules of gather and scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shardy_py.dialect import FactorType, OpShardingRule
from shardy_py.rules.builder import NO_DIM, Builder, FactorBuilder, Shape, Signature

SCATTER_REDUCTIONS = frozenset(
    ("stablehlo.add", "stablehlo.and", "stablehlo.maximum", "stablehlo.minimum", "stablehlo.multiply", "stablehlo.or")
)
"""Update computations under which scatters of parts of the updates can be combined."""


class _Indexing(NamedTuple):
    """The shapes and dimension numbers of a gather or scatter, under the names of a gather.

    Attributes:
        slices: Shape of each result of a gather, or of each update of a scatter.
        window_dims: Dimensions of `slices` that run along the operand.
        collapsed_dims: Dimensions of the operand along which a slice has one element, which `slices` lacks.
        index_vector_dim: Dimension of the indices that holds the parts of an index; the rank where an index is a scalar.
        batch_type: Type of the factors of the other dimensions of the indices.
    """

    inputs: int
    operand: Shape
    indices: Shape
    slices: Shape
    window_dims: Sequence[int]
    collapsed_dims: Sequence[int]
    operand_batching_dims: Sequence[int]
    indices_batching_dims: Sequence[int]
    index_vector_dim: int
    batch_type: FactorType
    is_scatter: bool


def gather(signature: Signature) -> OpShardingRule:
    """Offset dimensions follow the operand where taken whole, batch dimensions follow the indices.

    Collapsed operand dimensions are reductions: each device looks up the rows it holds and the results are added.
    """
    dims = signature.attributes
    operand, indices = signature.operands
    indexing = _Indexing(
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
    return _rule(signature, indexing)


def scatter(signature: Signature) -> OpShardingRule:
    """As gather, turned around: batch dimensions of the updates are reductions where the update computation is one.

    Attribute `body` names the single op of the update computation, or is empty where it is anything else.
    """
    dims = signature.attributes
    inputs = len(signature.results)
    indexing = _Indexing(
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
    return _rule(signature, indexing)


def _rule(signature: Signature, at: _Indexing) -> OpShardingRule:
    builder = FactorBuilder(signature.operands, signature.results)

    def add(
        size: int, type: FactorType, *, on_operand: int = NO_DIM, on_indices: int = NO_DIM, on_slices: int = NO_DIM, blocked: bool = False
    ) -> None:
        if at.is_scatter:
            operand_dims = (*(on_operand,) * at.inputs, on_indices, *(on_slices,) * at.inputs)
            builder.add(operand_dims, (on_operand,) * at.inputs, size, type, blocked)
        else:
            builder.add((on_operand, on_indices), (on_slices,), size, type, blocked)

    window_of_operand = (dim for dim in range(len(at.operand)) if dim not in at.collapsed_dims and dim not in at.operand_batching_dims)
    index_dims = (dim for dim in range(len(at.indices)) if dim != at.index_vector_dim)
    batching = dict(zip(at.indices_batching_dims, at.operand_batching_dims, strict=True))
    for slices_dim, slices_size in enumerate(at.slices):
        if slices_dim not in at.window_dims:
            indices_dim = next(index_dims)
            if indices_dim in batching:
                add(slices_size, FactorType.PASS_THROUGH, on_operand=batching[indices_dim], on_indices=indices_dim, on_slices=slices_dim)
            else:
                add(slices_size, at.batch_type, on_indices=indices_dim, on_slices=slices_dim)
            continue
        dim = next(window_of_operand)
        size = at.operand[dim]
        if size == slices_size:
            add(size, FactorType.PASS_THROUGH, on_operand=dim, on_slices=slices_dim)
        elif at.is_scatter:
            add(size, FactorType.NEED_REPLICATION, on_operand=dim)
            add(slices_size, FactorType.NEED_REPLICATION, on_slices=slices_dim)
        elif slices_size == 1:
            add(size, FactorType.REDUCTION, on_operand=dim)
            add(1, FactorType.NEED_REPLICATION, on_slices=slices_dim)
        else:
            add(size, FactorType.NEED_REPLICATION, on_operand=dim, on_slices=slices_dim, blocked=True)

    for dim in at.collapsed_dims:
        if at.is_scatter:
            add(at.operand[dim], FactorType.PASS_THROUGH, on_operand=dim)
        else:
            add(at.operand[dim], FactorType.NEED_REPLICATION if at.operand[dim] == 1 else FactorType.REDUCTION, on_operand=dim)
    if at.index_vector_dim < len(at.indices):
        add(at.indices[at.index_vector_dim], FactorType.NEED_REPLICATION, on_indices=at.index_vector_dim)
    return builder.build()


RULES: dict[str, Builder] = {
    "stablehlo.gather": gather,
    "stablehlo.scatter": scatter,
}
