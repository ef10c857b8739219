"""Reads MLIR types and attributes into the plain Python values that ops of a `Program` carry.

`READERS`, at the foot, says per op which attributes are kept and how they are flattened.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from shardy_py import dialect
from shardy_py.dialect.collectives import AXES_OF
from shardy_py.errors import DialectError
from shardy_py.frontends._jax import chlo, ir, stablehlo
from shardy_py.ir import TOKEN, OpaqueType, TensorType, Type
from shardy_py.ir.attribute_text import AttributeText, split_entries
from shardy_py.ir.type_text import ELEMENTS

Attributes = dict[str, Any]
Reader = Callable[[ir.OpView], Attributes]

_DTYPES = {text: dtype for dtype, text in ELEMENTS.items()}
"""Element types in MLIR's spelling -> in JAX's."""

_SDY_ATTRIBUTES = (
    "#sdy.sharding<",
    "#sdy.sharding_per_value<",
    "#sdy.op_sharding_rule<",
    "#sdy.mesh<",
    "#sdy<manual_axes",
    "#sdy<axis_ref_list",
    "#sdy<list_of_axis_ref_lists",
    "#sdy<all_to_all_param_list",
)
"""Beginnings of the attributes that are read as values; others stay text."""


def read_type(type_: ir.Type) -> Type:
    """A tensor type with a static shape, else an opaque type; raises DialectError if its size overflows the 64 bits of MLIR."""
    if isinstance(type_, ir.RankedTensorType) and type_.has_static_shape:
        element = str(type_.element_type)
        read = TensorType(tuple(type_.shape), _DTYPES.get(element, element))
        if read.size >= 1 << 63:
            raise DialectError(f"a tensor of {read.size} elements: '{type_}'", why="no array has as many")
        return read
    text = str(type_)
    return TOKEN if text == "!stablehlo.token" else OpaqueType(text)


def plain(attribute: ir.Attribute) -> Any:
    """The value of an attribute: int, bool, str, tuple or a value of the SDY dialect; else its text.

    An enum of StableHLO, `#stablehlo<fft_type FFT>`, is the name of its case.
    """
    if isinstance(attribute, ir.BoolAttr | ir.IntegerAttr | ir.FloatAttr | ir.StringAttr | ir.FlatSymbolRefAttr):
        return attribute.value
    if isinstance(attribute, ir.DenseI64ArrayAttr | ir.DenseI32ArrayAttr | ir.DenseBoolArrayAttr):
        return tuple(attribute)
    if isinstance(attribute, ir.ArrayAttr):
        return tuple(plain(a) for a in attribute)
    if isinstance(attribute, ir.DictAttr):
        return {attribute[i].name: plain(attribute[i].attr) for i in range(len(attribute))}
    if isinstance(attribute, ir.UnitAttr):
        return True
    return from_text(str(attribute))


@functools.lru_cache(maxsize=16384)
def from_text(text: str) -> Any:
    """The value of an attribute that jaxlib gives only as text."""
    if text.startswith(_SDY_ATTRIBUTES):
        return dialect.parse_attribute(text)
    if text.startswith("#stablehlo<") and text.count(" ") == 1:
        return text[:-1].split(" ")[1]
    return AttributeText(text)


def attribute_text(op: ir.OpView, name: str) -> str:
    """The text of one attribute, also where jaxlib has no class for it, as for elements of complex numbers."""
    try:
        return str(op.attributes[name])
    except TypeError:
        text = str(op.operation.get_asm(print_generic_op_form=True))
        start = re.search(rf"[<{{ ]{re.escape(name)} = ", text)
        if start is None:
            raise
        return next(split_entries(text[start.end() :]))


def discardable(op: ir.OpView) -> Attributes:
    """Attributes whose name has a dialect prefix, such as `mhlo.frontend_attributes`, under that name."""
    return {name: plain(op.attributes[name]) for name in op.attributes if "." in name}


def common_body(op: ir.OpView) -> str:
    """The op that the first region applies to pairs of its arguments for each result, or "" where it does more."""
    (block,) = op.regions[0].blocks
    *_, terminator = block.operations
    names: set[str] = set()
    for value in terminator.operands:
        owner = value.owner
        if isinstance(owner, ir.Block) or len(owner.operands) != 2:
            return ""
        if any(operand.owner != block for operand in owner.operands):
            return ""
        names.add(owner.name)
    return names.pop() if len(names) == 1 else ""


def _named(*names: str) -> Reader:
    def read(op: ir.OpView) -> Attributes:
        return {name: plain(op.attributes[name]) for name in names if name in op.attributes}

    return read


def _elements(attribute: ir.Attribute) -> tuple[Any, ...]:
    return tuple(cast(Iterable[Any], attribute))


def _pairs(op: ir.OpView, name: str, count: int) -> tuple[tuple[int, int], ...]:
    if name not in op.attributes:
        return ((0, 0),) * count
    flat = _elements(op.attributes[name])
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def _array(op: ir.OpView, name: str, default: tuple[Any, ...]) -> tuple[Any, ...]:
    return _elements(op.attributes[name]) if name in op.attributes else default


def _constant(op: ir.OpView) -> Attributes:
    return {"value": AttributeText(attribute_text(op, "value"))}


def _reduce(op: ir.OpView) -> Attributes:
    return {"dimensions": _elements(op.attributes["dimensions"]), "body": common_body(op)}


def _reduce_window(op: ir.OpView) -> Attributes:
    window = _elements(op.attributes["window_dimensions"])
    ones = (1,) * len(window)
    spacing = {name: _array(op, name, ones) for name in ("window_strides", "base_dilations", "window_dilations")}
    return {"window_dimensions": window, **spacing, "padding": _pairs(op, "padding", len(window))}


def _select_and_scatter(op: ir.OpView) -> Attributes:
    rank = len(ir.RankedTensorType(op.operands[0].type).shape)
    window = {name: _array(op, name, (1,) * rank) for name in ("window_dimensions", "window_strides")}
    return {**window, "padding": _pairs(op, "padding", rank)}


def _numbers(numbers: Any, *names: str) -> Attributes:
    """The lists of dimension numbers of these names, and numbers of single dimensions."""
    values = ((name, getattr(numbers, name)) for name in names)
    return {name: value if isinstance(value, int) else tuple(value) for name, value in values}


def _dot_general(op: ir.OpView) -> Attributes:
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    return _numbers(numbers, *(f"{side}_{kind}_dimensions" for kind in ("batching", "contracting") for side in ("lhs", "rhs")))


def _ragged_dot(op: ir.OpView) -> Attributes:
    numbers = chlo.RaggedDotDimensionNumbers(op.attributes["ragged_dot_dimension_numbers"])
    names = (f"{side}_{kind}_dimensions" for kind in ("batching", "contracting") for side in ("lhs", "rhs"))
    return _numbers(numbers, *names, "lhs_ragged_dimensions", "rhs_group_dimensions")


def _convolution(op: ir.OpView) -> Attributes:
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    rank = len(numbers.input_spatial_dimensions)
    sides = (("input", ("batch", "feature")), ("kernel", ("input_feature", "output_feature")), ("output", ("batch", "feature")))
    names = (f"{side}_{kind}" for side, kinds in sides for kind in (*(f"{kind}_dimension" for kind in kinds), "spatial_dimensions"))
    return {
        "window_strides": _array(op, "window_strides", (1,) * rank),
        "padding": _pairs(op, "padding", rank),
        "lhs_dilation": _array(op, "lhs_dilation", (1,) * rank),
        "rhs_dilation": _array(op, "rhs_dilation", (1,) * rank),
        "window_reversal": _array(op, "window_reversal", (False,) * rank),
        **_numbers(numbers, *names),
        "feature_group_count": plain(op.attributes["feature_group_count"]),
        "batch_group_count": plain(op.attributes["batch_group_count"]),
    }


def _gather(op: ir.OpView) -> Attributes:
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    batching = ("operand_batching_dims", "start_indices_batching_dims")
    named = _numbers(numbers, "offset_dims", "collapsed_slice_dims", *batching, "start_index_map", "index_vector_dim")
    return {**named, "slice_sizes": _elements(op.attributes["slice_sizes"])}


_SCATTER_BODIES = frozenset(f"stablehlo.{name}" for name in ("add", "multiply", "maximum", "minimum"))
_LOGICAL_BODIES = frozenset(("stablehlo.and", "stablehlo.or"))


def _scatter(op: ir.OpView) -> Attributes:
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    body = common_body(op)
    logical = body in _LOGICAL_BODIES and str(ir.ShapedType(op.results[0].type).element_type) == "i1"
    batching = ("input_batching_dims", "scatter_indices_batching_dims")
    return {
        **_numbers(numbers, "update_window_dims", "inserted_window_dims", *batching),
        "scatter_dims_to_operand_dims": tuple(numbers.scattered_dims_to_operand_dims),
        "index_vector_dim": numbers.index_vector_dim,
        "body": body if body in _SCATTER_BODIES or logical else "",
    }


def _sort(op: ir.OpView) -> Attributes:
    return {"dimension": plain(op.attributes["dimension"]) if "dimension" in op.attributes else -1}


def _computation(op: ir.OpView) -> Attributes:
    attributes = _named("in_shardings", "out_shardings", "name", "manual_axes")(op)
    for name in ("in_shardings", "out_shardings"):
        attributes[name] = attributes[name].shardings if name in attributes else None
    if "manual_axes" in attributes:
        attributes["manual_axes"] = attributes["manual_axes"].axes
    return attributes


def _collective(axes: str) -> Reader:
    """The axes, and how a reduction combines; for sums no `reduction_op` is read: some versions of Shardy state it, some do not know it."""

    def read(op: ir.OpView) -> Attributes:
        kind = plain(op.attributes["reduction_op"]) if "reduction_op" in op.attributes else 0
        return {axes: plain(op.attributes[axes])} | ({"reduction_op": kind} if kind else {})

    return read


def _barrier(op: ir.OpView) -> Attributes:
    return {"allowed_direction": dialect.PropagationDirection(plain(op.attributes["allowed_direction"]))}


READERS: Mapping[str, Reader] = {
    "func.call": _named("callee"),
    "stablehlo.all_gather": _named("all_gather_dim"),
    "stablehlo.all_to_all": _named("split_dimension", "concat_dimension"),
    "stablehlo.batch_norm_inference": _named("feature_index"),
    "stablehlo.broadcast_in_dim": _named("broadcast_dimensions"),
    "stablehlo.cholesky": _named("lower"),
    "stablehlo.composite": _named("name", "decomposition"),
    "stablehlo.concatenate": _named("dimension"),
    "stablehlo.constant": _constant,
    "stablehlo.convolution": _convolution,
    "stablehlo.custom_call": _named("call_target_name", "has_side_effect"),
    "stablehlo.dot_general": _dot_general,
    "stablehlo.dynamic_slice": _named("slice_sizes"),
    "stablehlo.fft": _named("fft_type", "fft_length"),
    "stablehlo.gather": _gather,
    "stablehlo.get_dimension_size": _named("dimension"),
    "stablehlo.get_tuple_element": _named("index"),
    "stablehlo.iota": _named("iota_dimension"),
    "stablehlo.map": _named("dimensions"),
    "stablehlo.pad": _named("edge_padding_low", "edge_padding_high", "interior_padding"),
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_scatter": _named("scatter_dimension"),
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.reverse": _named("dimensions"),
    "stablehlo.scatter": _scatter,
    "stablehlo.select_and_scatter": _select_and_scatter,
    "stablehlo.slice": _named("start_indices", "limit_indices", "strides"),
    "stablehlo.sort": _sort,
    "stablehlo.transpose": _named("permutation"),
    "stablehlo.triangular_solve": _named("left_side", "lower", "unit_diagonal", "transpose_a"),
    "chlo.ragged_dot": _ragged_dot,
    "chlo.top_k": _named("k"),
    **{name: _collective(attribute) for name, attribute in AXES_OF.items()},
    "sdy.constant": _constant,
    "sdy.manual_computation": _computation,
    "sdy.named_computation": _computation,
    "sdy.propagation_barrier": _barrier,
    "sdy.sharding_group": _named("group_id"),
}
