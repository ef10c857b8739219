"""Dots and convolutions: they run on parts where a sum over cut dimensions follows."""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.dialect import AxisRef
from shardy_py.ir import Op, Value
from shardy_py.ir.attribute_text import MLIR_TEXT_KEY
from shardy_py.opt.partitioner.attributes import with_kept
from shardy_py.opt.partitioner.convert_global_to_local.emitter import Conversion, Emitter
from shardy_py.opt.partitioner.convert_global_to_local.facts import LocalTensor
from shardy_py.opt.partitioner.convert_global_to_local.sums import FULL_RESHARDS, check_summed


def dot(op: Op, out: Emitter) -> None:
    """A dot; unchanged if its operands fit and its sum over devices follows."""
    lhs, rhs = out.facts.operands
    _check_summed(out, "dot", _same_axes(out, [(lhs.rank - 1, 0)], lhs, rhs))


def dot_general(op: Op, out: Emitter) -> None:
    """A dot_general on local parts, as `dot`."""
    names = ("lhs_contracting_dimensions", "rhs_contracting_dimensions")
    pairs = list(zip(*(op.attributes[name] for name in names), strict=True))
    _check_summed(out, "dot_general", _same_axes(out, pairs, *out.facts.operands))


def convolution(op: Op, out: Emitter) -> Sequence[Value]:
    """A convolution with as many groups as the device has; of a kernel that is cut it applies a part, and a sum must follow."""
    attributes = op.attributes
    lhs, rhs = out.facts.operands
    counts: dict[str, int] = {
        "batch_group_count": attributes["input_batch_dimension"],
        "feature_group_count": attributes["input_feature_dimension"],
    }
    grouped = attributes["feature_group_count"] > 1
    axes = [axis for dim in attributes["kernel_spatial_dimensions"] for axis in rhs.axes(dim)]
    if not grouped:
        features = (attributes["input_feature_dimension"], attributes["kernel_input_feature_dimension"])
        axes += _same_axes(out, [features], lhs, rhs)
    _check_summed(out, "convolution", axes)
    values: dict[str, object] = {}
    for name, dim in counts.items():
        count: int = attributes[name]
        if count > 1 and lhs.axes(dim):
            parts = lhs.type.shape[dim] // lhs.local.shape[dim]
            if count % parts:
                raise out.error(
                    f"has a {name} of {count} that its sharding does not divide",
                    why=f"dimension {dim} of its first operand is cut into {parts} parts",
                    fix="cut the dimension into a number of parts that divides the number of groups",
                )
            count //= parts
        values[name] = count
    texts = {name: f"{count} : i64" for name, count in values.items()}
    own = {name: value for name, value in attributes.items() if "." not in name or name == MLIR_TEXT_KEY}
    rebuilt = out.rebuild(with_kept(own, texts, values))
    rebuilt.result.sharding = None
    return rebuilt.results


def _same_axes(out: Emitter, pairs: Sequence[tuple[int, int]], lhs: LocalTensor, rhs: LocalTensor) -> list[AxisRef]:
    """The axes of the contracting dimensions, which must be the same in both operands."""
    for left, right in pairs:
        if lhs.axes(left) != rhs.axes(right):
            raise out.error(
                f"contracts dimension {left} of its first operand with dimension {right} of its second, which are cut along other axes",
                why=f"the axes are {list(lhs.axes(left))} and {list(rhs.axes(right))}",
                fix=FULL_RESHARDS,
            )
    return [axis for left, _ in pairs for axis in lhs.axes(left)]


def _check_summed(out: Emitter, kind: str, axes: Sequence[AxisRef]) -> None:
    sharding = next((tensor.sharding for tensor in out.facts.operands if tensor.is_cut), None)
    check_summed(out, axes, sharding, f"sharded contracting {kind}", f"sharded contracting dimensions of the {kind}")


CONVERSIONS: dict[str, Conversion] = {
    "stablehlo.convolution": convolution,
    "stablehlo.dot": dot,
    "stablehlo.dot_general": dot_general,
}
