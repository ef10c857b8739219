"""Dynamic slices, gathers and scatters."""

from __future__ import annotations

from shardy_py.frontends.primitives.avals import is_extended
from shardy_py.frontends.primitives.reductions import common_body
from shardy_py.frontends.primitives.template import Builder, OpsTemplate, TemplateBuilder, Unsupported, ints


def _zeros_for(b: Builder, like: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Start indices of the dimensions that a PRNG key adds: one constant used `count` times by JAX, each made anew here."""
    dtype = b.type(like[0]).dtype if like else "int32"
    zero = b.constant((), dtype, 0) if count else 0
    return (zero,) * count


def _dynamic_slice(b: Builder) -> OpsTemplate:
    x, *starts = b.operands
    starts = (*starts, *_zeros_for(b, tuple(starts), len(b.element_shape(b.out_avals[0]))))
    return b.build((b.op("stablehlo.dynamic_slice", (x, *starts), b.out_type, slice_sizes=b.out_type.shape),))


def _dynamic_update_slice(b: Builder) -> OpsTemplate:
    x, update, *starts = b.operands
    starts = (*starts, *_zeros_for(b, tuple(starts), len(b.element_shape(b.out_avals[0]))))
    return b.build((b.op("stablehlo.dynamic_update_slice", (x, update, *starts), b.out_type),))


def _gather(b: Builder) -> OpsTemplate:
    """Out-of-bounds indices that clip or are promised not to occur need no more than the op."""
    if b.params["mode"].name == "FILL_OR_DROP":
        raise Unsupported
    if 0 in b.out_type.shape:
        return b.build((b.constant(b.out_type.shape, b.out_type.dtype, 0),))
    dnums = b.params["dimension_numbers"]
    extra = b.element_shape(b.out_avals[0])
    rank = len(b.out_avals[0].shape)
    x, indices = b.operands
    gathered = b.op(
        "stablehlo.gather",
        (x, indices),
        b.out_type,
        offset_dims=(*ints(dnums.offset_dims), *range(rank, rank + len(extra))),
        collapsed_slice_dims=ints(dnums.collapsed_slice_dims),
        operand_batching_dims=ints(dnums.operand_batching_dims),
        start_indices_batching_dims=ints(dnums.start_indices_batching_dims),
        start_index_map=ints(dnums.start_index_map),
        index_vector_dim=b.type(indices).rank - 1,
        slice_sizes=(*ints(b.params["slice_sizes"]), *extra),
    )
    return b.build((gathered,))


def _scatter(b: Builder) -> OpsTemplate:
    mode = b.params["mode"]
    if is_extended(b.out_avals[0]) or getattr(mode, "name", "") == "CLIP":
        raise Unsupported
    dnums = b.params["dimension_numbers"]
    scattered = b.op(
        "stablehlo.scatter",
        b.operands,
        b.out_type,
        update_window_dims=ints(dnums.update_window_dims),
        inserted_window_dims=ints(dnums.inserted_window_dims),
        input_batching_dims=ints(dnums.operand_batching_dims),
        scatter_indices_batching_dims=ints(dnums.scatter_indices_batching_dims),
        scatter_dims_to_operand_dims=ints(dnums.scatter_dims_to_operand_dims),
        index_vector_dim=b.type(1).rank - 1,
        body=_scatter_body(b),
    )
    return b.build((scattered,))


def _scatter_body(b: Builder) -> str:
    """The update computation, if it is a reduction that may run in parts."""
    body = common_body(b.params["update_jaxpr"])
    allowed = _REDUCTIONS | _LOGICAL_REDUCTIONS if b.out_type.dtype == "bool" else _REDUCTIONS
    return body if body in allowed else ""


_REDUCTIONS = {"stablehlo.add", "stablehlo.multiply", "stablehlo.maximum", "stablehlo.minimum"}
_LOGICAL_REDUCTIONS = {"stablehlo.and", "stablehlo.or"}

TEMPLATES: dict[str, TemplateBuilder] = {
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    **dict.fromkeys(("scatter", "scatter-add", "scatter-max", "scatter-min", "scatter-mul", "scatter-sub"), _scatter),
}
