"""Dots and convolutions: they run on parts where a sum over cut dimensions follows."""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.dialect import AxisRef, TensorSharding
from shardy_py.dialect.axis import sort_and_merge
from shardy_py.ir import Op, Value
from shardy_py.ir.attribute_text import MLIR_TEXT_KEY
from shardy_py.opt.partitioner.convert_global_to_local.collectives import flat
from shardy_py.opt.partitioner.convert_global_to_local.emitter import Conversion, Emitter, LocalTensor
from shardy_py.opt.partitioner.local_ops import with_kept


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


_ALL_REDUCE = "sdy.all_reduce"
_REDUCE_SCATTER = "sdy.reduce_scatter"

FULL_RESHARDS = "run sdy-insert-explicit-reshards{enable-full-version=true} before sdy-convert-global-to-local"
"""The advice for a program whose ops do not fit their operands."""


def check_summed(out: Emitter, axes: Sequence[AxisRef], sharding: TensorSharding | None, subject: str, dims: str) -> None:
    """Raises ShardyError unless every use of the op's result is an all-reduce or reduce-scatter over the axes that cut what it sums."""
    if not axes or sharding is None:
        return
    users = [user for user, _ in out.op.results[0].uses]
    if not users or any(user.name not in (_ALL_REDUCE, _REDUCE_SCATTER) for user in users):
        raise out.error(f"Expected {subject} to have one user and the user is an {_ALL_REDUCE}.", fix=FULL_RESHARDS)
    mesh = out.world.mesh(sharding)
    for user in users:
        reduced = _reduced_axes(user)
        if sort_and_merge(axes, mesh) != sort_and_merge(reduced, mesh):
            raise out.error(
                f"The axes of the {user.name} should match the {dims}.",
                why=f"they are {list(reduced)}, and the dimensions are cut along {list(axes)}",
                fix=FULL_RESHARDS,
            )


def _reduced_axes(op: Op) -> Sequence[AxisRef]:
    if op.name == _ALL_REDUCE:
        return op.attributes["reduction_axes"].axes
    return flat([listed.axes for listed in op.attributes["reduce_scatter_axes"].lists])


CONVERSIONS: dict[str, Conversion] = {
    "stablehlo.convolution": convolution,
    "stablehlo.dot": dot,
    "stablehlo.dot_general": dot_general,
}
