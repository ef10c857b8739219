"""Products: `dot_general` and `conv_general_dilated`."""

from __future__ import annotations

from shardy_py.frontends.primitives.template import Builder, OpsTemplate, TemplateBuilder, Unsupported, ints
from shardy_py.ir import TensorType

_FP8 = ("float8_e4m3fn", "float8_e5m2", "float8_e5m2fnuz", "float8_e4m3fnuz", "float8_e3m4", "float8_e4m3", "float8_e8m0fnu")


def _converted(b: Builder, slots: tuple[int, int]) -> tuple[int, int]:
    """Operands of two types are converted to the result's on CPU and GPU, except pairs of 8-bit floats."""
    lhs, rhs = slots
    kinds = b.type(lhs).dtype, b.type(rhs).dtype
    if kinds[0] == kinds[1]:
        return slots
    if b.platform == "tpu":
        if all(k != "bool" and not k.startswith("complex") for k in kinds):
            return slots
    elif all(k in _FP8 for k in kinds):
        return slots
    if b.out_type.dtype == "bool":
        raise Unsupported
    dtype = b.out_type.dtype
    return (
        b.op("stablehlo.convert", (lhs,), TensorType(b.type(lhs).shape, dtype)),
        b.op("stablehlo.convert", (rhs,), TensorType(b.type(rhs).shape, dtype)),
    )


def _dot_general(b: Builder) -> OpsTemplate:
    precision = b.params["precision"]
    if precision is not None and not isinstance(precision, tuple):
        raise Unsupported
    (lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch) = b.params["dimension_numbers"]
    out = b.op(
        "stablehlo.dot_general",
        _converted(b, (0, 1)),
        b.out_type,
        lhs_batching_dimensions=ints(lhs_batch),
        rhs_batching_dimensions=ints(rhs_batch),
        lhs_contracting_dimensions=ints(lhs_contracting),
        rhs_contracting_dimensions=ints(rhs_contracting),
    )
    return b.build((out,))


def _convolution(b: Builder) -> OpsTemplate:
    """Complex convolutions are several real ones on CPU and GPU."""
    if b.type(0).dtype.startswith("complex"):
        raise Unsupported
    p = b.params
    lhs, rhs, out = p["dimension_numbers"]
    product = b.op(
        "stablehlo.convolution",
        (0, 1),
        b.out_type,
        window_strides=ints(p["window_strides"]),
        padding=tuple((int(low), int(high)) for low, high in p["padding"]),
        lhs_dilation=ints(p["lhs_dilation"]),
        rhs_dilation=ints(p["rhs_dilation"]),
        window_reversal=(False,) * (len(rhs) - 2),
        input_batch_dimension=int(lhs[0]),
        input_feature_dimension=int(lhs[1]),
        input_spatial_dimensions=ints(lhs[2:]),
        kernel_output_feature_dimension=int(rhs[0]),
        kernel_input_feature_dimension=int(rhs[1]),
        kernel_spatial_dimensions=ints(rhs[2:]),
        output_batch_dimension=int(out[0]),
        output_feature_dimension=int(out[1]),
        output_spatial_dimensions=ints(out[2:]),
        feature_group_count=int(p["feature_group_count"]),
        batch_group_count=int(p["batch_group_count"]),
    )
    return b.build((product,))


TEMPLATES: dict[str, TemplateBuilder] = {
    "conv_general_dilated": _convolution,
    "dot_general": _dot_general,
}
